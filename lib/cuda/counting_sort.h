// A stable counting sort of entries by row, into tables in CSR form. The result does not depend on the order in which
// threads run:
//
//   1. histogram: count the entries of each row
//   2. exclusive scan of the counts of each table, which gives row_start
//   3. scatter: write the id of each entry to a slot of its row claimed by atomicAdd; the order is nondeterministic
//   4. stable order: write each value to row_start + rank; the rank is the number of ids in the row that are smaller
//
// An entry has a row, an id that is unique in the row, and a value. The entries come from a functor on the device. The
// kernels recompute them instead of storing them unsorted:
//
//   int64_t work_items() const;                // a work item yields zero or more entries
//   void ForEach(int64_t work_item, f) const;  // calls f(entry, value) for each entry of a work item
//
// `value` is a callable without parameters, evaluated only in the last step.
#pragma once

#include <cstdint>

#include "launch.h"

namespace dcn {

struct Entry {
  int64_t row;          // index into row_start, over all tables
  int64_t values_base;  // base index in `values` that is added to row_start
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

// Precondition: row_start is zero. Row r is counted in row_start[r + 1].
template <typename Entries>
__global__ void HistogramKernel(Entries entries, int32_t* row_start) {
  const int64_t n = entries.work_items();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    entries.ForEach(work_item, [&](const Entry& entry, const auto&) { atomicAdd(&row_start[entry.row + 1], 1); });
  }
}

constexpr int kScanRows = 16;  // consecutive rows per thread

// One block per table. After the scan, row_start[r + 1] holds the start of row r; ScatterKernel increments it to the
// end of row r, which is the start of the next row. Table t starts at t · table_stride.
__global__ void ScanKernel(int64_t tables, int64_t rows, int64_t table_stride, int32_t* row_start) {
  __shared__ int32_t sums[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t table = blockIdx.x; table < tables; table += gridDim.x) {
    int32_t* counts = row_start + table * (rows + 1) + 1;
    int32_t prefix = int32_t(table * table_stride);
    if (threadIdx.x == 0) counts[-1] = prefix;
    for (int64_t first = 0; first < rows; first += kThreads * kScanRows) {
      const int64_t first_row = first + threadIdx.x * kScanRows;
      int32_t count[kScanRows], sum = 0;
      for (int i = 0; i < kScanRows; ++i) {
        const int64_t row = first_row + i;
        count[i] = row < rows ? counts[row] : 0;
        sum += count[i];
      }
      int32_t inclusive = sum;  // over the lanes of the warp
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int32_t lower_sum = __shfl_up_sync(kWholeWarp, inclusive, distance);
        if (lane >= distance) inclusive += lower_sum;
      }
      if (lane == kWarp - 1) sums[warp] = inclusive;
      __syncthreads();
      int32_t start = prefix + inclusive - sum;
      for (int w = 0; w < kThreads / kWarp; ++w) {
        if (w < warp) start += sums[w];
        prefix += sums[w];
      }
      for (int i = 0; i < kScanRows && first_row + i < rows; ++i) {
        counts[first_row + i] = start;
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
      unordered[entry.values_base + atomicAdd(&row_start[entry.row + 1], 1)] = entry.id;
    });
  }
}

template <typename Entries, typename Value>
__global__ void OrderKernel(Entries entries, const int32_t* row_start, const int32_t* unordered, Value* values) {
  const int64_t n = entries.work_items();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    entries.ForEach(work_item, [&](const Entry& entry, const auto& value) {
      const int32_t *range = row_start + entry.row, *ids = unordered + entry.values_base;
      int32_t index = range[0];  // plus the rank
      for (int32_t i = range[0]; i < range[1]; ++i) index += ids[i] < entry.id;
      values[entry.values_base + index] = value();
    });
  }
}

// table_stride is the number of elements of `values` per table if row_start is global, and each Entry::values_base is
// then 0. It is 0 if row_start is local to a table.
template <typename Entries, typename Value>
const char* SortByRow(const Device& device, const Entries& entries, const CsrTables<Value>& csr, int64_t table_stride) {
  const int64_t blocks = BlocksFor(entries.work_items());
  const size_t row_start_bytes = csr.tables * (csr.rows + 1) * sizeof(int32_t);
  const char* failure =
      row_start_bytes > 0 ? Failure(cudaMemsetAsync(csr.row_start, 0, row_start_bytes, device.stream)) : nullptr;
  if (!failure) failure = Launch<HistogramKernel<Entries>>(device, blocks, entries, csr.row_start);
  if (!failure) failure = Launch<ScanKernel>(device, csr.tables, csr.tables, csr.rows, table_stride, csr.row_start);
  if (!failure) failure = Launch<ScatterKernel<Entries>>(device, blocks, entries, csr.row_start, csr.unordered);
  if (!failure) {
    failure = Launch<OrderKernel<Entries, Value>>(device, blocks, entries, csr.row_start, csr.unordered, csr.values);
  }
  return failure;
}

}  // namespace
}  // namespace dcn
