// The CUDA kernels of the sampling of images. A few lanes have the channels of a point; each of them locates it. The
// cotangent of x sorts what samples read by pixel first; then each pixel gathers its sum in a fixed order and without
// atomics.
#include "sampling.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "counting_sort.h"
#include "device.h"
#include "division.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

// The lanes of a point. They are few, because each of them locates it.
constexpr int kMaxLanes = 4;

int LanesOf(int64_t channels, int vector) {
  int lanes = 1;
  while (lanes < kMaxLanes && lanes * vector < channels) lanes *= 2;
  return lanes;
}

// The axes of an image, of which 2 or 4 pixels each are read. An image of one axis has another one of one pixel, and
// samples that read one pixel of an axis do not read the second one: kernels of their own would not be much faster.
template <int kDimsOfImage, int kLog2AxisTaps>
struct Shape {
  static constexpr int kDims = kDimsOfImage, kAxisTaps = 1 << kLog2AxisTaps, kTaps = 1 << kLog2AxisTaps * kDims;
  static __device__ int AxisTap(int tap, int axis) {
    return tap >> kLog2AxisTaps * (kDims - 1 - axis) & (kAxisTaps - 1);
  }
};

// Calls f with the Shape of a sampling.
template <typename F>
const char* DispatchShape(const SamplingSizes& sizes, const F& f) {
  if (sizes.dims == 3) return f(Shape<3, 1>());
  return sizes.rules.interpolation == Interpolation::kCubic ? f(Shape<2, 2>()) : f(Shape<2, 1>());
}

// A located point: on each axis, and the pixels of the image that its sample reads as its taps, -1 if none.
template <typename A, typename S>
struct LocatedPoint {
  AxisTaps<A> axis[S::kDims];
  A slope[S::kDims];  // of the position in the coordinate
  int32_t pixel[S::kTaps];

  __device__ LocatedPoint(const SamplingSizes& sizes, const A* locations, int64_t batch, int64_t point) {
    int32_t axis_pixel[S::kDims][S::kAxisTaps];
    const SamplingRules& rules = sizes.rules;
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      const int32_t size = sizes.size[a];
      const AxisScale<A> scale(rules.units, size);
      // On an axis that the image lacks, the first tap reads its pixel.
      const bool exists = a < sizes.dims;
      const A coordinate = exists ? locations[sizes.coordinate(batch, point, a)] : -scale.shift;
      const AxisPosition<A> folded = FoldPosition(scale.position(coordinate), size, rules.units, rules.fold);
      axis[a] = LocateTaps(folded.position, size, rules);
      slope[a] = axis[a].is_near ? scale.scale * folded.slope : A(0);
#pragma unroll
      for (int tap = 0; tap < S::kAxisTaps; ++tap) {
        const bool is_read = axis[a].is_read && tap < rules.taps();
        axis_pixel[a][tap] = is_read ? FoldPixel(axis[a].first + tap, size, rules.outside) : -1;
      }
    }
#pragma unroll
    for (int tap = 0; tap < S::kTaps; ++tap) {
      int32_t index = 0, sign = 0;
#pragma unroll
      for (int a = 0; a < S::kDims; ++a) {
        const int32_t of_axis = axis_pixel[a][S::AxisTap(tap, a)];
        index = index * sizes.size[a] + of_axis;
        sign |= of_axis;
      }
      pixel[tap] = sign < 0 || is_nan() ? -1 : index;
    }
  }

  __device__ bool is_nan() const {
    bool found = false;
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) found |= axis[a].fraction != axis[a].fraction;
    return found;
  }
  __device__ A unread_value() const { return is_nan() ? A(NAN) : A(0); }

  __device__ A weight(Interpolation interpolation, int tap) const {
    A product = A(1);
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      product *= TapWeight(interpolation, S::AxisTap(tap, a), axis[a].fraction);
    }
    return product;
  }
  // The derivative of the weight in the coordinate of an axis.
  __device__ A weight_slope(Interpolation interpolation, int tap, int of) const {
    A product = slope[of];
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      product *= a == of ? TapSlope(interpolation, S::AxisTap(tap, a), axis[a].fraction)
                         : TapWeight(interpolation, S::AxisTap(tap, a), axis[a].fraction);
    }
    return product;
  }
};

// Loads N channels of the pixel of each tap; zeros if there is none.
template <int N, int kTaps, typename T>
__device__ void LoadPixels(const T* image, const int32_t (&pixel)[kTaps], int64_t channels, int64_t channel,
                           Vector<T, N> (&loaded)[kTaps]) {
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    loaded[tap] = {};
    if (pixel[tap] >= 0) loaded[tap] = AsVector<N>(image + pixel[tap] * channels + channel);
  }
}

// Calls f(batch, point, lane, whether it is not past the end) for the work items of the calling thread. The lanes of a
// point exchange sums, so those past the end repeat the last point.
template <typename F>
__device__ void ForEachPoint(const SamplingSizes& sizes, int lanes, const F& f) {
  const int64_t points = sizes.batches * sizes.points;
  for (int64_t first = global_thread() / kWarp * kWarp; first < points * lanes; first += grid_stride()) {
    const int64_t item = (first + threadIdx.x % kWarp) / lanes, existing = min(item, points - 1);
    const int64_t batch = Quotient(existing, sizes.points);
    f(batch, existing - batch * sizes.points, int(threadIdx.x) & (lanes - 1), item < points);
  }
}

template <typename T, int N, typename S>
__global__ void SampleKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations, T* out) {
  using A = Accumulator<T>;
  ForEachPoint(sizes, lanes, [&](int64_t batch, int64_t point, int lane, bool is_valid) {
    if (!is_valid) return;
    const LocatedPoint<A, S> located(sizes, locations, batch, point);
    const T* const image = x + batch * sizes.pixels() * sizes.channels;
    T* const result = out + (batch * sizes.points + point) * sizes.channels;
    for (int64_t channel = lane * N; channel < sizes.channels; channel += lanes * N) {
      Vector<T, N> pixels[S::kTaps], rounded;
      LoadPixels(image, located.pixel, sizes.channels, channel, pixels);
      A sum[N];
      for (int v = 0; v < N; ++v) sum[v] = located.unread_value();
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        if (located.pixel[tap] < 0) continue;
        const A weight = located.weight(sizes.rules.interpolation, tap);
        for (int v = 0; v < N; ++v) sum[v] += weight * A(pixels[tap].value[v]);
      }
      for (int v = 0; v < N; ++v) rounded.value[v] = T(sum[v]);
      AsVector<N>(result + channel) = rounded;
    }
  });
}

template <typename T, int N, typename S>
__global__ void LocationsCotangentKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations,
                                         const T* d_out, Accumulator<T>* d_locations) {
  using A = Accumulator<T>;
  ForEachPoint(sizes, lanes, [&](int64_t batch, int64_t point, int lane, bool is_valid) {
    const LocatedPoint<A, S> located(sizes, locations, batch, point);
    const T* const image = x + batch * sizes.pixels() * sizes.channels;
    const T* const d = d_out + (batch * sizes.points + point) * sizes.channels;
    A dot[S::kTaps] = {};
    for (int64_t channel = lane * N; channel < sizes.channels; channel += lanes * N) {
      Vector<T, N> pixels[S::kTaps];
      LoadPixels(image, located.pixel, sizes.channels, channel, pixels);
      const Vector<T, N> cotangent = AsVector<N>(d + channel);
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        if (located.pixel[tap] < 0) continue;
        for (int v = 0; v < N; ++v) dot[tap] += A(cotangent.value[v]) * A(pixels[tap].value[v]);
      }
    }
    A sum[S::kDims];
#pragma unroll
    for (int axis = 0; axis < S::kDims; ++axis) {
      sum[axis] = A(0);
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        sum[axis] += located.weight_slope(sizes.rules.interpolation, tap, axis) * dot[tap];
      }
      for (int distance = 1; distance < lanes; distance *= 2) {
        sum[axis] += __shfl_xor_sync(kWholeWarp, sum[axis], distance);
      }
      if (is_valid && lane == 0 && axis < sizes.dims)
        d_locations[sizes.coordinate(batch, point, axis)] = sum[axis] + located.unread_value();
    }
  });
}

// What a sample adds to the pixel of a tap.
template <typename A>
struct alignas(2 * sizeof(A)) SortedTap {
  std::conditional_t<sizeof(A) == sizeof(int32_t), int32_t, int64_t> point;  // so that there is no padding
  A weight;
};

// The taps of an image's samples, whose rows are the pixels. An id is point · taps + tap.
template <typename A, typename S>
class TapsOfImage {
 public:
  static constexpr int kEntries = S::kTaps;
  struct Entry {
    int32_t row, point;
    A weight;
  };

  __device__ TapsOfImage(const SamplingSizes& sizes, const A* locations, int64_t batch)
      : sizes_(sizes), locations_(locations), batch_(batch) {}

  __device__ Entry operator()(int32_t id) const {
    const int32_t point = id / kEntries, number = id % kEntries;
    const LocatedPoint<A, S> located(sizes_, locations_, batch_, point);
    Entry entry = {};
#pragma unroll
    for (int tap = 0; tap < kEntries; ++tap) {
      if (tap == number) entry = {located.pixel[tap], point, located.weight(sizes_.rules.interpolation, tap)};
    }
    return entry;
  }
  __device__ void FindRows(int32_t point, int32_t* rows) const {
    const LocatedPoint<A, S> located(sizes_, locations_, batch_, point);
#pragma unroll
    for (int tap = 0; tap < kEntries; ++tap) rows[tap] = located.pixel[tap];
  }
  __device__ SortedTap<A> value(const Entry& entry) const { return {entry.point, entry.weight}; }

 private:
  const SamplingSizes& sizes_;
  const A* locations_;
  int64_t batch_;
};

// The tables of consecutive images.
template <typename A, typename S>
struct TapTables {
  using Table = TapsOfImage<A, S>;

  SamplingSizes sizes;
  const A* locations;
  int64_t first;

  __device__ Table operator[](int64_t table) const { return {sizes, locations, first + table}; }
};

// The taps of all samples of an image: as many of a sample as its Shape has.
DCN_HOST_DEVICE int64_t Entries(const SamplingSizes& sizes) {
  return sizes.points * (sizes.dims == 3 ? 8 : sizes.rules.interpolation == Interpolation::kCubic ? 16 : 4);
}

// What a table takes in the workspace: the sorted taps, their ids, and the starts of the rows.
template <typename A>
int64_t TableWords(const SamplingSizes& sizes) {
  const int64_t entries = Entries(sizes);
  return entries * int64_t(sizeof(SortedTap<A>) / sizeof(int32_t) + 1) + sizes.pixels() + 1;
}

// Each thread computes N channels of a pixel.
template <typename T, int N>
__global__ void GatherTapsKernel(SamplingSizes sizes, int64_t first_image, int64_t images, const int32_t* row_start,
                                 const SortedTap<Accumulator<T>>* taps, const T* d_out, bool is_wide, void* d_x) {
  using A = Accumulator<T>;
  const int64_t pixels = sizes.pixels(), vectors = sizes.channels / N, entries = Entries(sizes);
  for (int64_t item = global_thread(); item < images * pixels * vectors; item += grid_stride()) {
    const int64_t pixel_of_all = Quotient(item, vectors), image = Quotient(pixel_of_all, pixels);
    const int64_t channel = (item - pixel_of_all * vectors) * N, pixel = pixel_of_all - image * pixels;
    const int32_t* const start = row_start + image * (pixels + 1) + pixel;
    const SortedTap<A>* const of_image = taps + image * entries;
    const T* const d = d_out + (first_image + image) * sizes.points * sizes.channels + channel;
    A sum[N] = {};
    for (int32_t i = start[0]; i < start[1]; ++i) {
      const SortedTap<A> tap = of_image[i];
      const Vector<A, N> row = Widened(AsVector<N>(d + tap.point * sizes.channels));
      for (int v = 0; v < N; ++v) sum[v] += tap.weight * row.value[v];
    }
    const int64_t element = (first_image * pixels + pixel_of_all) * sizes.channels + channel;
    const auto store = [&](auto* result) {
      using Result = std::remove_reference_t<decltype(*result)>;
      Vector<Result, N> vector;
      for (int v = 0; v < N; ++v) vector.value[v] = Result(sum[v]);
      // Indexed as an array of vectors, because nvcc splits the store if it cannot derive the alignment.
      reinterpret_cast<Vector<Result, N>*>(result)[element / N] = vector;
    };
    if (is_wide) {
      store(static_cast<A*>(d_x));
    } else {
      store(static_cast<T*>(d_x));
    }
  }
}

template <typename T, typename S>
const char* SortAndGather(const Device& device, const SamplingSizes& sizes, const void* locations, const T* d_out,
                          bool is_wide, void* d_x, int32_t* workspace, int64_t workspace_size) {
  using A = Accumulator<T>;
  const int64_t images_at_once = workspace_size / TableWords<A>(sizes);
  const int64_t entries = Entries(sizes);
  TapTables<A, S> tables = {sizes, static_cast<const A*>(locations), 0};
  for (; tables.first < sizes.batches; tables.first += images_at_once) {
    const int64_t images = std::min(images_at_once, sizes.batches - tables.first);
    auto* const sorted = reinterpret_cast<SortedTap<A>*>(workspace);
    int32_t* const ids = reinterpret_cast<int32_t*>(sorted + images * entries);
    int32_t* const row_start = ids + images * entries;
    const CsrTables<SortedTap<A>> csr = {images, int32_t(sizes.pixels()), int32_t(entries), false, row_start, sorted,
                                         ids};
    const char* failure = SortByRow(device, tables, csr);
    if (failure) return failure;
    failure = DispatchWidth<T>(sizes.channels, [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch<GatherTapsKernel<T, N>>(device, BlocksFor(images * sizes.pixels() * (sizes.channels / N)), sizes,
                                            tables.first, images, row_start, sorted, d_out, is_wide, d_x);
    });
    if (failure) return failure;
  }
  return nullptr;
}

bool IsEmpty(const SamplingSizes& sizes) {
  return sizes.batches * sizes.points == 0 || sizes.pixels() == 0 || sizes.channels == 0;
}

}  // namespace

const char* Sample(Device& device, DType dtype, const SamplingSizes& sizes, const void* x, const void* locations,
                   void* out) {
  return DispatchShape(sizes, [&](auto shape) {
    return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
      using T = decltype(tag);
      constexpr int N = decltype(width)::value;
      const int lanes = LanesOf(sizes.channels, N);
      return Launch<SampleKernel<T, N, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points * lanes), sizes, lanes, static_cast<const T*>(x),
          static_cast<const Accumulator<T>*>(locations), static_cast<T*>(out));
    });
  });
}

const char* SamplingLocationsCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                                       const void* locations, const void* d_out, void* d_locations) {
  return DispatchShape(sizes, [&](auto shape) {
    return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
      using T = decltype(tag);
      using A = Accumulator<T>;
      constexpr int N = decltype(width)::value;
      const int lanes = LanesOf(sizes.channels, N);
      return Launch<LocationsCotangentKernel<T, N, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points * lanes), sizes, lanes, static_cast<const T*>(x),
          static_cast<const A*>(locations), static_cast<const T*>(d_out), static_cast<A*>(d_locations));
    });
  });
}

int64_t MinWorkspaceSize(DType dtype, const SamplingSizes& sizes) {
  if (IsEmpty(sizes)) return 0;
  return DispatchAccumulator(dtype, [&](auto tag) { return TableWords<decltype(tag)>(sizes); });
}

const char* SamplingXCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* locations,
                               const void* d_out, bool is_wide, void* d_x, int32_t* workspace, int64_t workspace_size) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (IsEmpty(sizes)) {
      const size_t element_bytes = is_wide ? sizeof(Accumulator<T>) : sizeof(T);
      const int64_t elements = sizes.batches * sizes.pixels() * sizes.channels;
      return Failure(cudaMemsetAsync(d_x, 0, elements * element_bytes, device.stream));
    }
    return DispatchShape(sizes, [&](auto shape) {
      return SortAndGather<T, decltype(shape)>(device, sizes, locations, static_cast<const T*>(d_out), is_wide, d_x,
                                               workspace, workspace_size);
    });
  });
}

}  // namespace dcn
