// The CUDA kernels of the cotangent of a sampling's images. They sort what samples read by pixel first; then each pixel
// gathers its sum in a fixed order and without atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "device.h"
#include "division.h"
#include "launch.h"
#include "sampling/cuda_point.h"
#include "sampling/sampling.h"
#include "scatter/counting_sort.h"
#include "vector.h"

namespace dcn {
namespace {

// The taps of an image's samples, whose rows are the pixels. An id is point · taps + tap.
template <typename A, typename S>
class TapsOfImage {
 public:
  static constexpr int kEntries = S::kTaps;
  struct Entry {
    int32_t row, point;
    A weight;
  };

  __device__ TapsOfImage(const SamplingSizes& sizes, const Coordinates<const A>& locations, int64_t batch)
      : sizes_(sizes), locations_(locations), batch_(batch) {}

  __device__ Entry operator()(int32_t id) const {
    const int32_t point = id / kEntries, tap = id % kEntries;
    const LocatedPoint<A, S> located(sizes_, locations_, batch_, point);
    return {located.pixel(sizes_, tap), point, located.weight(sizes_.rules.interpolation, tap)};
  }
  __device__ void FindRows(int32_t point, int32_t* rows) const {
    LocatedPoint<A, S>(sizes_, locations_, batch_, point).FindPixels(sizes_, rows);
  }
  __device__ SortedTap<A> value(const Entry& entry) const { return {entry.point, entry.weight}; }

 private:
  const SamplingSizes& sizes_;
  const Coordinates<const A>& locations_;
  int64_t batch_;
};

// The tables of consecutive images.
template <typename A, typename S>
struct TapTables {
  using Table = TapsOfImage<A, S>;

  SamplingSizes sizes;
  Coordinates<const A> locations;
  int64_t first;

  __device__ Table operator[](int64_t table) const { return {sizes, locations, first + table}; }
};

// The sorted taps of consecutive images, and what the gather kernels add up and store.
template <typename T>
struct TapRows {
  using A = Accumulator<T>;

  SamplingSizes sizes;
  int64_t first_image, images;
  const int32_t* row_start;
  const SortedTap<A>* taps;
  const T* d_out;
  bool is_wide;
  void* d_x;
  WideDivisor by_pixels;

  // The taps of one pixel.
  struct Row {
    const SortedTap<A>* taps;
    int32_t begin, end;
    const T* d_out;  // of the image
  };
  __device__ Row operator[](int64_t pixel_of_all) const {
    const int64_t pixels = sizes.pixels(), image = by_pixels.Quotient(pixel_of_all);
    const int32_t* const start = row_start + image * (pixels + 1) + pixel_of_all - image * pixels;
    return {taps + image * sizes.sorted_entries(), start[0], start[1],
            d_out + (first_image + image) * sizes.points * sizes.channels};
  }

  // `first_point`: the cotangents of the image's first point, at the channels that are added.
  template <int N>
  __device__ void Add(const Row& row, int64_t i, const T* first_point, A (&sum)[N]) const {
    const SortedTap<A> tap = row.taps[i];
    const uint64_t distance = uint64_t{uint32_t(tap.point)} * uint32_t(sizes.channels * sizeof(T));
    const char* const address = reinterpret_cast<const char*>(first_point) + distance;
    const Vector<A, N> d = Widened(AsVector<N>(reinterpret_cast<const T*>(address)));
    for (int v = 0; v < N; ++v) sum[v] += tap.weight * d.value[v];
  }

  template <int N>
  __device__ void Store(int64_t pixel_of_all, int64_t channel, const A (&sum)[N]) const {
    const int64_t element = (first_image * sizes.pixels() + pixel_of_all) * sizes.channels + channel;
    StoreSums<T>(sum, is_wide, d_x, element);
  }
};

// A pixel with more taps is added up by a warp.
constexpr int32_t kLongRow = 16 * kWarp;

// Each thread computes N channels of a pixel.
template <typename T, int N>
__global__ void GatherTapsKernel(TapRows<T> rows, WideDivisor by_vectors) {
  const int64_t vectors = rows.sizes.channels / N, items = rows.images * rows.sizes.pixels() * vectors;
  for (int64_t item = global_thread(); item < items; item += grid_stride()) {
    const int64_t pixel = by_vectors.Quotient(item), channel = (item - pixel * vectors) * N;
    const auto row = rows[pixel];
    if (row.end - row.begin > kLongRow) continue;
    Accumulator<T> sum[N] = {};
    for (int32_t i = row.begin; i < row.end; ++i) rows.Add(row, i, row.d_out + channel, sum);
    rows.Store(pixel, channel, sum);
  }
}

__device__ inline int First(unsigned lanes) { return kWarp - 1 - __clz(lanes & (~lanes + 1)); }

// The lanes of a warp take turns with the taps of each of its pixels that GatherTapsKernel leaves out.
template <typename T, int N>
__global__ void GatherLongRowsKernel(TapRows<T> rows) {
  const int64_t pixels = rows.images * rows.sizes.pixels();
  for (int64_t first = global_thread() - Lane(); first < pixels; first += grid_stride()) {
    const auto own = rows[min(first + Lane(), pixels - 1)];
    const bool is_long = first + Lane() < pixels && own.end - own.begin > kLongRow;
    for (unsigned left = __ballot_sync(kWholeWarp, is_long); left; left &= left - 1) {
      const int64_t pixel = first + First(left);
      const auto row = rows[pixel];
      for (int64_t channel = 0; channel < rows.sizes.channels; channel += N) {
        Accumulator<T> sum[N] = {};
        for (int64_t i = row.begin + Lane(); i < row.end; i += kWarp) rows.Add(row, i, row.d_out + channel, sum);
        for (int distance = 1; distance < kWarp; distance *= 2) {
          for (int v = 0; v < N; ++v) sum[v] += __shfl_xor_sync(kWholeWarp, sum[v], distance);
        }
        if (Lane() == 0) rows.Store(pixel, channel, sum);
      }
    }
  }
}

}  // namespace

const char* SamplingXCotangent(Device& device, DType dtype, const SamplingSizes& sizes,
                               const Coordinates<const void>& locations, const void* d_out, bool is_wide, void* d_x,
                               const CsrTables& room) {
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const auto sort_and_gather = [&](int64_t first, const CsrTables& csr) {
      const char* failure = DispatchShape(sizes, [&](auto shape) {
        const TapTables<A, decltype(shape)> tables = {sizes, locations.As<const A>(), first};
        return SortByRow<SortedTap<A>>(device, tables, csr);
      });
      if (failure) return failure;
      const auto* const taps = static_cast<const SortedTap<A>*>(csr.values);
      const TapRows<T> rows = {sizes,         first, csr.tables,
                               csr.row_start, taps,  static_cast<const T*>(d_out),
                               is_wide,       d_x,   WideDivisor(sizes.pixels())};
      const int64_t pixels = csr.tables * sizes.pixels(), vectors = sizes.channels / N;
      failure = Launch<GatherTapsKernel<T, N>>(device, BlocksFor(pixels * vectors), rows, WideDivisor(vectors));
      return failure ? failure : Launch<GatherLongRowsKernel<T, N>>(device, BlocksFor(pixels), rows);
    };
    return ForGroupsOfTables(room, sizes.batches, sort_and_gather);
  });
}

}  // namespace dcn
