// A stable counting sort of entries by row, into tables in CSR form. It uses no atomics, and its result is the same in
// every run. It takes two kernels, because a table may have too many rows to count them all in shared memory:
//
//   1. PartitionKernel: a thread block sorts a chunk of a table's entries by bin, which is a range of rows.
//   2. SortBinsKernel: a warp sorts a bin by row. It takes the bin's part of each chunk, one after the other.
//
// Both count first, and then take the entries again in the order of their ids to find the place of each. The lanes of a
// warp that have the same bin or row find each other by __match_any_sync.
//
// The entries of a table come from items, which have up to kEntries each: the id of an entry is item · kEntries + its
// number in the item. They are computed on the device whenever a kernel needs them:
//
//   Table operator[](int64_t table) const;             // of Tables, which is passed to the kernels
//   static constexpr int kEntries;                     // of Table
//   void FindRows(int32_t item, int32_t* rows) const;  // the rows of the item's entries, in the table; or kNoRow
//   Entry operator()(int32_t id) const;                // of any id; Entry::row is as found by FindRows
//   Value value(const Entry&) const;                   // of an entry that has a row
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch.h"
#include "vector.h"

namespace dcn {

constexpr int32_t kNoRow = -1;

template <typename Value>
struct CsrTables {
  int64_t tables;
  int32_t rows, entries;     // of each table; ids are less than `entries`
  bool is_row_start_global;  // row_start counts over all tables, else from the start of each
  int32_t* row_start;        // [tables, rows + 1]: the start of each row; the last is the end of the table
  Value* values;             // [tables, entries], sorted by row, then by id
  int32_t* workspace;        // [tables, entries]
};

namespace {

constexpr int kPartitionWarps = kThreads / kWarp, kSortWarps = 4;
constexpr int32_t kMaxBins = 1024, kMaxChunks = kWarp, kChunkEntries = 32 * kThreads;
constexpr int kMinBinRowsLog2 = 7;  // a bin has room for the ends of its parts of all chunks: 2 · kMaxChunks elements
constexpr int32_t kWindowRows = 256, kStaged = 640;  // in shared memory, per warp: counts of rows, and entries

// How a table is divided.
struct SortShape {
  int64_t tables;
  int32_t rows, entries;
  int32_t bins, bin_rows_log2;   // the last bin also has the rows that remain
  int32_t chunks, warp_entries;  // a warp's part of a chunk

  SortShape(int64_t tables, int32_t rows, int32_t entries, int item_entries)
      : tables(tables), rows(rows), entries(entries) {
    bin_rows_log2 = kMinBinRowsLog2;
    while (rows >> bin_rows_log2 > kMaxBins) ++bin_rows_log2;
    bins = std::max(rows >> bin_rows_log2, 1);
    const int64_t wanted = (int64_t{entries} + kChunkEntries - 1) / kChunkEntries;
    chunks = int32_t(std::min({wanted, int64_t{kMaxChunks}, (int64_t{rows} + 1) / 2}));
    const int64_t parts = int64_t{std::max(chunks, 1)} * kThreads * item_entries;
    warp_entries = int32_t((int64_t{entries} + parts - 1) / parts * kWarp * item_entries);
  }

  __device__ int32_t bin(int32_t row) const {  // -1 of kNoRow
    const int32_t bin = row >> bin_rows_log2;
    return bin < bins ? bin : bins - 1;
  }
  __device__ int32_t first_row(int32_t bin) const { return bin << bin_rows_log2; }
  __device__ int64_t chunk_start(int64_t table, int32_t chunk) const {
    return table * entries + int64_t{chunk} * warp_entries * kPartitionWarps;
  }
};

__device__ inline int Lane() { return int(threadIdx.x % kWarp); }

// The exclusive sum over the lanes, plus *sum, to which the sum of all lanes is added.
__device__ inline int32_t ExclusiveSum(int32_t value, int32_t* sum) {
  int32_t inclusive = value;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int32_t lower_sum = __shfl_up_sync(kWholeWarp, inclusive, distance);
    if (Lane() >= distance) inclusive += lower_sum;
  }
  const int32_t exclusive = *sum + inclusive - value;
  *sum += __shfl_sync(kWholeWarp, inclusive, kWarp - 1);
  return exclusive;
}

// Takes the next place of each lane's key; the places of equal keys are in the order of the lanes. A key of -1 takes
// none.
__device__ inline int32_t TakeNext(int32_t* next, int32_t key) {
  const unsigned peers = __match_any_sync(kWholeWarp, key);
  const unsigned lower = peers & ((1u << Lane()) - 1);
  const int32_t place = key < 0 ? 0 : next[key] + __popc(lower);
  __syncwarp();
  if (key >= 0 && lower == 0) next[key] = place + __popc(peers);
  __syncwarp();
  return place;
}

// Two results need no memory of their own. Where SortBinsKernel will write the starts of a bin's rows, this kernel
// stores the begin and end of the bin's part of each chunk. `rows`, the place of the values, has the row of each id.
template <typename Tables>
__global__ void PartitionKernel(Tables tables, SortShape shape, int32_t* row_start, int32_t* ids, int32_t* rows) {
  __shared__ int32_t next[kPartitionWarps][kMaxBins];
  const int warp = threadIdx.x / kWarp;
  for (int64_t block = blockIdx.x; block < shape.tables * shape.chunks; block += gridDim.x) {
    const int64_t table = block / shape.chunks;
    const int32_t chunk = int32_t(block % shape.chunks);
    const auto entries = tables[table];
    constexpr int kEntries = decltype(entries)::kEntries;
    const int64_t chunk_first = shape.chunk_start(0, chunk);
    const int64_t first = chunk_first + int64_t{warp} * shape.warp_entries;
    const int32_t warp_entries =
        int32_t(first < shape.entries ? min(int64_t{shape.warp_entries}, shape.entries - first) : 0);

    int32_t* warp_rows = rows + table * shape.entries + first;
    for (int32_t bin = Lane(); bin < shape.bins; bin += kWarp) next[warp][bin] = 0;
    __syncwarp();
    for (int32_t start = 0; start < warp_entries; start += kWarp * kEntries) {
      const int32_t i = start + Lane() * kEntries;
      Vector<int32_t, kEntries> found;
      for (int32_t& row : found.value) row = kNoRow;
      if (i < warp_entries) {
        entries.FindRows(int32_t((first + i) / kEntries), found.value);
        AsVector<kEntries>(warp_rows + i) = found;
      }
      for (const int32_t row : found.value) TakeNext(next[warp], shape.bin(row));
    }
    __syncthreads();
    if (warp == 0) {
      int32_t* ends = row_start + table * (int64_t{shape.rows} + 1) + 2 * chunk;
      int32_t sum = 0;
      for (int32_t first_bin = 0; first_bin < shape.bins; first_bin += kWarp) {
        const int32_t bin = first_bin + Lane();
        int32_t count = 0;
        for (int w = 0; w < kPartitionWarps; ++w) count += bin < shape.bins ? next[w][bin] : 0;
        int32_t start = ExclusiveSum(count, &sum);
        if (bin >= shape.bins) continue;
        ends[shape.first_row(bin)] = start;
        ends[shape.first_row(bin) + 1] = start + count;
        for (int w = 0; w < kPartitionWarps; ++w) {
          const int32_t warp_count = next[w][bin];
          next[w][bin] = start;
          start += warp_count;
        }
      }
    }
    __syncthreads();
    int32_t* chunk_ids = ids + shape.chunk_start(table, chunk);
    for (int32_t start = 0; start < warp_entries; start += kWarp) {
      const int32_t i = start + Lane();
      const int32_t bin = shape.bin(i < warp_entries ? warp_rows[i] : kNoRow), place = TakeNext(next[warp], bin);
      if (bin >= 0) chunk_ids[place] = int32_t(first + i);
    }
    __syncthreads();
  }
}

// The shared memory of a warp. The entries of its bin are in the order of their ids; they are not stored if there are
// more than kStaged.
template <typename Value>
struct SortedBin {
  int32_t next[kWindowRows];
  int16_t rows[kStaged];  // in the window; -1 outside
  Value values[kStaged];
  int16_t order[kStaged];  // indices of rows and values, in the order of the rows
};

// A warp sorts a bin. Counts and values are held in shared memory for a window of the bin's rows at a time; all of a
// bin's rows if the table has at most kMaxBins << kMinBinRowsLog2 rows.
template <typename Tables, typename Value>
__global__ void SortBinsKernel(Tables tables, SortShape shape, bool is_row_start_global, int32_t* row_start,
                               Value* values, const int32_t* ids) {
  __shared__ SortedBin<Value> shared[kSortWarps];
  SortedBin<Value>& own = shared[threadIdx.x / kWarp];
  int32_t* const next = own.next;
  for (int64_t bin_index = global_thread() / kWarp; bin_index < shape.tables * shape.bins;
       bin_index += grid_stride() / kWarp) {
    const int64_t table = bin_index / shape.bins;
    const int32_t bin = int32_t(bin_index % shape.bins), first_row = shape.first_row(bin);
    const int32_t rows = (bin + 1 < shape.bins ? shape.first_row(bin + 1) : shape.rows) - first_row;
    const auto entries = tables[table];
    int32_t* starts = row_start + table * (int64_t{shape.rows} + 1) + first_row;
    const int32_t table_start = is_row_start_global ? int32_t(table * shape.entries) : 0;

    int32_t part_start = 0, part_entries = 0, start = 0;  // start: of the window, after the entries of lower rows
    if (Lane() < shape.chunks) {
      const int32_t begin = starts[2 * Lane()], end = starts[2 * Lane() + 1];
      part_start = int32_t(shape.chunk_start(0, Lane()) + begin);
      part_entries = end - begin;
      start = begin;
    }
    const unsigned parts = __ballot_sync(kWholeWarp, part_entries > 0);
    int32_t bin_entries = part_entries;
    for (int lanes = kWarp / 2; lanes; lanes /= 2) {
      start += __shfl_xor_sync(kWholeWarp, start, lanes);
      bin_entries += __shfl_xor_sync(kWholeWarp, bin_entries, lanes);
    }
    const bool is_staged = bin_entries <= kStaged;
    const int32_t* table_ids = ids + table * shape.entries;

    for (int32_t first = 0; first < rows; first += kWindowRows) {
      const int32_t window_rows = min(kWindowRows, rows - first);
      auto for_each = [&](const auto& f) {
        int32_t index = Lane();
        for (unsigned left = parts; left; left &= left - 1) {
          const int chunk = kWarp - 1 - __clz(left & (~left + 1));  // the first that is left
          const int32_t* part = table_ids + __shfl_sync(kWholeWarp, part_start, chunk);
          const int32_t num_entries = __shfl_sync(kWholeWarp, part_entries, chunk);
          for (int32_t start = 0; start < num_entries; start += kWarp) {
            const int32_t i = start + Lane();
            const auto entry = entries(part[min(i, num_entries - 1)]);
            const int32_t row = entry.row - first_row - first;
            const bool is_in_window = i < num_entries && uint32_t(row) < uint32_t(window_rows);
            f(entry, is_in_window ? row : -1, index + start);
          }
          index += num_entries;
        }
      };
      for (int32_t row = Lane(); row < window_rows; row += kWarp) next[row] = 0;
      __syncwarp();
      for_each([&](const auto& entry, int32_t row, int32_t index) {
        TakeNext(next, row);
        if (is_staged && row >= 0) own.values[index] = entries.value(entry);
        if (is_staged && index < bin_entries) own.rows[index] = int16_t(row);
      });
      __syncwarp();
      int32_t sum = 0;
      for (int32_t row = Lane(); row - Lane() < window_rows; row += kWarp) {
        const int32_t place = ExclusiveSum(row < window_rows ? next[row] : 0, &sum);
        if (row >= window_rows) continue;
        next[row] = place;
        starts[first + row] = table_start + start + place;
      }
      __syncwarp();
      Value* window_values = values + table * shape.entries + start;
      if (is_staged) {
        for (int32_t start = 0; start < bin_entries; start += kWarp) {
          const int32_t i = start + Lane();
          const int32_t row = i < bin_entries ? own.rows[i] : -1, place = TakeNext(next, row);
          if (row >= 0) own.order[place] = int16_t(i);
        }
        __syncwarp();
        for (int32_t i = Lane(); i < sum; i += kWarp) window_values[i] = own.values[own.order[i]];
      } else {
        for_each([&](const auto& entry, int32_t row, int32_t) {
          const int32_t place = TakeNext(next, row);
          if (row >= 0) window_values[place] = entries.value(entry);
        });
      }
      __syncwarp();
      start += sum;
    }
    if (bin + 1 == shape.bins && Lane() == 0) starts[rows] = table_start + start;
  }
}

template <typename Tables, typename Value>
const char* SortByRow(const Device& device, const Tables& tables, const CsrTables<Value>& csr) {
  const SortShape shape(csr.tables, csr.rows, csr.entries, Tables::Table::kEntries);
  const char* failure =
      Launch<PartitionKernel<Tables>>(device, shape.tables * shape.chunks, tables, shape, csr.row_start, csr.workspace,
                                      reinterpret_cast<int32_t*>(csr.values));
  if (failure) return failure;
  constexpr int kSortThreads = kSortWarps * kWarp;
  const int64_t blocks = (shape.tables * shape.bins + kSortWarps - 1) / kSortWarps;
  return Launch<SortBinsKernel<Tables, Value>>(device, {blocks, kSortThreads, 0, 1}, tables, shape,
                                               csr.is_row_start_global, csr.row_start, csr.values, csr.workspace);
}

}  // namespace
}  // namespace dcn
