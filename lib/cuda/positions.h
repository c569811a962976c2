// The samples of a call on the device: their indices, sampling locations and masks.
#pragma once

#include <cstdint>

#include "deform_conv.h"
#include "sampling.h"
#include "window.h"

namespace dcn {

// The index in `mask`, and in `offset` as pairs, of tap k of offset group g at output pixel p.
__device__ inline int64_t PositionIndex(const Sizes& sizes, int64_t p, int64_t g, int32_t k) {
  return (p * sizes.offset_groups + g) * sizes.taps() + k;
}

template <typename A>
__device__ A Mask(const Positions& positions, int64_t position) {
  return positions.mask ? static_cast<const A*>(positions.mask)[position] : A(1);
}

// `p` counts the pixels of the tile over all its images.
template <typename A>
__device__ BilinearCorners<A> LocateSample(const Sizes& sizes, const Positions& positions, int64_t p, int64_t position,
                                           int32_t k) {
  const int64_t row = positions.origin[1] + p / sizes.columns % sizes.rows;
  const int64_t column = positions.origin[2] + p % sizes.columns;
  const Point<A> location =
      SamplingLocation(sizes.window, row, column, k, static_cast<const A*>(positions.offset) + 2 * position);
  return LocateCorners(location.y, location.x, sizes.height, sizes.width, sizes.window.circular);
}

// d_offset and d_mask may be null.
template <typename A>
__device__ void StorePositionCotangents(const Positions& positions, int64_t position, const BilinearCorners<A>& corners,
                                        const A (&dot)[4], A* d_offset, A* d_mask) {
  const PositionCotangents<A> cotangents = CotangentsOfPosition(corners, dot, Mask<A>(positions, position));
  if (d_offset) {
    d_offset[2 * position] = cotangents.y;
    d_offset[2 * position + 1] = cotangents.x;
  }
  if (d_mask) d_mask[position] = cotangents.mask;
}

}  // namespace dcn
