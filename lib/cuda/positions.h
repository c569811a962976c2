// Where the samples of a call lie, from its operands.
#pragma once

#include <cmath>
#include <cstdint>

#include "deform_conv.h"

namespace dcn {

// Where offset group g of tap k of output pixel p stands in `offset` (by two) and `mask`.
__device__ inline int64_t Position(const Sizes& sizes, int64_t p, int64_t g, int32_t k) {
  return (p * sizes.offset_groups + g) * sizes.taps() + k;
}

template <typename A>
__device__ A Mask(const Positions& positions, int64_t position) {
  return positions.mask ? static_cast<const A*>(positions.mask)[position] : A(1);
}

// `p` counts the pixels of the tile, through all images.
template <typename A>
__device__ Sample<A> LocateSample(const Sizes& sizes, const Positions& positions, int64_t p, int64_t position,
                                  int32_t k) {
  const int64_t row = positions.origin[1] + p / sizes.columns % sizes.rows;
  const int64_t column = positions.origin[2] + p % sizes.columns;
  return Locate(sizes.window, sizes.height, sizes.width, row, column, k,
                static_cast<const A*>(positions.offset) + 2 * position);
}

// What the dot products of a sample's cotangent with its corners make of the cotangents of its offset and mask, either
// of which may be null.
template <typename A>
__device__ void StorePositionCotangents(const Positions& positions, int64_t position, const Sample<A>& sample,
                                        const A (&dot)[4], A* d_offset, A* d_mask) {
  A dy = 0, dx = 0, dm = 0;
  if (sample.nan()) {
    dy = dx = dm = A(NAN);
  } else if (sample.inside()) {
    const A mask = Mask<A>(positions, position);
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      dy += sample.weight_dy(i, j) * dot[corner] * mask;
      dx += sample.weight_dx(i, j) * dot[corner] * mask;
      dm += sample.weight(i, j) * dot[corner];
    }
  }
  if (d_offset) {
    d_offset[2 * position] = dy;
    d_offset[2 * position + 1] = dx;
  }
  if (d_mask) d_mask[position] = dm;
}

}  // namespace dcn
