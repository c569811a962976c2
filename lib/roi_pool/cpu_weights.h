// The RoIs of a call, the images and pixels that their bins read, and the weights of the pixels.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "attributes.h"
#include "instruction_sets.h"
#include "roi_pool/roi_pool.h"

namespace dcn {

// Appends pixels. It is outside of the instruction set's namespace, like ForEachPixel, which could not inline it
// otherwise.
template <typename Pixel>
struct PixelWriter {
  Pixel*& last;

  template <typename A>
  DCN_INLINE void operator()(int32_t index, A weight, A slope) const {
    *last++ = {index, weight, slope};
  }
};

}  // namespace dcn

DCN_BEGIN_TARGET

// `roi_index` counts the RoIs of all batches.
template <typename A>
DCN_INLINE Roi<A> LocateRoi(const PoolSizes& sizes, const Rois& rois, int64_t roi_index) {
  return dcn::LocateRoi(sizes, static_cast<const A*>(rois.boxes) + roi_index * 5);
}

// The image that an RoI reads; `image` is its index within the RoI's batch.
template <typename T>
DCN_INLINE const T* ImageOfRoi(const PoolSizes& sizes, const T* x, int64_t roi_index, int64_t image) {
  return x + (roi_index / sizes.rois * sizes.images + image) * sizes.height * sizes.width * sizes.channels;
}

// The row and column of a bin, and the flat indices of the part and the channel group that it belongs to.
struct BinIndex {
  int64_t row, column, part, group;
};

// The indices of all bins, row by row. They are computed once per call because they take integer divisions. Empty if
// there is no output: then no array bounds the number of bins, and this one might not fit in memory.
inline std::vector<BinIndex> IndexBins(const PoolSizes& sizes) {
  if (sizes.batches * sizes.rois == 0 || sizes.features() == 0) return {};
  const auto flat_cell = [&](int64_t row, int64_t column, const int32_t grid[2]) {
    return sizes.GridCellOfBin(0, row, grid) * grid[1] + sizes.GridCellOfBin(1, column, grid);
  };
  std::vector<BinIndex> bins;
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      bins.push_back({row, column, flat_cell(row, column, sizes.part), flat_cell(row, column, sizes.group)});
    }
  }
  return bins;
}

// The pixels that a row or column of bins reads along one axis.
template <typename A>
struct Profile {
  struct Pixel {
    int32_t index;
    A weight, slope;  // sums over the sample points; slope is the derivative with respect to the position
  };

  const Pixel *first, *last;
  A points;  // the number that counts towards the mean; NaN for a NaN offset

  const Pixel* begin() const { return first; }
  const Pixel* end() const { return last; }
};

// Storage for `count` profiles.
template <typename A>
class Profiles {
 public:
  Profiles(const PoolSizes& sizes, int axis, int64_t count)
      : axis_(axis),
        most_pixels_(std::min(2 * BinPoints<A>::MostVisited(sizes, axis), sizes.length(axis))),
        pixels_(new typename Profile<A>::Pixel[count * most_pixels_]),
        profiles_(count) {}

  // Many inlined copies would take seconds to compile.
  DCN_NOINLINE void Compute(int64_t i, const PoolSizes& sizes, const Roi<A>& roi, int64_t bin, A shift) {
    auto* const first = pixels_.get() + i * most_pixels_;
    auto* last = first;
    const PixelWriter<typename Profile<A>::Pixel> writer{last};
    const A points = ForEachPixel(sizes, roi, axis_, bin, shift, writer);
    profiles_[i] = {first, last, shift == shift ? points : shift};
  }

  const Profile<A>& operator[](int64_t i) const { return profiles_[i]; }

 private:
  int axis_;
  int64_t most_pixels_;
  std::unique_ptr<typename Profile<A>::Pixel[]> pixels_;
  std::vector<Profile<A>> profiles_;
};

template <typename A>
struct BinWeights {
  const Profile<A>&y, &x;
  A scale;  // 1 / number of points that count, 0 if there are none, NaN for a NaN offset
};

// The pixels and weights of the bins of one RoI, for the features of one class. Without an offset, the bins of a row
// share the profile along y, and those of a column the profile along x. They are then computed once per RoI.
template <typename A>
class RoiWeights {
 public:
  DCN_NOINLINE RoiWeights(const PoolSizes& sizes, const Rois& rois)
      : is_shared_(!rois.offset),
        y_(sizes, 0, is_shared_ ? sizes.output[0] : 1),
        x_(sizes, 1, is_shared_ ? sizes.output[1] : 1) {}

  // `offset` holds the (dx, dy) of the RoI's first part for this class, if there is an offset.
  DCN_NOINLINE void Start(const PoolSizes& sizes, const Roi<A>& roi, const A* offset) {
    roi_ = roi;
    offset_ = offset;
    if (!is_shared_) return;
    for (int64_t row = 0; row < sizes.output[0]; ++row) y_.Compute(row, sizes, roi, row, A(0));
    for (int64_t column = 0; column < sizes.output[1]; ++column) x_.Compute(column, sizes, roi, column, A(0));
  }

  DCN_INLINE BinWeights<A> At(const PoolSizes& sizes, const BinIndex& bin) {
    if (is_shared_) return Shared(bin.row, bin.column);
    const A* shift = offset_ + bin.part * 2 * sizes.classes;
    y_.Compute(0, sizes, roi_, bin.row, shift[1] * A(sizes.trans_std));
    x_.Compute(0, sizes, roi_, bin.column, shift[0] * A(sizes.trans_std));
    return Shared(0, 0);
  }
  // The bin of a row and a column that share their profiles.
  DCN_INLINE BinWeights<A> Shared(int64_t row, int64_t column) const {
    const A points = y_[row].points * x_[column].points;
    return {y_[row], x_[column], points == A(0) ? A(0) : A(1) / points};
  }

 private:
  bool is_shared_;
  Profiles<A> y_, x_;
  Roi<A> roi_ = {};
  const A* offset_ = nullptr;
};

DCN_END_TARGET
