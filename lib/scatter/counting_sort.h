// A stable counting sort of entries by row, into tables in CSR form. Its result is the same in every run. It takes two
// kernels, because a table may have too many rows to count them all in shared memory:
//
//   1. PartitionKernel: a thread block sorts a share of a table's entries by bin, which is some neighbouring rows.
//   2. SortBinsKernel: a warp sorts a bin by row. The entries of a bin are a range of each share.
//
// Both count first, and then take the entries again in the order of their ids to find the place of each. The lanes of a
// warp that have the same bin or row find each other by __match_any_sync. Only counts are added up by atomics: they are
// integers, so their order does not matter.
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
#include "scatter/tables.h"
#include "vector.h"

namespace dcn {

constexpr int32_t kNoRow = -1;

namespace {

// The work is divided among many warps, because each step of a warp waits for the loads of the one before. A warp of
// PartitionKernel has a count for each bin, and those of a block take up to 48 KiB of shared memory: as much as a block
// can have without a request. A block has more warps where all tables together have few entries.
constexpr int kPartitionWarps = 12, kMaxPartitionWarps = kWarp, kSortWarps = 4;
constexpr int64_t kFewEntries = 1 << 19;
constexpr int32_t kPartitionCounts = 48 * 1024 / sizeof(int32_t) - kMaxPartitionWarps;
constexpr int32_t kMaxBins = 1024, kMaxShares = kWarp, kShareEntries = 4096;
constexpr int kMinBinRowsLog2 = 5, kMaxSharedRowsLog2 = 8;
// Of a bin on average, unless it would have more than 2^kMaxBalancedRowsLog2 rows: few enough to be staged, and six
// steps of a warp, so that the counts of the rows take less time than the entries. A table with few entries may have
// many in some rows, as an attention has in its small levels. There, bins of more rows have too many entries: on an
// H200, the sort of an attention's decoder took twice as long with 256 rows.
constexpr int32_t kBinEntries = 192;
constexpr int kMaxBalancedRowsLog2 = 7;
constexpr int32_t kLastBinRows = 2 * kMaxShares;  // room in row_start for a range of each share: see LastBinRows
// The rows in shared memory, per warp. The last bin has fewer than kLastBinRows rows more than the others.
constexpr int32_t kSharedRows = (1 << kMaxSharedRowsLog2) + kLastBinRows;
// The entries in shared memory, per warp: as many as a block has room for.
template <typename Value>
constexpr int32_t kStaged = sizeof(Value) <= 8 ? 576 : int32_t(800 * 8 / sizeof(Value));

// How a table is divided.
struct SortShape {
  int64_t tables;
  int32_t rows, entries;
  int32_t bins, bin_rows_log2;   // 2^bin_rows_log2 rows in each bin but the last
  int32_t warps;                 // of a share
  int32_t shares, warp_entries;  // warp_entries: those of a share that a warp sorts

  SortShape(int64_t tables, int32_t rows, int32_t entries, int item_entries)
      : tables(tables), rows(rows), entries(entries), bin_rows_log2(kMinBinRowsLog2) {
    while (bin_rows_log2 < kMaxBalancedRowsLog2 && int64_t{entries} << bin_rows_log2 < int64_t{kBinEntries} * rows)
      ++bin_rows_log2;
    while (BinsOf(bin_rows_log2) > kMaxBins) ++bin_rows_log2;
    bins = int32_t(BinsOf(bin_rows_log2));
    // row_start has room for a bin's ranges of all shares, two numbers each.
    const int64_t most_shares = std::min<int64_t>(LastBinRows(bin_rows_log2) / 2, (int64_t{rows} + 1) / 2);
    const int64_t wanted = std::min(CeilDiv(entries, kShareEntries), most_shares);
    const int64_t step_entries = kWarp * item_entries;  // of a warp
    const int64_t share_steps = CeilDiv(entries, std::max<int64_t>(wanted, 1) * step_entries);
    const int most_warps = tables * entries < kFewEntries ? kMaxPartitionWarps : kPartitionWarps;
    warps = int32_t(std::clamp<int64_t>(share_steps, kPartitionWarps, most_warps));
    warps = std::min(warps, kPartitionCounts / bins);
    warp_entries = int32_t(CeilDiv(entries, std::max<int64_t>(wanted, 1) * warps * step_entries) * step_entries);
    shares = wanted ? int32_t(CeilDiv(entries, int64_t{warp_entries} * warps)) : 0;
  }

  // The fewest rows of the last bin, unless the table has only this bin.
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
  // PartitionKernel stores the begin and the end of a bin's range of a share in row_start, from this index on. In
  // SortBinsKernel, the bin's warp replaces them by the ends of its rows and, in the first bin, the table's start.
  __device__ int64_t range(int64_t table, int32_t share, int32_t bin) const {
    return first_row_start(table) + first_row(bin) + (bin > 0) + 2 * share;
  }
  __device__ int64_t share_start(int64_t table, int32_t share) const {
    return table * entries + int64_t{share} * warp_entries * warps;
  }
};

// The exclusive sum over the lanes, plus *sum, to which the sum of all lanes is added. Loops that call this are not
// unrolled: each call waits for the one before, and its shuffles compile to much code.
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

// Sorts the ids of each share by bin. `ranges` has where each bin begins and ends in each share, and `bins` has the bin
// of each id. They are in the memory of row_start and of the values, which SortBinsKernel writes.
template <typename Tables>
__global__ void __launch_bounds__(kMaxPartitionWarps* kWarp)
    PartitionKernel(Tables tables, SortShape shape, int32_t* ranges, int32_t* ids, int32_t* bins) {
  __shared__ int32_t counts[kPartitionCounts];  // of each warp and bin
  __shared__ int32_t totals[kMaxPartitionWarps];
  const int warp = threadIdx.x / kWarp;
  int32_t* const next = counts + warp * shape.bins;
  // The bins that the warp scans.
  const int32_t warp_bins = (shape.bins + shape.warps * kWarp - 1) / (shape.warps * kWarp) * kWarp;
  const int32_t first_bin = warp * warp_bins, end_bin = min(first_bin + warp_bins, shape.bins);
  for (int64_t block = blockIdx.x; block < shape.tables * shape.shares; block += gridDim.x) {
    const int64_t table = block / shape.shares;
    const int32_t share = int32_t(block % shape.shares);
    const auto entries_of_table = tables[table];
    constexpr int kEntries = decltype(entries_of_table)::kEntries;
    const int64_t first = shape.share_start(0, share) + int64_t{warp} * shape.warp_entries;
    const int32_t warp_entries =
        int32_t(first < shape.entries ? min(int64_t{shape.warp_entries}, shape.entries - first) : 0);

    int32_t* const table_bins = bins + table * shape.entries;
    for (int32_t bin = Lane(); bin < shape.bins; bin += kWarp) next[bin] = 0;
    __syncwarp();
    for (int32_t begin = 0; begin < warp_entries; begin += kWarp * kEntries) {
      const int32_t i = begin + Lane() * kEntries;
      Vector<int32_t, kEntries> item_bins;
      for (int32_t& bin : item_bins.value) bin = -1;
      if (i < warp_entries) {
        const int32_t item = int32_t((first + i) / kEntries);
        int32_t item_rows[kEntries];
        entries_of_table.FindRows(item, item_rows);
        for (int entry = 0; entry < kEntries; ++entry) item_bins.value[entry] = shape.bin(item_rows[entry]);
        // Indexed as an array of vectors, because nvcc splits the store if it cannot derive the alignment.
        reinterpret_cast<Vector<int32_t, kEntries>*>(table_bins)[item] = item_bins;
      }
      for (const int32_t bin : item_bins.value) {
        if (bin >= 0) atomicAdd(next + bin, 1);
      }
    }
    __syncthreads();
    int32_t total = 0, sum = 0;
    for (int32_t bin = first_bin + Lane(); bin < end_bin; bin += kWarp) {
      for (int w = 0; w < shape.warps; ++w) total += counts[w * shape.bins + bin];
    }
    ExclusiveSum(total, &sum);
    if (Lane() == 0) totals[warp] = sum;
    __syncthreads();
    sum = 0;
    ExclusiveSum(Lane() < warp ? totals[Lane()] : 0, &sum);
#pragma unroll 1
    for (int32_t begin = first_bin; begin < end_bin; begin += kWarp) {
      const int32_t bin = begin + Lane();
      int32_t count = 0;
#pragma unroll 1  // a thread has 64 registers at most in a block of 1024
      for (int w = 0; w < shape.warps; ++w) count += bin < end_bin ? counts[w * shape.bins + bin] : 0;
      int32_t place = ExclusiveSum(count, &sum);
      if (bin >= end_bin) continue;
      int32_t* const range = ranges + shape.range(table, share, bin);
      range[0] = place;
      range[1] = place + count;
#pragma unroll 1
      for (int w = 0; w < shape.warps; ++w) {
        const int32_t warp_count = counts[w * shape.bins + bin];
        counts[w * shape.bins + bin] = place;
        place += warp_count;
      }
    }
    __syncthreads();
    int32_t* share_ids = ids + shape.share_start(table, share);
    constexpr int kLoads = 4;  // at once
    for (int32_t lane_begin = Lane(); lane_begin - Lane() < warp_entries; lane_begin += kLoads * kWarp) {
      int32_t entry_bins[kLoads];
      for (int k = 0; k < kLoads; ++k) {
        const int32_t i = lane_begin + k * kWarp;
        entry_bins[k] = i < warp_entries ? table_bins[first + i] : -1;
      }
      for (int k = 0; k < kLoads; ++k) {
        const int32_t bin = entry_bins[k], place = TakeNext(next, bin);
        if (bin >= 0) share_ids[place] = int32_t(first + lane_begin + k * kWarp);
      }
    }
    __syncthreads();
  }
}

// The entries of a bin, in the order of their ids. Lane i has the bin's range of share i.
template <typename Table>
class BinEntries {
 public:
  __device__ BinEntries(const Table& entries_of_table, const SortShape& shape, int64_t table, int32_t bin,
                        const int32_t* row_start, const int32_t* ids)
      : entries_of_table_(entries_of_table), ids_(ids + table * shape.entries), first_row_(shape.first_row(bin)) {
    int32_t first = 0, range_entries = 0;
    if (Lane() < shape.shares) {
      const int32_t* const range = row_start + shape.range(table, Lane(), bin);
      lower_entries = range[0];
      range_entries = range[1] - range[0];
      first = int32_t(shape.share_start(0, Lane()) + range[0]);
    }
    range_start_ = ExclusiveSum(range_entries, &count);
    first_ = first - range_start_;
    for (int lanes = kWarp / 2; lanes; lanes /= 2) {
      lower_entries += __shfl_xor_sync(kWholeWarp, lower_entries, lanes);
    }
  }

  __device__ auto value(const typename Table::Entry& entry) const { return entries_of_table_.value(entry); }

  // Calls f(entry, row, index) with an entry in each lane, its row in the bin and its index in the bin. In lanes past
  // the last entry, the row is -1.
  template <typename F>
  __device__ void ForEach(const F& f) const {
    int share = 0;  // the last whose range begins at this lane's index or before
    const auto id_at = [&](int32_t first) {
      const int32_t bounded = min(first + Lane(), count - 1);
      bool is_passed;
      do {
        const int32_t next_start = __shfl_sync(kWholeWarp, range_start_, min(share + 1, kWarp - 1));
        is_passed = share + 1 < kWarp && next_start <= bounded;
        share += is_passed;
      } while (__any_sync(kWholeWarp, is_passed));
      return ids_[__shfl_sync(kWholeWarp, first_, share) + bounded];
    };
    if (count == 0) return;
    int32_t id = id_at(0);
    for (int32_t first = 0; first < count; first += kWarp) {
      const auto entry = entries_of_table_(id);
      if (first + kWarp < count) id = id_at(first + kWarp);
      const int32_t index = first + Lane();
      f(entry, index < count ? entry.row - first_row_ : -1, index);
    }
  }

  int32_t count = 0, lower_entries = 0;  // of the bin; of all lower bins of the table

 private:
  const Table& entries_of_table_;
  const int32_t* const ids_;
  const int32_t first_row_;
  int32_t range_start_;  // where the lane's range begins in the bin
  int32_t first_;        // the index in ids_ of the lane's range, less range_start_
};

// The shared memory of a warp. The entries of its bin are in the order of their ids.
template <typename Value>
struct SortedBin {
  int32_t next[kSharedRows];
  int16_t rows[kStaged<Value>], ranks[kStaged<Value>];  // in the bin, and among the entries of the row
  Value values[kStaged<Value>];
  int16_t order[kStaged<Value>];  // indices of rows and values, in the order of the rows
};

// Replaces the number of entries of each row in `next` by the place of the first, which is where the rows before it
// end, and stores where each row ends. `next` may be `row_ends`.
__device__ inline void FindPlaces(int32_t rows, int32_t bin_start, int32_t* next, int32_t* row_ends) {
  int32_t lower_rows_end = bin_start;
#pragma unroll 1
  for (int32_t first = 0; first < rows; first += kWarp) {
    const int32_t row = first + Lane(), count = row < rows ? next[row] : 0;
    const int32_t first_place = ExclusiveSum(count, &lower_rows_end);
    if (row >= rows) continue;
    row_ends[row] = first_place + count;
    next[row] = first_place;  // last, because it may be row_ends[row]
  }
  __syncwarp();
}

// Counts the entries of each row of a bin, and then gives each entry the next place of its row. `next` may be
// `row_ends`: when all entries have their places, the next place of a row is its end. The entries are computed twice,
// or once if they are staged, that is stored in shared memory until all rows are counted.
template <typename Entries, typename Value>
__device__ void SortBin(const Entries& entries, int32_t rows, int32_t bin_start, bool is_staged,
                        SortedBin<Value>& staged, int32_t* next, int32_t* row_ends, Value* places) {
  for (int32_t row = Lane(); row < rows; row += kWarp) next[row] = 0;
  __syncwarp();
#pragma unroll 1  // so that the code of an entry is compiled once
  for (int pass = 0; pass < (is_staged ? 1 : 2); ++pass) {
    entries.ForEach([&](const auto& entry, int32_t row, int32_t index) {
      const int32_t rank_or_place = TakeNext(next, row);
      if (row < 0 || (pass == 0 && !is_staged)) return;
      const Value value = entries.value(entry);
      if (is_staged) {
        staged.values[index] = value;
        staged.rows[index] = int16_t(row);
        staged.ranks[index] = int16_t(rank_or_place);
      } else {
        places[rank_or_place] = value;
      }
    });
    if (pass == 0) FindPlaces(rows, bin_start, next, row_ends);
  }
  if (!is_staged) return;
  for (int32_t i = Lane(); i < entries.count; i += kWarp) {
    staged.order[next[staged.rows[i]] - bin_start + staged.ranks[i]] = int16_t(i);
  }
  __syncwarp();
  for (int32_t i = Lane(); i < entries.count; i += kWarp) places[bin_start + i] = staged.values[staged.order[i]];
}

// A warp sorts a bin. It counts the rows in shared memory if they are few, and else where the ends of the rows will be.
template <typename Tables, typename Value>
__global__ void SortBinsKernel(Tables tables, SortShape shape, int32_t* row_start, Value* values, const int32_t* ids) {
  __shared__ SortedBin<Value> shared[kSortWarps];
  SortedBin<Value>& own = shared[threadIdx.x / kWarp];
  for (int64_t i = global_thread() / kWarp; i < shape.tables * shape.bins; i += grid_stride() / kWarp) {
    const int64_t table = i / shape.bins;
    const int32_t bin = int32_t(i % shape.bins), first_row = shape.first_row(bin);
    const int32_t rows = (bin + 1 < shape.bins ? shape.first_row(bin + 1) : shape.rows) - first_row;
    const auto entries_of_table = tables[table];
    const BinEntries bin_entries(entries_of_table, shape, table, bin, row_start, ids);
    __syncwarp();  // the ranges have been read
    int32_t* const row_ends = row_start + shape.first_row_start(table) + first_row + 1;
    if (bin == 0 && Lane() == 0) row_ends[-1] = 0;
    const int32_t bin_start = bin_entries.lower_entries;
    Value* const places = values + table * shape.entries;
    if (rows > kSharedRows) {
      SortBin(bin_entries, rows, bin_start, false, own, row_ends, row_ends, places);
    } else {
      SortBin(bin_entries, rows, bin_start, bin_entries.count <= kStaged<Value>, own, own.next, row_ends, places);
    }
  }
}

template <typename Value, typename Tables>
const char* SortByRow(const Device& device, const Tables& tables, const CsrTables& csr) {
  const SortShape shape(csr.tables, int32_t(csr.rows), int32_t(csr.entries), Tables::Table::kEntries);
  const char* failure =
      Launch<PartitionKernel<Tables>>(device, {shape.tables * shape.shares, shape.warps * kWarp}, tables, shape,
                                      csr.row_start, csr.workspace, static_cast<int32_t*>(csr.values));
  if (failure) return failure;
  constexpr int kSortThreads = kSortWarps * kWarp;
  const int64_t blocks = CeilDiv(shape.tables * shape.bins, kSortWarps);
  return Launch<SortBinsKernel<Tables, Value>>(device, {blocks, kSortThreads}, tables, shape, csr.row_start,
                                               static_cast<Value*>(csr.values), csr.workspace);
}

// Calls f for consecutive groups of `all` tables, each as large as `room` holds, with the number of the first table and
// the arrays. Without tables, f is called once: XLA rejects a captured graph without kernels.
template <typename F>
const char* ForGroupsOfTables(const CsrTables& room, int64_t all, const F& f) {
  const char* failure = nullptr;
  int64_t first = 0;
  do {
    CsrTables group = room;
    group.tables = std::min(room.tables, all - first);
    failure = f(first, group);
    first += group.tables;
  } while (!failure && first < all);
  return failure;
}

}  // namespace
}  // namespace dcn
