// The samples of a call on the device: their indices, sampling locations and masks.
#pragma once

#include <cstdint>

#include "deform_conv.h"
#include "sampling.h"
#include "vector.h"
#include "window.h"

namespace dcn {

// Divides numbers below 2^31 by a number that is known before the launch: a multiplication, an addition and a shift
// take far fewer instructions than a division.
struct Divisor {
  uint32_t divisor, multiplier, shift;

  explicit Divisor(int64_t number) : divisor(number > 0 ? uint32_t(number) : 1), shift(0) {
    while (uint64_t{1} << shift < divisor) ++shift;
    multiplier = uint32_t((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ uint32_t Quotient(uint32_t number) const {
    return (uint32_t(uint64_t{number} * multiplier >> 32) + number) >> shift;
  }
};

// The index of a sample in `mask`, and in `offset` as pairs.
__device__ inline int64_t SampleIndex(const Sizes& sizes, int64_t output_pixel, int64_t offset_group, int32_t tap) {
  return (output_pixel * sizes.offset_groups + offset_group) * sizes.taps() + tap;
}

template <typename A>
__device__ A Mask(const Positions& positions, int64_t sample_index) {
  return positions.mask ? static_cast<const A*>(positions.mask)[sample_index] : A(1);
}

// The location of the first tap of an output pixel, without its offset. `output_pixel` counts the pixels of the tile
// over all its images.
struct FirstTap {
  int64_t start[2];

  FirstTap() = default;
  __device__ FirstTap(const Sizes& sizes, const Positions& positions, int64_t output_pixel)
      : start{sizes.window.start(0, positions.origin[1] + output_pixel / sizes.columns % sizes.rows),
              sizes.window.start(1, positions.origin[2] + output_pixel % sizes.columns)} {}
};

template <typename A>
__device__ BilinearCorners<A> LocateSample(const Sizes& sizes, const Positions& positions, const FirstTap& first_tap,
                                           int64_t sample_index, int32_t tap) {
  const Vector<A, 2> offset = AsVector<2>(static_cast<const A*>(positions.offset) + 2 * sample_index);
  const Point<A> location = SamplingLocation(sizes.window, first_tap.start, tap, offset.value);
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
