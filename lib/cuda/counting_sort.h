// A stable counting sort of entries by row, into tables in CSR form. The result does not depend on the order in which
// threads run:
//
//   1. histogram: count the entries of each row
//   2. exclusive scan of the counts of each table, which gives row_start
//   3. scatter: move each entry to its row, to whatever place an atomic addition returns
//   4. stable order: move each entry to the place in its row that its rank says, which is the number of the row's
//      entries with smaller ids
//
// An entry has a row, an id that is unique in the row, and a value. The entries come from a functor on the device,
// which every kernel calls anew, so that entries need no memory before they are sorted:
//
//   int64_t work_items() const;                // each of which has any number of entries
//   void ForEach(int64_t work_item, f) const;  // calls f(entry, value) for each entry of a work item
//
// `value` is a function without parameters, which only the last step calls.
#pragma once

#include <cstdint>

#include "launch.h"

namespace dcn {

struct Entry {
  int64_t row;    // through all tables, as an index into row_start
  int64_t first;  // the index in `values` that the table's row_start counts from
  int32_t id;
};

template <typename Value>
struct CsrTables {
  int64_t tables, rows;  // rows of each table
  int32_t* row_start;    // [tables, rows + 1]: the start of each row; the last is the end of the table
  Value* values;         // sorted by row, then by id
  int32_t* unordered;    // workspace for the ids, of as many elements as `values`
};

namespace {

// row_start is zero before. The count of a row goes to the next place, row + 1.
template <typename Entries>
__global__ void HistogramKernel(Entries entries, int32_t* row_start) {
  const int64_t n = entries.work_items();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    entries.ForEach(work_item, [&](const Entry& entry, const auto&) { atomicAdd(&row_start[entry.row + 1], 1); });
  }
}

constexpr int kScanRows = 16;  // neighbouring rows of a thread

// One block per table. The counts become the starts of the rows, still one place late: ScatterKernel increments each to
// the end of its row, which is the start of the next one. Table t starts at t · table_stride.
__global__ void ScanKernel(int64_t tables, int64_t rows, int64_t table_stride, int32_t* row_start) {
  __shared__ int32_t sums[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t table = blockIdx.x; table < tables; table += gridDim.x) {
    int32_t* counts = row_start + table * (rows + 1) + 1;
    int32_t before = int32_t(table * table_stride);
    if (threadIdx.x == 0) counts[-1] = before;
    for (int64_t first = 0; first < rows; first += kThreads * kScanRows) {
      const int64_t own = first + threadIdx.x * kScanRows;
      int32_t count[kScanRows], sum = 0;
      for (int i = 0; i < kScanRows; ++i) {
        const int64_t row = own + i;
        count[i] = row < rows ? counts[row] : 0;
        sum += count[i];
      }
      int32_t inclusive = sum;  // over the lanes of the warp
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t other = __shfl_up_sync(kWholeWarp, inclusive, distance);
        if (lane >= distance) inclusive += other;
      }
      if (lane == kWarp - 1) sums[warp] = inclusive;
      __syncthreads();
      int32_t start = before + inclusive - sum;
      for (int other = 0; other < kThreads / kWarp; ++other) {
        if (other < warp) start += sums[other];
        before += sums[other];
      }
      for (int i = 0; i < kScanRows && own + i < rows; ++i) {
        counts[own + i] = start;
        start += count[i];
      }
      __syncthreads();
    }
  }
}

template <typename Entries>
__global__ void ScatterKernel(Entries entries, int32_t* row_start, int32_t* unordered) {
  const int64_t n = entries.work_items();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    entries.ForEach(work_item, [&](const Entry& entry, const auto&) {
      unordered[entry.first + atomicAdd(&row_start[entry.row + 1], 1)] = entry.id;
    });
  }
}

template <typename Entries, typename Value>
__global__ void OrderKernel(Entries entries, const int32_t* row_start, const int32_t* unordered, Value* values) {
  const int64_t n = entries.work_items();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    entries.ForEach(work_item, [&](const Entry& entry, const auto& value) {
      const int32_t *range = row_start + entry.row, *ids = unordered + entry.first;
      int32_t place = range[0];
      for (int32_t i = range[0]; i < range[1]; ++i) place += ids[i] < entry.id;
      values[entry.first + place] = value();
    });
  }
}

// table_stride is the number of elements of `values` per table if row_start counts through all tables, and every
// Entry::first is then 0. It is 0 if row_start counts from the first element of each table.
template <typename Entries, typename Value>
const char* SortByRow(const Device& device, const Entries& entries, const CsrTables<Value>& csr, int64_t table_stride) {
  const int64_t blocks = BlocksFor(entries.work_items());
  const char* failure =
      Failure(cudaMemsetAsync(csr.row_start, 0, csr.tables * (csr.rows + 1) * sizeof(int32_t), device.stream));
  if (!failure) failure = Launch(device, HistogramKernel<Entries>, blocks, entries, csr.row_start);
  if (!failure) failure = Launch(device, ScanKernel, csr.tables, csr.tables, csr.rows, table_stride, csr.row_start);
  if (!failure) failure = Launch(device, ScatterKernel<Entries>, blocks, entries, csr.row_start, csr.unordered);
  if (!failure) {
    failure = Launch(device, OrderKernel<Entries, Value>, blocks, entries, csr.row_start, csr.unordered, csr.values);
  }
  return failure;
}

}  // namespace
}  // namespace dcn
