// The CUDA kernels of the cotangent of a deformable aggregation's value. They sort the samples of a batch and head by
// location first; then each pixel gathers its sum in a fixed order and without atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "aggregation/aggregation.h"
#include "aggregation/cuda_taps.h"
#include "device.h"
#include "division.h"
#include "launch.h"
#include "scatter/cells.h"
#include "scatter/counting_sort.h"
#include "vector.h"

namespace dcn {
namespace {

constexpr int kLog2Warp = 5;

// The rows of a table, by which samples are sorted. The cells of a small level have so many samples that one warp would
// sort most of a table. So each cell has as many rows as give a row no more than two samples on average. The samples of
// consecutive queries are in different rows of their cell.
struct TableRows {
  int32_t first_row[kMaxLevels];
  int32_t log2_split[kMaxLevels];  // of a cell, into rows
  int32_t count;

  explicit TableRows(const AggregationSizes& sizes) : count(0) {
    for (int32_t i = 0; i < sizes.num_levels; ++i) {
      const int64_t samples = sizes.queries() * sizes.levels[i].taps, cells = sizes.levels[i].cells();
      first_row[i] = count;
      log2_split[i] = 0;
      while (cells << (log2_split[i] + 1) <= samples) ++log2_split[i];
      count += int32_t(cells << log2_split[i]);
    }
  }

  __device__ int32_t FirstRow(int32_t level, int64_t cell) const {
    return first_row[level] + int32_t(cell << log2_split[level]);
  }
};

// The samples of a batch and head. An id is query · taps + tap.
template <typename A>
class SamplesOfHead {
 public:
  static constexpr int kEntries = 1;
  struct Entry {
    int32_t row, query;
    int64_t index;  // in `weights`
    A y, x;
  };

  __device__ SamplesOfHead(const Aggregation& aggregation, const TableRows& rows, int64_t table)
      : aggregation_(aggregation),
        rows_(rows),
        batch_(aggregation.by_heads.Quotient(table)),
        head_(table - batch_ * aggregation.sizes.heads) {}

  __device__ Entry operator()(int32_t id) const {
    const AggregationSizes& sizes = aggregation_.sizes;
    const int32_t query = int32_t(aggregation_.by_taps.Quotient(uint32_t(id))), tap = id - query * sizes.taps;
    int32_t level = 0;
    while (level + 1 < sizes.num_levels && tap >= sizes.levels[level + 1].first_tap) ++level;
    const int64_t index = QueryHead{batch_, query, head_}.index(sizes) * sizes.taps + tap;
    const BilinearCorners<A> corners = TapLocator<A>(aggregation_, query)(sizes.levels[level], tap, index);
    return {Row(level, corners, query), query, index, corners.y.fraction, corners.x.fraction};
  }

  __device__ void FindRows(int32_t id, int32_t* rows) const { rows[0] = (*this)(id).row; }
  __device__ SortedSample<A> value(const Entry& entry) const {
    return {entry.query, static_cast<const A*>(aggregation_.taps.weights)[entry.index], entry.y, entry.x};
  }

 private:
  __device__ int32_t Row(int32_t level, const BilinearCorners<A>& corners, int32_t query) const {
    if (!corners.is_inside()) return kNoRow;
    const int64_t cell =
        (corners.y.pixel[0] + 1) * (int64_t{aggregation_.sizes.levels[level].width} + 1) + corners.x.pixel[0] + 1;
    return rows_.FirstRow(level, cell) + (query & ((1 << rows_.log2_split[level]) - 1));
  }

  const Aggregation& aggregation_;
  const TableRows& rows_;
  int64_t batch_, head_;
};

// The tables of consecutive heads, over all batches.
template <typename A>
struct HeadTables {
  using Table = SamplesOfHead<A>;

  Aggregation aggregation;
  TableRows rows;
  int64_t first;

  __device__ Table operator[](int64_t table) const { return {aggregation, rows, first + table}; }
};

// The samples around a pixel: those of the cells above it and below it.
struct SamplesOfPixel {
  CellPair above, below;

  // `pixel` counts those of the level.
  __device__ SamplesOfPixel(const AggregationSizes& sizes, const TableRows& rows, const int32_t* row_start,
                            int32_t level, int64_t pixel) {
    const int64_t width = sizes.levels[level].width, cell = pixel + Quotient(pixel, width);  // above and left of it
    const auto pair = [&](int64_t first) {
      return CellPair{row_start[rows.FirstRow(level, first)], row_start[rows.FirstRow(level, first + 1)],
                      row_start[rows.FirstRow(level, first + 2)]};
    };
    above = pair(cell);
    below = pair(cell + width + 1);
    if (sizes.sampling != SamplingMethod::kDiscrete) return;
    // Only the top left corner is read.
    above.end = above.begin;
    below.begin = below.middle;
  }
};

// How the pixels of a table are divided among warps. A subwarp has the channels of a pixel. Where a pixel has
// many samples around it, several subwarps take turns with them. Where it has few, a subwarp has several pixels,
// because it takes longer to find its pixels than to add up their samples.
struct GatherShape {
  int log2_subwarp;
  int32_t log2_subwarps[kMaxLevels];  // of a pixel
  int32_t pixels_of_subwarp[kMaxLevels];
  int64_t first_warp[kMaxLevels];  // of a level, in those of a table
  int64_t warps;                   // of a table

  GatherShape(const AggregationSizes& sizes, int64_t vector) : log2_subwarp(0), warps(0) {
    constexpr int64_t kSubwarpSamples = 32;  // a good number, on average, of samples that a subwarp adds up
    constexpr int64_t kFewSamples = 8;       // of a pixel, on average
    constexpr int kMostPixels = 8;           // of a subwarp
    while (log2_subwarp < kLog2Warp && (vector << log2_subwarp) < sizes.channels) ++log2_subwarp;
    for (int32_t i = 0; i < sizes.num_levels; ++i) {
      const Level& level = sizes.levels[i];
      const int64_t samples = 4 * sizes.queries() * level.taps, pixels = int64_t{level.height} * level.width;
      log2_subwarps[i] = 0;
      while (log2_subwarp + log2_subwarps[i] < kLog2Warp && (pixels * kSubwarpSamples << log2_subwarps[i]) < samples)
        ++log2_subwarps[i];
      pixels_of_subwarp[i] = samples < kFewSamples * pixels ? kMostPixels : 1;
      first_warp[i] = warps;
      warps += CeilDiv(pixels << (log2_subwarp + log2_subwarps[i]), kWarp * pixels_of_subwarp[i]);
    }
  }
};

// Each subwarp computes N channels per lane of a pixel and head.
template <typename T, int N>
__global__ void GatherKernel(HeadTables<Accumulator<T>> tables, int64_t num_tables, GatherShape shape,
                             const int32_t* row_start, const SortedSample<Accumulator<T>>* samples_by_cell,
                             const T* d_out, bool is_wide, void* d_value) {
  using A = Accumulator<T>;
  const AggregationSizes& sizes = tables.aggregation.sizes;
  const int subwarp = 1 << shape.log2_subwarp, lane = int(threadIdx.x % kWarp);
  const int64_t samples = sizes.queries() * sizes.taps, query_elements = sizes.heads * sizes.channels;
  for (int64_t warp = global_thread() / kWarp; warp < num_tables * shape.warps; warp += grid_stride() / kWarp) {
    const int64_t table = Quotient(warp, shape.warps), head_of_all = tables.first + table;
    // From the last warp to the first: the pixels of the small levels, which come last, have the most samples.
    const int64_t warp_of_table = shape.warps - 1 - (warp - table * shape.warps);
    int32_t i = 0;
    while (i + 1 < sizes.num_levels && warp_of_table >= shape.first_warp[i + 1]) ++i;
    const Level& level = sizes.levels[i];
    const int log2_lanes = shape.log2_subwarp + shape.log2_subwarps[i];
    const int64_t first_step = (warp_of_table - shape.first_warp[i]) * shape.pixels_of_subwarp[i];
    const int32_t* const starts = row_start + table * (int64_t{tables.rows.count} + 1);
    const SortedSample<A>* const sorted = samples_by_cell + table * samples;
    const int64_t batch = tables.aggregation.by_heads.Quotient(head_of_all);
    const QueryHead first_query = {batch, 0, head_of_all - batch * sizes.heads};
    for (int32_t step = 0; step < shape.pixels_of_subwarp[i]; ++step) {  // a pixel of each subwarp at a time
      const int64_t pixel = ((first_step + step) * kWarp + lane) >> log2_lanes;
      const bool is_valid = pixel < int64_t{level.height} * level.width;
      const SamplesOfPixel around(sizes, tables.rows, starts, i, is_valid ? pixel : 0);
      for (int64_t first = 0; first < sizes.channels; first += subwarp * N) {
        const int64_t channel = first + (lane & (subwarp - 1)) * N;
        const CotangentRows<T> cotangents(d_out + first_query.index(sizes) * sizes.channels + channel, query_elements);
        const int32_t turn = (lane & ((1 << log2_lanes) - 1)) >> shape.log2_subwarp;
        A sum[N] = {};
        if (is_valid && channel < sizes.channels) {
          const int32_t turns = 1 << shape.log2_subwarps[i];
          AddSamples<false>(sorted, around.above, true, turn, turns, {}, cotangents, sum);
          AddSamples<false>(sorted, around.below, false, turn, turns, {}, cotangents, sum);
        }
        for (int lanes = subwarp; lanes < 1 << log2_lanes; lanes *= 2) {
          for (int v = 0; v < N; ++v) sum[v] += __shfl_xor_sync(kWholeWarp, sum[v], lanes);
        }
        if (!is_valid || channel >= sizes.channels || lane & ((1 << log2_lanes) - subwarp)) continue;
        const int64_t pixel_elements = (level.first_pixel + pixel) * query_elements;
        StoreSums<T>(sum, is_wide, d_value, FirstChannel(sizes, first_query) + pixel_elements + channel);
      }
    }
  }
}

}  // namespace

const char* ValueCotangent(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                           const void* d_out, bool is_wide, void* d_value, const CsrTables& room) {
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const GatherShape shape(sizes, N);
    HeadTables<A> tables = {Aggregation(sizes, taps), TableRows(sizes), 0};
    const auto sort_and_gather = [&](int64_t first, CsrTables csr) {
      tables.first = first;
      csr.rows = tables.rows.count;
      const char* const failure = SortByRow<SortedSample<A>>(device, tables, csr);
      if (failure) return failure;
      return Launch<GatherKernel<T, N>>(device, BlocksFor(csr.tables * shape.warps * kWarp), tables, csr.tables, shape,
                                        csr.row_start, static_cast<const SortedSample<A>*>(csr.values),
                                        static_cast<const T*>(d_out), is_wide, d_value);
    };
    return ForGroupsOfTables(room, sizes.batches * sizes.heads, sort_and_gather);
  });
}

}  // namespace dcn
