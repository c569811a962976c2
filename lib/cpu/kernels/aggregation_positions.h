// Where the taps of an aggregation sample: their corners, as weights and as addresses in memory.
//
// aggregation_positions.cc is compiled without fused multiply-adds, because the last bit of a position matters. The
// kernels in aggregation.cc are compiled with them.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregation.h"
#include "aggregation_blocks.h"
#include "bilinear.h"
#include "host_device.h"
#include "instruction_sets.h"

DCN_BEGIN_TARGET

// The corners of consecutive taps: arrays for each corner. A weight is that of the bilinear interpolation times that of
// the tap.
template <typename A>
struct CornerArrays {
  const uintptr_t* address[4];
  const A* weight[4];
};

// The corners of all taps of a few consecutive heads of a query, as many as Locate is asked for. All arrays have an
// element or a group of elements per tap, so that the compiler vectorizes Locate.
template <typename A>
class TapCorners {
 public:
  // Only the heads and pixels of the block, and the strides of the array, matter.
  TapCorners(const AggregationSizes&, const Block&, const BlockArray&);

  int64_t max_heads() const { return max_heads_; }

  // `query` and `head` are indices in the batch and in the block; `locations` and `weights` are those of the first tap.
  void Locate(const BlockArray&, const int32_t* origin, int64_t query, int64_t head, int64_t heads, const A* locations,
              const A* weights);

  // Below, taps are counted from the first head that was located.
  CornerArrays<A> at(int64_t tap) const {
    CornerArrays<A> corners;
    for (int corner = 0; corner < 4; ++corner) {
      corners.address[corner] = address_[corner].data() + tap;
      corners.weight[corner] = weight_[corner].data() + tap;
    }
    return corners;
  }
  DCN_HOST_DEVICE BilinearCorners<A> operator[](int64_t tap) const { return {Axis(0, tap), Axis(1, tap)}; }
  // The derivative of the position with respect to the location.
  DCN_HOST_DEVICE A derivative(int axis, int64_t tap) const { return derivative_[axis][tap]; }

 private:
  DCN_HOST_DEVICE AxisLocation<A> Axis(int axis, int64_t tap) const {
    const int32_t first = pixel_[axis][0][tap];
    return {{first, pixel_[axis][1][tap]}, fraction_[axis][tap], first != kOutside};
  }

  const AggregationSizes& sizes_;
  int64_t block_pixels_, max_heads_;
  // By axis, of which the vertical one comes first:
  std::vector<int32_t> size_[2];      // of the tap's level
  std::vector<int32_t> distance_[2];  // of SamplingMethod::kWindow: AggregationWindow::distance
  std::vector<A> derivative_[2];
  std::vector<int64_t> first_pixel_;  // of the tap's level, in the block
  std::vector<int64_t> row_stride_;   // of the tap's level, in bytes
  std::vector<int64_t> head_offset_;  // of the tap's head, in bytes

  std::vector<int32_t> pixel_[2][2];  // by axis, then by neighbour
  std::vector<A> fraction_[2];
  std::vector<A> locations_;  // of the taps, two each
  std::vector<A> tap_weight_;
  std::vector<uintptr_t> address_[4];
  std::vector<A> weight_[4];
};

DCN_END_TARGET
