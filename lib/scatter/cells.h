// Samples sorted by cell, so that a pixel can gather in a fixed order, and without atomics, what they scatter to it.
//
// A cell is the square between four neighbouring pixels: all samples in it have the same corners. Its index follows
// from its top left pixel. An image has one row and one column more of cells than of pixels. Without circular padding,
// the top left pixels of the first row and column of cells are outside the image; with it, these cells stay empty.
#pragma once

#include <cstdint>

#include "bilinear.h"
#include "scatter/tables.h"
#include "vector.h"

namespace dcn {

// The samples of two neighbouring cells of a row of cells, in a table. In those of the first cell, the pixel between
// the cells is a right corner.
struct CellPair {
  int32_t begin, middle, end;
};

// The cotangents that samples have, in rows of `channels`, from a channel on.
template <typename T>
struct CotangentRows {
  const char* first;
  uint32_t row_bytes;

  __device__ CotangentRows(const T* first, int64_t channels)
      : first(reinterpret_cast<const char*>(first)), row_bytes(uint32_t(channels * sizeof(T))) {}

  // N channels of a row. Its address takes one instruction, because it is a product of 32 bits.
  template <int N>
  __device__ Vector<T, N> Load(uint32_t row) const {
    return AsVector<N>(reinterpret_cast<const T*>(first + uint64_t{row} * row_bytes));
  }
};

// The ids of the samples that have rows: `count` from `first` on, which has the first row.
struct SampleRange {
  uint32_t first, count;
};

// Adds to `sum` what the samples of a pair of cells scatter to the pixel between them, of which the cells are above
// (is_bottom: the pixel is a bottom corner) or below. Samples outside of the range are left out. If kHasOtherSamples is
// false, the range has all samples. The calling thread takes every `turns`-th sample.
template <bool kHasOtherSamples, typename T, int N, typename A>
__device__ void AddSamples(const SortedSample<A>* samples, const CellPair& cells, bool is_bottom, int32_t turn,
                           int32_t turns, const SampleRange& range, const CotangentRows<T>& rows, A (&sum)[N]) {
  constexpr int kAtOnce = 3;  // samples whose rows are loaded at the same time; past the end, the last one's again
  if (kHasOtherSamples && range.count == 0) return;
  const uint32_t middle = cells.middle, end = cells.end;  // unsigned: an index after the end may exceed INT32_MAX
#pragma unroll 1
  for (uint32_t first = uint32_t(cells.begin) + turn; first < end; first += kAtOnce * turns) {
    SortedSample<A> at_once[kAtOnce];
    uint32_t numbers[kAtOnce];
    Vector<T, N> loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) at_once[k] = samples[min(first + k * turns, end - 1)];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      numbers[k] = uint32_t(at_once[k].id) - (kHasOtherSamples ? range.first : 0);
      loaded[k] = rows.template Load<N>(kHasOtherSamples ? min(numbers[k], range.count - 1) : numbers[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const uint32_t i = first + k * turns;
      const bool is_added = i < end && (!kHasOtherSamples || numbers[k] < range.count);
      const A weight = CornerWeight(at_once[k].y, at_once[k].x, at_once[k].weight, is_bottom, i < middle);
      const Vector<A, N> row = Widened(loaded[k]);
      for (int v = 0; v < N; ++v) sum[v] = is_added ? sum[v] + weight * row.value[v] : sum[v];
    }
  }
}

}  // namespace dcn
