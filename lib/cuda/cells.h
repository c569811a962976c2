// Samples sorted by cell, so that a pixel can gather in a fixed order, and without atomics, what they scatter to it.
//
// A cell is the square between four neighbouring pixels: all samples in it have the same corners. Its index follows
// from its top left pixel. An image has one row and one column more of cells than of pixels. Without circular padding,
// the top left pixels of the first row and column of cells are outside the image; with it, these cells stay empty.
#pragma once

#include <cstdint>
#include <type_traits>

#include "vector.h"

namespace dcn {

// A sample in the order of the cells, with all that its pixels need to know.
template <typename A>
struct alignas(4 * sizeof(A)) SortedSample {
  std::conditional_t<sizeof(A) == sizeof(int32_t), int32_t, int64_t> id;  // so that there is no padding
  A weight, y, x;  // by which its corners are multiplied; the fractions of its location

  __device__ A corner_weight(bool is_bottom, bool is_right) const {
    return (is_bottom ? y : A(1) - y) * (is_right ? x : A(1) - x) * weight;
  }
};

template <typename A>
constexpr int64_t kSampleWords = sizeof(SortedSample<A>) / sizeof(int32_t);

// The samples of two neighbouring cells of a row of cells, in a table. In those of the first cell, the pixel between
// the cells is a right corner.
struct CellPair {
  int32_t begin, middle, end;
};

// Adds to `sum` what the samples of a pair of cells scatter to the pixel between them, of which the cells are above
// (is_bottom: the pixel is a bottom corner) or below. An id is a row of the cotangents, of `row_vectors` vectors of N
// channels. The calling thread takes every `turns`-th sample.
template <typename T, int N, typename A>
__device__ void AddSamples(const SortedSample<A>* samples, const CellPair& cells, bool is_bottom, int32_t turn,
                           int32_t turns, const Vector<T, N>* rows, uint32_t row_vectors, A (&sum)[N]) {
  int32_t i = cells.begin + turn;
  SortedSample<A> next = {};
  if (i < cells.end) next = samples[i];
  for (; i < cells.end; i += turns) {
    const SortedSample<A> sample = next;
    if (i + turns < cells.end) next = samples[i + turns];  // loaded while this one is added
    const Vector<A, N> row = Widened(rows[uint64_t{uint32_t(sample.id)} * row_vectors]);
    const A weight = sample.corner_weight(is_bottom, i < cells.middle);
    for (int v = 0; v < N; ++v) sum[v] += weight * row.value[v];
  }
}

}  // namespace dcn
