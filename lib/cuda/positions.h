// Where the samples of a call lie, from its operands.
#pragma once

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

// `p` counts the pixels of the tile, through all images; a call without an origin covers the whole output.
template <typename A>
__device__ Sample<A> LocateSample(const Sizes& sizes, const Positions& positions, int64_t p, int64_t position,
                                  int32_t k) {
  const int64_t row = p / sizes.columns % sizes.rows, column = p % sizes.columns;
  const int32_t* origin = positions.origin;
  const int64_t first_row = origin ? origin[1] : 0, first_column = origin ? origin[2] : 0;
  return Locate(sizes.window, sizes.height, sizes.width, first_row + row, first_column + column, k,
                static_cast<const A*>(positions.offset) + 2 * position);
}

}  // namespace dcn
