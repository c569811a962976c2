// A stable counting sort of entries by row, into tables in CSR form. It uses no atomics, and its result is the same in
// every run. It takes two kernels, because a table may have too many rows to count them all in shared memory:
//
//   1. PartitionKernel: a thread block sorts a chunk of a table's entries by bin, which is a range of rows.
//   2. SortBinsKernel: a warp sorts a bin by row. Each lane searches the bin's parts of the chunks for its next entry.
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

// The work is divided among many warps, because each step of a warp waits for the loads of the one before. The counts
// of PartitionKernel take 48 KiB of shared memory, as much as a block can have without a request.
constexpr int kPartitionWarps = 12, kSortWarps = 4;
constexpr int32_t kMaxBins = 1024, kMaxChunks = kWarp, kChunkEntries = 4096;
constexpr int kMinBinRowsLog2 = 5, kMaxSharedRowsLog2 = 8;
// Of a bin on average, unless it would have too many rows: few enough to be staged, and six steps of a warp, so that
// the counts of the rows take less time than the entries. Not measured.
constexpr int32_t kBinEntries = 192;
constexpr int32_t kLastBinRows = 2 * kMaxChunks;  // how many the last bin has at least
// The rows in shared memory, per warp. The last bin has fewer than kLastBinRows rows more than the others.
constexpr int32_t kSharedRows = (1 << kMaxSharedRowsLog2) + kLastBinRows;
// The entries in shared memory, per warp: as many as a block has room for.
template <typename Value>
constexpr int32_t kStaged = sizeof(Value) <= 8 ? 576 : int32_t(800 * 8 / sizeof(Value));

// How a table is divided.
struct SortShape {
  int64_t tables;
  int32_t rows, entries;
  int32_t bins, bin_rows_log2;   // the last bin has at least LastBinRows, or all
  int32_t chunks, warp_entries;  // a warp's part of a chunk

  SortShape(int64_t tables, int32_t rows, int32_t entries, int item_entries)
      : tables(tables), rows(rows), entries(entries), bin_rows_log2(kMinBinRowsLog2) {
    while (bin_rows_log2 < kMaxSharedRowsLog2 && int64_t{entries} << bin_rows_log2 < int64_t{kBinEntries} * rows)
      ++bin_rows_log2;
    while (BinsOf(bin_rows_log2) > kMaxBins) ++bin_rows_log2;
    bins = int32_t(BinsOf(bin_rows_log2));
    // row_start has room for a bin's parts of all chunks, two numbers each.
    const int64_t most_chunks = std::min<int64_t>(LastBinRows(bin_rows_log2) / 2, (int64_t{rows} + 1) / 2);
    const int64_t wanted = std::min(CeilDiv(entries, kChunkEntries), most_chunks);
    const int64_t step = kWarp * item_entries;  // of a warp
    warp_entries = int32_t(CeilDiv(entries, std::max<int64_t>(wanted, 1) * kPartitionWarps * step) * step);
    chunks = wanted ? int32_t(CeilDiv(entries, int64_t{warp_entries} * kPartitionWarps)) : 0;
  }

  // How many rows the last bin has at least.
  static int32_t LastBinRows(int bin_rows_log2) { return std::min(1 << bin_rows_log2, kLastBinRows); }
  int64_t BinsOf(int bin_rows_log2) const {
    const int64_t bin_rows = int64_t{1} << bin_rows_log2;
    return std::max((rows + bin_rows - LastBinRows(bin_rows_log2)) >> bin_rows_log2, int64_t{1});
  }

  __device__ int32_t bin(int32_t row) const {  // -1 of kNoRow
    const int32_t bin = row >> bin_rows_log2;
    return bin < bins ? bin : bins - 1;
  }
  __device__ int32_t first_row(int32_t bin) const { return bin << bin_rows_log2; }
  // The index of the start of a table in row_start.
  __device__ int64_t first_row_start(int64_t table) const { return table * (int64_t{rows} + 1); }
  // The index of the begin and end of a bin's part of a chunk, which PartitionKernel stores in row_start. They are
  // where only the bin's warp writes in SortBinsKernel: the ends of its rows and, in the first bin, the start of the
  // table.
  __device__ int64_t part(int64_t table, int32_t chunk, int32_t bin) const {
    return first_row_start(table) + first_row(bin) + (bin > 0) + 2 * chunk;
  }
  __device__ int64_t chunk_start(int64_t table, int32_t chunk) const {
    return table * entries + int64_t{chunk} * warp_entries * kPartitionWarps;
  }
};

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
  const int32_t first_place = key < 0 ? 0 : next[key];
  __syncwarp();
  if (key >= 0 && lower == 0) next[key] = first_place + __popc(peers);
  __syncwarp();
  return first_place + __popc(lower);
}

// Two results need no memory of their own: the begin and end of a bin's part of each chunk are stored in row_start, and
// `bins`, in the memory of the values, has the bin of each id.
template <typename Tables>
__global__ void PartitionKernel(Tables tables, SortShape shape, int32_t* row_start, int32_t* ids, int32_t* bins) {
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

    int32_t* const table_bins = bins + table * shape.entries;
    for (int32_t bin = Lane(); bin < shape.bins; bin += kWarp) next[warp][bin] = 0;
    __syncwarp();
    for (int32_t step = 0; step < warp_entries; step += kWarp * kEntries) {
      const int32_t i = step + Lane() * kEntries;
      Vector<int32_t, kEntries> item_bins;
      for (int32_t& bin : item_bins.value) bin = -1;
      if (i < warp_entries) {
        const int32_t item = int32_t((first + i) / kEntries);
        int32_t item_rows[kEntries];
        entries.FindRows(item, item_rows);
        for (int entry = 0; entry < kEntries; ++entry) item_bins.value[entry] = shape.bin(item_rows[entry]);
        // Indexed as an array of vectors, because nvcc splits the store if it cannot derive the alignment.
        reinterpret_cast<Vector<int32_t, kEntries>*>(table_bins)[item] = item_bins;
      }
      for (const int32_t bin : item_bins.value) TakeNext(next[warp], bin);
    }
    __syncthreads();
    if (warp == 0) {
      int32_t sum = 0;
      for (int32_t first_bin = 0; first_bin < shape.bins; first_bin += kWarp) {
        const int32_t bin = first_bin + Lane();
        int32_t count = 0;
        for (int w = 0; w < kPartitionWarps; ++w) count += bin < shape.bins ? next[w][bin] : 0;
        int32_t place = ExclusiveSum(count, &sum);
        if (bin >= shape.bins) continue;
        int32_t* const part = row_start + shape.part(table, chunk, bin);
        part[0] = place;
        part[1] = place + count;
        for (int w = 0; w < kPartitionWarps; ++w) {
          const int32_t warp_count = next[w][bin];
          next[w][bin] = place;
          place += warp_count;
        }
      }
    }
    __syncthreads();
    int32_t* chunk_ids = ids + shape.chunk_start(table, chunk);
    constexpr int kLoads = 4;  // at once
    for (int32_t step = Lane(); step - Lane() < warp_entries; step += kLoads * kWarp) {
      int32_t entry_bins[kLoads];
      for (int k = 0; k < kLoads; ++k) {
        const int32_t i = step + k * kWarp;
        entry_bins[k] = i < warp_entries ? table_bins[first + i] : -1;
      }
      for (int k = 0; k < kLoads; ++k) {
        const int32_t bin = entry_bins[k], place = TakeNext(next[warp], bin);
        if (bin >= 0) chunk_ids[place] = int32_t(first + step + k * kWarp);
      }
    }
    __syncthreads();
  }
}

// The shared memory of a warp. The entries of its bin are in the order of their ids.
template <typename Value>
struct SortedBin {
  int32_t next[kSharedRows];
  int16_t rows[kStaged<Value>], ranks[kStaged<Value>];  // in the bin, and among the entries of the row
  Value values[kStaged<Value>];
  int16_t order[kStaged<Value>];  // indices of rows and values, in the order of the rows
};

// A warp sorts a bin: it counts the entries of each row, and then gives each entry the next place of its row. If the
// bin has few rows, `next` is in shared memory, and so are its entries if they are few. Else `next` is where the ends
// of the rows will be: when all entries have their places, the next place of a row is its end.
template <typename Tables, typename Value>
__global__ void SortBinsKernel(Tables tables, SortShape shape, bool is_row_start_global, int32_t* row_start,
                               Value* values, const int32_t* ids) {
  __shared__ SortedBin<Value> shared[kSortWarps];
  SortedBin<Value>& own = shared[threadIdx.x / kWarp];
  for (int64_t bin_index = global_thread() / kWarp; bin_index < shape.tables * shape.bins;
       bin_index += grid_stride() / kWarp) {
    const int64_t table = bin_index / shape.bins;
    const int32_t bin = int32_t(bin_index % shape.bins), first_row = shape.first_row(bin);
    const int32_t rows = (bin + 1 < shape.bins ? shape.first_row(bin + 1) : shape.rows) - first_row;
    const auto entries = tables[table];
    const int32_t* const table_ids = ids + table * shape.entries;
    int32_t* const row_ends = row_start + shape.first_row_start(table) + first_row + 1;
    int32_t bin_start = is_row_start_global ? int32_t(table * shape.entries) : 0;  // as row_start counts
    Value* const places = values + (is_row_start_global ? 0 : table * shape.entries);

    int32_t first_id = 0, part_entries = 0, lower_entries = 0;  // of this lane's chunk; lower: of lower bins
    if (Lane() < shape.chunks) {
      const int32_t* const part = row_start + shape.part(table, Lane(), bin);
      lower_entries = part[0];
      part_entries = part[1] - part[0];
      first_id = int32_t(shape.chunk_start(0, Lane()) + part[0]);
    }
    int32_t bin_entries = 0;
    const int32_t part_start = ExclusiveSum(part_entries, &bin_entries);  // where the part begins in the bin
    for (int lanes = kWarp / 2; lanes; lanes /= 2) {
      lower_entries += __shfl_xor_sync(kWholeWarp, lower_entries, lanes);
    }
    __syncwarp();  // the parts have been read
    if (bin == 0 && Lane() == 0) row_ends[-1] = bin_start;
    bin_start += lower_entries;

    // The entries of all parts, in their order.
    auto for_each_entry = [&](const auto& f) {
      int chunk = 0;  // the last whose part begins at this lane's index or before
      for (int32_t first = 0; first < bin_entries; first += kWarp) {
        const int32_t index = first + Lane(), bounded = min(index, bin_entries - 1);
        bool is_passed;
        do {
          const int32_t next_start = __shfl_sync(kWholeWarp, part_start, min(chunk + 1, kWarp - 1));
          is_passed = chunk + 1 < kWarp && next_start <= bounded;
          chunk += is_passed;
        } while (__any_sync(kWholeWarp, is_passed));
        const auto entry = entries(table_ids[__shfl_sync(kWholeWarp, first_id - part_start, chunk) + bounded]);
        f(entry, index < bin_entries ? entry.row - first_row : -1, index);
      }
    };
    auto sort = [&](int32_t* next, bool is_staged) {
      for (int32_t row = Lane(); row < rows; row += kWarp) next[row] = 0;
      __syncwarp();
      for_each_entry([&](const auto& entry, int32_t row, int32_t index) {
        const int32_t rank = TakeNext(next, row);
        if (!is_staged || row < 0) return;
        own.values[index] = entries.value(entry);
        own.rows[index] = int16_t(row);
        own.ranks[index] = int16_t(rank);
      });
      int32_t lower_rows_end = bin_start;
      for (int32_t first = 0; first < rows; first += kWarp) {
        const int32_t row = first + Lane(), count = row < rows ? next[row] : 0;
        const int32_t first_place = ExclusiveSum(count, &lower_rows_end);
        if (row >= rows) continue;
        row_ends[row] = first_place + count;
        next[row] = first_place;  // last, because it may be the same element
      }
      __syncwarp();
      if (!is_staged) {
        for_each_entry([&](const auto& entry, int32_t row, int32_t) {
          const int32_t place = TakeNext(next, row);
          if (row >= 0) places[place] = entries.value(entry);
        });
        return;
      }
      for (int32_t i = Lane(); i < bin_entries; i += kWarp)
        own.order[next[own.rows[i]] - bin_start + own.ranks[i]] = int16_t(i);
      __syncwarp();
      for (int32_t i = Lane(); i < bin_entries; i += kWarp) places[bin_start + i] = own.values[own.order[i]];
    };
    if (rows <= kSharedRows) {
      sort(own.next, bin_entries <= kStaged<Value>);
    } else {
      sort(row_ends, false);
    }
  }
}

template <typename Tables, typename Value>
const char* SortByRow(const Device& device, const Tables& tables, const CsrTables<Value>& csr) {
  const SortShape shape(csr.tables, csr.rows, csr.entries, Tables::Table::kEntries);
  const char* failure =
      Launch<PartitionKernel<Tables>>(device, {shape.tables * shape.chunks, kPartitionWarps * kWarp, 0, 1}, tables,
                                      shape, csr.row_start, csr.workspace, reinterpret_cast<int32_t*>(csr.values));
  if (failure) return failure;
  constexpr int kSortThreads = kSortWarps * kWarp;
  const int64_t blocks = CeilDiv(shape.tables * shape.bins, kSortWarps);
  return Launch<SortBinsKernel<Tables, Value>>(device, {blocks, kSortThreads, 0, 1}, tables, shape,
                                               csr.is_row_start_global, csr.row_start, csr.values, csr.workspace);
}

}  // namespace
}  // namespace dcn
