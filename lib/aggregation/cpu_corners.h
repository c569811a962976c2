// Where the taps of an aggregation sample: their corners, as weights and as addresses in memory.
//
// cpu_corners.cc is compiled without fused multiply-adds, because the last bit of a position matters. The kernels in
// cpu.cc are compiled with them.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregation/aggregation.h"
#include "aggregation/cpu_blocks.h"
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

// The operands and results of Locate on one axis: arrays with an element per tap.
template <typename A>
struct TapAxis {
  std::vector<int32_t> size;      // of the tap's level
  std::vector<int32_t> distance;  // CenterDistance, in SamplingMethod::kWindow
  std::vector<A> derivative;      // of the position with respect to the location
  std::vector<A> location;
  std::vector<int32_t> pixel[2];  // as AxisLocation has them
  std::vector<A> fraction;

  DCN_HOST_DEVICE AxisLocation<A> operator[](int64_t tap) const {
    return {{pixel[0][tap], pixel[1][tap]}, fraction[tap], pixel[0][tap] != kOutside};
  }
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
  DCN_HOST_DEVICE BilinearCorners<A> operator[](int64_t tap) const { return {axes_[0][tap], axes_[1][tap]}; }
  DCN_HOST_DEVICE A derivative(int axis, int64_t tap) const { return axes_[axis].derivative[tap]; }

 private:
  void LocateAxis(int64_t taps, TapAxis<A>& axis, int64_t center);
  void AddressCorners(int64_t taps, const BlockArray& array, uintptr_t first);
  void WeighCorners(int64_t taps);

  const AggregationSizes& sizes_;
  int64_t block_pixels_, max_heads_;
  TapAxis<A> axes_[2];                // vertical, horizontal
  std::vector<int64_t> first_pixel_;  // of the tap's level, in the block
  std::vector<int64_t> row_stride_;   // of the tap's level, in bytes
  std::vector<int64_t> head_offset_;  // of the tap's head, in bytes
  std::vector<A> tap_weight_;
  std::vector<uintptr_t> address_[4];
  std::vector<A> weight_[4];
};

DCN_END_TARGET
