// The CUDA kernels of the cotangent of x of a deformable convolution that leaves the matrix products to XLA. They sort
// the samples of an image and offset group by location first; then each pixel of x gathers its sum.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "deform_conv/cuda_pixel_strips.h"
#include "deform_conv/cuda_samples.h"
#include "deform_conv/deform_conv.h"
#include "device.h"
#include "division.h"
#include "launch.h"
#include "scatter/cells.h"
#include "scatter/counting_sort.h"
#include "vector.h"

namespace dcn {
namespace {

// The operands of a sort, with divisors for its indices. A table has the samples of an image and offset group, of which
// an id is output pixel · taps + tap.
struct Tables {
  Sizes sizes;
  Positions positions;
  WideDivisor by_offset_groups;
  Divisor by_taps, by_columns, by_kernel_columns;

  Tables(const Sizes& sizes, const Positions& positions)
      : sizes(sizes),
        positions(positions),
        by_offset_groups(sizes.offset_groups),
        by_taps(sizes.taps()),
        by_columns(sizes.columns),
        by_kernel_columns(sizes.window.kernel[1]) {}
};

template <typename A>
class SamplesOfGroup {
 public:
  static constexpr int kEntries = 1;
  struct Entry {
    int32_t row, id;
    int64_t index;  // in `mask`
    A y, x;
  };

  __device__ SamplesOfGroup(const Tables& tables, int64_t table) : tables_(tables) {
    const Sizes& sizes = tables.sizes;
    const int64_t image = tables.by_offset_groups.Quotient(table), group = table - image * sizes.offset_groups;
    first_ =
        sizes.first_sample(tables.positions.origin) + SampleIndex(sizes, image * sizes.rows * sizes.columns, group, 0);
  }

  __device__ Entry operator()(int32_t id) const {
    const Sizes& sizes = tables_.sizes;
    const int32_t pixel = int32_t(tables_.by_taps.Quotient(uint32_t(id))), tap = id - pixel * sizes.taps();
    const int32_t row = int32_t(tables_.by_columns.Quotient(uint32_t(pixel)));
    const int32_t kernel_row = int32_t(tables_.by_kernel_columns.Quotient(uint32_t(tap)));
    const Vector<int64_t, 2> distance = {
        {int64_t{kernel_row} * sizes.window.dilation[0],
         (tap - int64_t{kernel_row} * sizes.window.kernel[1]) * sizes.window.dilation[1]}};
    const FirstTap first_tap(sizes, tables_.positions, row, pixel - row * sizes.columns);
    const int64_t index = first_ + SampleIndex(sizes, pixel, 0, tap);
    const BilinearCorners<A> corners = LocateSample<A>(sizes, tables_.positions, first_tap, index, distance);
    return {CellOf(corners), id, index, corners.y.fraction, corners.x.fraction};
  }

  __device__ void FindRows(int32_t id, int32_t* rows) const { rows[0] = (*this)(id).row; }
  __device__ SortedSample<A> value(const Entry& entry) const {
    return {entry.id, Mask<A>(tables_.positions, entry.index), entry.y, entry.x};
  }

 private:
  __device__ int32_t CellOf(const BilinearCorners<A>& corners) const {
    if (!corners.is_inside()) return kNoRow;
    return (corners.y.pixel[0] + 1) * int32_t(tables_.sizes.width + 1) + corners.x.pixel[0] + 1;
  }

  const Tables& tables_;
  int64_t first_;  // sample of the table, in `mask`
};

template <typename A>
struct SampleTables : Tables {
  using Table = SamplesOfGroup<A>;
  using Tables::Tables;

  __device__ Table operator[](int64_t table) const { return {*this, table}; }
};

// How the pixels of x are divided among warps. A subwarp has the channels of a pixel and offset group, N each. Where
// they are few, several subwarps take turns with the samples around the pixel.
struct Gather {
  GatherSizes sizes;
  int log2_subwarp, log2_lanes;  // of a subwarp; of all that have the same pixel and offset group
  int64_t group_channels;        // of an offset group
  int64_t pixels;                // of all images and offset groups of the part
  WideDivisor by_offset_groups, by_image_pixels;
  StripDivisors strips;

  Gather(const GatherSizes& sizes, int64_t vector)
      : sizes(sizes),
        log2_subwarp(0),
        group_channels(sizes.channels / sizes.offset_groups),
        pixels(sizes.images * sizes.offset_groups * sizes.pixels()),
        by_offset_groups(sizes.offset_groups),
        by_image_pixels(sizes.pixels()),
        strips(sizes.height, sizes.width) {
    constexpr int kLog2Warp = 5, kMinLog2Lanes = 3;  // eight samples in a row have 128 bytes
    while (log2_subwarp < kLog2Warp && (vector << log2_subwarp) < group_channels) ++log2_subwarp;
    log2_lanes = std::max(log2_subwarp, kMinLog2Lanes);
  }
};

// The samples around a pixel. With circular padding, the cells left and right of the first column are not neighbours in
// the table. They are two sides, each with its own cells; other pixels have one side.
struct CellsOfPixel {
  int64_t above, below;  // the left cells
  bool has_two_sides;
  int64_t from_left_to_right;

  __device__ CellsOfPixel(const GatherSizes& sizes, int64_t y, int64_t x)
      : has_two_sides(sizes.circular && x == 0), from_left_to_right(has_two_sides ? 1 - sizes.width : 1) {
    const int64_t left = has_two_sides ? sizes.width : x, top = sizes.circular && y == 0 ? sizes.height : y;
    above = top * (sizes.width + 1) + left;
    below = (y + 1) * (sizes.width + 1) + left;
  }

  __device__ int sides() const { return has_two_sides ? 2 : 1; }
  __device__ CellPair Above(int side, const int32_t* starts) const { return Pair(side, starts + above); }
  __device__ CellPair Below(int side, const int32_t* starts) const { return Pair(side, starts + below); }

 private:
  __device__ CellPair Pair(int side, const int32_t* left) const {
    const int32_t* const right = left + from_left_to_right;
    if (!has_two_sides) return {left[0], right[0], right[1]};
    return side == 0 ? CellPair{left[0], left[1], left[1]} : CellPair{right[0], right[0], right[1]};
  }
};

// Each subwarp computes N channels per lane of a pixel and offset group. It adds to d_x of the accumulator type, and
// replaces d_x of type T.
template <typename T, int N, typename Out>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 2 : 3)
    XCotangentKernel(Gather gather, const int32_t* cell_start, const SortedSample<Accumulator<T>>* samples_by_cell,
                     const int32_t* start, const T* d_columns, Out* d_x) {
  using A = Accumulator<T>;
  const GatherSizes& sizes = gather.sizes;
  const int subwarp = 1 << gather.log2_subwarp, lanes = 1 << gather.log2_lanes, lane = int(threadIdx.x) & (lanes - 1);
  const int32_t turn = lane >> gather.log2_subwarp, turns = lanes >> gather.log2_subwarp;
  const int64_t first_pixel = Clamped(start[0], sizes.images_of_x - sizes.images) * sizes.pixels();
  const int64_t first_table = Clamped(start[1], sizes.images_of_samples - sizes.images) * sizes.offset_groups;
  // A part that does not replace d_x may be some rows of an image, beside which samples of other rows are sorted.
  constexpr bool kHasOtherSamples = std::is_same_v<Out, A>;
  const SampleRange range = {uint32_t(Clamped(start[2], sizes.sorted_samples - sizes.samples)),
                             uint32_t(sizes.samples)};
  // All lanes of a warp exchange sums, also those past the end, which have no samples.
  for (int64_t first = global_thread() / kWarp * kWarp; first < gather.pixels << gather.log2_lanes;
       first += grid_stride()) {
    const int64_t number = (first + threadIdx.x % kWarp) >> gather.log2_lanes;
    const bool is_valid = number < gather.pixels;
    const int64_t table = is_valid ? gather.by_image_pixels.Quotient(number) : 0;
    const int64_t image = gather.by_offset_groups.Quotient(table), group = table - image * sizes.offset_groups;
    int64_t y, x;
    gather.strips.Locate(is_valid ? number - table * sizes.pixels() : 0, &y, &x);
    const CellsOfPixel cells(sizes, y, x);
    const int32_t* const starts = cell_start + (first_table + table) * (sizes.cells() + 1);
    const SortedSample<A>* const sorted = samples_by_cell + (first_table + table) * sizes.sorted_samples;
    // All lanes take as many steps as the first, whose channels come first.
    const int64_t first_channel = (lane & (subwarp - 1)) * N;
    for (int64_t c = first_channel; c - first_channel < gather.group_channels; c += subwarp * N) {
      const int64_t channel = group * gather.group_channels + c;
      const CotangentRows<T> cotangents(d_columns + image * sizes.samples * sizes.channels + channel, sizes.channels);
      const bool has_channel = is_valid && c < gather.group_channels;
      A sum[N] = {};
      for (int side = 0; has_channel && side < cells.sides(); ++side) {
        AddSamples<kHasOtherSamples>(sorted, cells.Above(side, starts), true, turn, turns, range, cotangents, sum);
        AddSamples<kHasOtherSamples>(sorted, cells.Below(side, starts), false, turn, turns, range, cotangents, sum);
      }
      for (int distance = subwarp; distance < lanes; distance *= 2) {
        for (int v = 0; v < N; ++v) sum[v] += __shfl_xor_sync(kWholeWarp, sum[v], distance);
      }
      if (!has_channel || turn > 0) continue;
      const int64_t pixel = first_pixel + image * sizes.pixels() + y * sizes.width + x;
      Vector<Out, N>& out = AsVector<N>(d_x + pixel * sizes.channels + channel);
      Vector<Out, N> total;
      if constexpr (std::is_same_v<Out, A>) {
        total = out;
        for (int v = 0; v < N; ++v) total.value[v] += sum[v];
      } else {
        for (int v = 0; v < N; ++v) total.value[v] = Out(sum[v]);
      }
      out = total;
    }
  }
}

}  // namespace

const char* SortSamples(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                        const CsrTables& tables) {
  return DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    return SortByRow<SortedSample<A>>(device, SampleTables<A>(sizes, positions), tables);
  });
}

const char* GatherSamples(Device& device, DType dtype, const GatherSizes& sizes, const CsrTables& tables,
                          const int32_t* start, const void* d_columns, bool is_rounded, void* d_x) {
  return DispatchVectors(dtype, sizes.channels / sizes.offset_groups, [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const Gather gather(sizes, N);
    const auto launch = [&](auto* out) {
      using Out = std::remove_pointer_t<decltype(out)>;
      return Launch<XCotangentKernel<T, N, Out>>(device, BlocksFor(gather.pixels << gather.log2_lanes), gather,
                                                 tables.row_start, static_cast<const SortedSample<A>*>(tables.values),
                                                 start, static_cast<const T*>(d_columns), out);
    };
    return is_rounded ? launch(static_cast<T*>(d_x)) : launch(static_cast<A*>(d_x));
  });
}

}  // namespace dcn
