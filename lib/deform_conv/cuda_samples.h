// The samples of a call on the device: their indices, sampling locations and masks.
#pragma once

#include <cstdint>

#include "bilinear.h"
#include "deform_conv/deform_conv.h"
#include "vector.h"
#include "window.h"

namespace dcn {

// The index of a sample in `mask`, and in `offset` as pairs.
__device__ inline int64_t SampleIndex(const Sizes& sizes, int64_t output_pixel, int64_t offset_group, int32_t tap) {
  return (output_pixel * sizes.offset_groups + offset_group) * sizes.taps() + tap;
}

template <typename A>
__device__ A Mask(const Positions& positions, int64_t sample_index) {
  return positions.mask ? static_cast<const A*>(positions.mask)[sample_index] : A(1);
}

// The location of the first tap of an output pixel, without its offset. `row` and `column` are those of the part.
struct FirstTap {
  int64_t y, x;

  __device__ FirstTap(const Sizes& sizes, const Positions& positions, int64_t row, int64_t column)
      : y(sizes.window.start(0, positions.origin[1] + row)), x(sizes.window.start(1, positions.origin[2] + column)) {}
};

// `distance` is that of the sample's tap from the first: vertical, horizontal.
template <typename A>
__device__ BilinearCorners<A> LocateSample(const Sizes& sizes, const Positions& positions, const FirstTap& first_tap,
                                           int64_t sample_index, const Vector<int64_t, 2>& distance) {
  const Vector<A, 2> offset = AsVector<2>(static_cast<const A*>(positions.offset) + 2 * sample_index);
  const Point<A> location =
      SamplingLocation(first_tap.y + distance.value[0], first_tap.x + distance.value[1], offset.value);
  return LocateCorners(location.y, location.x, sizes.height, sizes.width, sizes.window.circular);
}

// d_offset and d_mask may be null.
template <typename A>
__device__ void StorePositionCotangents(const Positions& positions, int64_t sample_index,
                                        const BilinearCorners<A>& corners, const A (&dot)[4], A* d_offset, A* d_mask) {
  const PositionCotangents<A> cotangents = CotangentsOfPosition(corners, dot, Mask<A>(positions, sample_index));
  if (d_offset) AsVector<2>(d_offset + 2 * sample_index) = {{cotangents.y, cotangents.x}};
  if (d_mask) d_mask[sample_index] = cotangents.mask;
}

}  // namespace dcn
