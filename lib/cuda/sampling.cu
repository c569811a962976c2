// The CUDA kernels of the sampling of images and of the cotangent of its locations. Each lane locates a point. Then the
// warp takes its points in rounds, in which a few lanes share the channels of a point.
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
template <typename T, typename S>
constexpr int kBlocks = sizeof(T) == 8 || S::kAxisTaps == 4 ? 1 : 2;

// The lanes that share the channels of a point: each has 16 bytes, if there are as many.
constexpr int kMaxLanes = 4;
constexpr int kLaneBytes = 16;

int LanesOf(int64_t channels, int64_t item_bytes) {
  int lanes = 1;
  while (lanes < kMaxLanes && lanes * kLaneBytes < channels * item_bytes) lanes *= 2;
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

// The points of a warp, and the one that the calling thread has located. Those past the end repeat the last one.
template <typename A, typename S>
struct WarpOfPoints {
  int64_t first, end, batch;
  LocatedPoint<A, S> located;
  int32_t pixel[S::kTaps];

  __device__ WarpOfPoints(const SamplingSizes& sizes, const A* locations, int64_t first)
      : first(first),
        end(sizes.batches * sizes.points),
        batch(Quotient(own(), sizes.points)),
        located(sizes, locations, batch, own() - batch * sizes.points) {
    located.FindPixels(sizes, pixel);
  }

  __device__ int64_t own() const { return min(first + Lane(), end - 1); }

  // The lane that has located what the calling thread takes in a round, and the one whose group takes the thread's own.
  static __device__ int Located(int round, int lanes) { return (round * kWarp + Lane()) / lanes; }
  static __device__ int TakenBy(int lanes) { return Lane() * lanes % kWarp; }
  static __device__ bool IsTakenIn(int round, int lanes) { return Lane() * lanes / kWarp == round; }
};

template <typename T, int N, typename S>
__global__ void __launch_bounds__(kThreads, kBlocks<T, S>)
    SampleKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations, T* out) {
  using A = Accumulator<T>;
  for (int64_t first = global_thread() - Lane(); first < sizes.batches * sizes.points; first += grid_stride()) {
    const WarpOfPoints<A, S> own(sizes, locations, first);
    A own_weight[S::kTaps];
#pragma unroll
    for (int tap = 0; tap < S::kTaps; ++tap) own_weight[tap] = own.located.weight(sizes.rules.interpolation, tap);
    for (int round = 0; round < lanes; ++round) {
      const int source = own.Located(round, lanes);
      const int64_t batch = __shfl_sync(kWholeWarp, own.batch, source);
      const A unread = __shfl_sync(kWholeWarp, own.located.unread_value(), source);
      int32_t pixel[S::kTaps];
      A weight[S::kTaps];
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        pixel[tap] = __shfl_sync(kWholeWarp, own.pixel[tap], source);
        weight[tap] = __shfl_sync(kWholeWarp, own_weight[tap], source);
      }
      if (first + source < own.end) {
        const T* const image = x + batch * sizes.pixels() * sizes.channels;
        T* const result = out + (first + source) * sizes.channels;
        for (int64_t channel = Lane() % lanes * N; channel < sizes.channels; channel += lanes * N) {
          Vector<T, N> pixels[S::kTaps], rounded;
          LoadPixels(image, pixel, sizes.channels, channel, pixels);
          A sum[N];
          for (int v = 0; v < N; ++v) sum[v] = unread;
#pragma unroll
          for (int tap = 0; tap < S::kTaps; ++tap) {
            if (pixel[tap] < 0) continue;
            for (int v = 0; v < N; ++v) sum[v] += weight[tap] * A(pixels[tap].value[v]);
          }
          for (int v = 0; v < N; ++v) rounded.value[v] = T(sum[v]);
          AsVector<N>(result + channel) = rounded;
        }
      }
    }
  }
}

template <typename T, int N, typename S>
__global__ void __launch_bounds__(kThreads, kBlocks<T, S>)
    LocationsCotangentKernel(SamplingSizes sizes, int lanes, const T* x, const Accumulator<T>* locations,
                             const T* d_out, Accumulator<T>* d_locations) {
  using A = Accumulator<T>;
  for (int64_t first = global_thread() - Lane(); first < sizes.batches * sizes.points; first += grid_stride()) {
    const WarpOfPoints<A, S> own(sizes, locations, first);
    A own_dot[S::kTaps] = {};
    for (int round = 0; round < lanes; ++round) {
      const int source = own.Located(round, lanes);
      const int64_t batch = __shfl_sync(kWholeWarp, own.batch, source);
      int32_t pixel[S::kTaps];
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) pixel[tap] = __shfl_sync(kWholeWarp, own.pixel[tap], source);
      const T* const image = x + batch * sizes.pixels() * sizes.channels;
      const T* const d = d_out + min(first + source, own.end - 1) * sizes.channels;
      A dot[S::kTaps] = {};
      for (int64_t channel = Lane() % lanes * N; channel < sizes.channels; channel += lanes * N) {
        Vector<T, N> pixels[S::kTaps];
        LoadPixels(image, pixel, sizes.channels, channel, pixels);
        const Vector<T, N> cotangent = AsVector<N>(d + channel);
#pragma unroll
        for (int tap = 0; tap < S::kTaps; ++tap) {
          if (pixel[tap] < 0) continue;
          for (int v = 0; v < N; ++v) dot[tap] += A(cotangent.value[v]) * A(pixels[tap].value[v]);
        }
      }
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        for (int distance = 1; distance < lanes; distance *= 2) {
          dot[tap] += __shfl_xor_sync(kWholeWarp, dot[tap], distance);
        }
        const A sum = __shfl_sync(kWholeWarp, dot[tap], own.TakenBy(lanes));
        if (own.IsTakenIn(round, lanes)) own_dot[tap] = sum;
      }
    }
    if (first + Lane() >= own.end) continue;
#pragma unroll
    for (int axis = 0; axis < S::kDims; ++axis) {
      A sum = own.located.unread_value();
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        sum += own.located.weight_slope(sizes.rules.interpolation, tap, axis) * own_dot[tap];
      }
      const int64_t point = own.own() - own.batch * sizes.points;
      if (axis < sizes.dims) d_locations[sizes.coordinate(own.batch, point, axis)] = sum;
    }
  }
}

}  // namespace

const char* Sample(Device& device, DType dtype, const SamplingSizes& sizes, const void* x, const void* locations,
                   void* out) {
  return DispatchShape(sizes, [&](auto shape) {
    return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
      using T = decltype(tag);
      constexpr int N = decltype(width)::value;
      const int lanes = LanesOf(sizes.channels, sizeof(T));
      return Launch<SampleKernel<T, N, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points), sizes, lanes, static_cast<const T*>(x),
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
      const int lanes = LanesOf(sizes.channels, sizeof(T));
      return Launch<LocationsCotangentKernel<T, N, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points), sizes, lanes, static_cast<const T*>(x),
          static_cast<const A*>(locations), static_cast<const T*>(d_out), static_cast<A*>(d_locations));
    });
  });
}

}  // namespace dcn
