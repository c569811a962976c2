// The CUDA kernels of the sampling of images and of the cotangent of its locations. A few lanes have the channels of a
// point; each of them locates it.
#include "sampling.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"
#include "division.h"
#include "launch.h"
#include "located_point.h"
#include "vector.h"

namespace dcn {
namespace {

// The blocks of an SM that the registers have room for.
template <typename T>
constexpr int kBlocks = sizeof(T) == 8 ? 1 : 2;

// The lanes of a point. They are few, because each of them locates it.
constexpr int kMaxLanes = 4;

int LanesOf(int64_t channels, int vector) {
  int lanes = 1;
  while (lanes < kMaxLanes && lanes * vector < channels) lanes *= 2;
  return lanes;
}

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
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    SampleKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations, T* out) {
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
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    LocationsCotangentKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations,
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
      // Sixteen vectors and their sums would not fit the registers.
      constexpr int N = decltype(shape)::kAxisTaps == 4 ? 1 : decltype(width)::value;
      const int lanes = LanesOf(sizes.channels, N);
      return Launch<LocationsCotangentKernel<T, N, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points * lanes), sizes, lanes, static_cast<const T*>(x),
          static_cast<const A*>(locations), static_cast<const T*>(d_out), static_cast<A*>(d_locations));
    });
  });
}

}  // namespace dcn
