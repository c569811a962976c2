// The CUDA kernels of the sampling of images and of the cotangent of its locations. Each lane locates a point. Then the
// warp takes its points in steps, in which a few lanes share the channels of a point.
#include "sampling/sampling.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"
#include "division.h"
#include "launch.h"
#include "sampling/cuda_point.h"
#include "vector.h"

namespace dcn {
namespace {

// The blocks of an SM that the registers have room for.
template <typename A, bool kHasManySums>
constexpr int kBlocks = sizeof(A) == 8 || kHasManySums ? 1 : 2;

// The lanes that share the channels of a point: each has 16 bytes, if there are as many.
constexpr int kMaxLanes = 4;
constexpr int kLaneBytes = 16;

int Log2Lanes(int64_t pixel_bytes) {
  int log2_lanes = 0;
  while (1 << log2_lanes < kMaxLanes && (kLaneBytes << log2_lanes) < pixel_bytes) ++log2_lanes;
  return log2_lanes;
}

// The pixels that a sample reads: negative if none.
template <int kTaps>
struct PixelsOfSample {
  const char* image;
  uint32_t pixel_bytes;
  int32_t pixel[kTaps];

  // N channels of a tap's pixel; zeros if there is none. One multiply-add of 32 and 64 bits makes the address.
  template <typename T, int N>
  __device__ Vector<Accumulator<T>, N> Load(int tap, int channel) const {
    const char* const address = image + channel * sizeof(T) + uint64_t{uint32_t(pixel[tap])} * pixel_bytes;
    return Widened(LoadOrZeros<N>(pixel[tap] >= 0, reinterpret_cast<const T*>(address)));
  }
};

// The points of a warp, and the one that the calling thread has located. Those past the end repeat the last one.
template <typename A, typename S>
struct WarpOfPoints {
  int64_t first, end, batch;
  LocatedPoint<A, S> located;
  int32_t pixel[S::kTaps];

  __device__ WarpOfPoints(const SamplingSizes& sizes, const Coordinates<const A>& locations, int64_t first)
      : first(first),
        end(sizes.batches * sizes.points),
        batch(Quotient(own(), sizes.points)),
        located(sizes, locations, batch, own() - batch * sizes.points) {
    located.FindPixels(sizes, pixel);
  }

  __device__ int64_t own() const { return min(first + Lane(), end - 1); }
  // Those of the point that a lane has located.
  __device__ PixelsOfSample<S::kTaps> PixelsOf(int lane, const SamplingSizes& sizes, const char* x,
                                               uint32_t pixel_bytes) const {
    const int64_t image = batch * sizes.pixels() * pixel_bytes;
    PixelsOfSample<S::kTaps> pixels = {x + __shfl_sync(kWholeWarp, image, lane), pixel_bytes};
#pragma unroll
    for (int tap = 0; tap < S::kTaps; ++tap) pixels.pixel[tap] = __shfl_sync(kWholeWarp, pixel[tap], lane);
    return pixels;
  }

  // The lane that has located what the calling thread takes in a step, and the one whose group takes the thread's own.
  static __device__ int Located(int step, int log2_lanes) { return (step * kWarp + Lane()) >> log2_lanes; }
  static __device__ int TakenBy(int log2_lanes) { return (Lane() << log2_lanes) % kWarp; }
  static __device__ bool IsTakenIn(int step, int log2_lanes) { return (Lane() << log2_lanes) / kWarp == step; }
};

template <typename A, typename S, int kVector>
__global__ void __launch_bounds__(kThreads, kBlocks<A, S::kIsCubic && kVector != 1>)
    SampleKernel(SamplingSizes sizes, VectorType vector_type, uint32_t pixel_bytes, int log2_lanes, const char* x,
                 Coordinates<const A> locations, char* out) {
  const int channels = int(sizes.channels);
  for (int64_t first = global_thread() - Lane(); first < sizes.batches * sizes.points; first += grid_stride()) {
    const WarpOfPoints<A, S> own(sizes, locations, first);
    A own_weight[S::kTaps];
#pragma unroll
    for (int tap = 0; tap < S::kTaps; ++tap) own_weight[tap] = own.located.weight(sizes.rules.interpolation, tap);
    for (int step = 0; step < 1 << log2_lanes; ++step) {
      const int source = own.Located(step, log2_lanes);
      const auto pixels = own.PixelsOf(source, sizes, x, pixel_bytes);
      const A unread = __shfl_sync(kWholeWarp, own.located.unread_value(), source);
      A weight[S::kTaps];
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) weight[tap] = __shfl_sync(kWholeWarp, own_weight[tap], source);
      if (first + source >= own.end) continue;
      char* const result = out + (first + source) * pixel_bytes;
      vector_type.Dispatch<A, kVector>([&](auto tag, auto width) {
        using T = decltype(tag);
        constexpr int N = decltype(width)::value;
        const int step = N << log2_lanes;
        for (int channel = Lane() * N & (step - 1); channel < channels; channel += step) {
          A sum[N];
          for (int v = 0; v < N; ++v) sum[v] = unread;
#pragma unroll
          for (int tap = 0; tap < S::kTaps; ++tap) {
            const auto loaded = pixels.template Load<T, N>(tap, channel);
            for (int v = 0; v < N; ++v) sum[v] += weight[tap] * loaded.value[v];
          }
          Vector<T, N> rounded;
          for (int v = 0; v < N; ++v) rounded.value[v] = T(sum[v]);
          AsVector<N>(reinterpret_cast<T*>(result) + channel) = rounded;
        }
      });
    }
  }
}

template <typename A, typename S>
__global__ void __launch_bounds__(kThreads, kBlocks<A, S::kIsCubic>)
    LocationsCotangentKernel(SamplingSizes sizes, VectorType vector_type, uint32_t pixel_bytes, int log2_lanes,
                             const char* x, Coordinates<const A> locations, const char* d_out,
                             Coordinates<A> d_locations) {
  const int channels = int(sizes.channels);
  for (int64_t first = global_thread() - Lane(); first < sizes.batches * sizes.points; first += grid_stride()) {
    const WarpOfPoints<A, S> own(sizes, locations, first);
    A own_dot[S::kTaps] = {};
    for (int step = 0; step < 1 << log2_lanes; ++step) {
      const int source = own.Located(step, log2_lanes);
      const auto pixels = own.PixelsOf(source, sizes, x, pixel_bytes);
      const char* const d = d_out + min(first + source, own.end - 1) * pixel_bytes;
      A dot[S::kTaps] = {};
      // Sixteen vectors and their sums would not fit the registers.
      vector_type.Dispatch<A, S::kIsCubic ? 1 : 0>([&](auto tag, auto width) {
        using T = decltype(tag);
        constexpr int N = decltype(width)::value;
        const int step = N << log2_lanes;
        for (int channel = Lane() * N & (step - 1); channel < channels; channel += step) {
          const Vector<A, N> cotangent = Widened(AsVector<N>(reinterpret_cast<const T*>(d) + channel));
          Vector<A, N> loaded[S::kTaps];
#pragma unroll
          for (int tap = 0; tap < S::kTaps; ++tap) loaded[tap] = pixels.template Load<T, N>(tap, channel);
#pragma unroll
          for (int tap = 0; tap < S::kTaps; ++tap) {
            if (pixels.pixel[tap] < 0) continue;
            for (int v = 0; v < N; ++v) dot[tap] += cotangent.value[v] * loaded[tap].value[v];
          }
        }
      });
#pragma unroll
      for (int tap = 0; tap < S::kTaps; ++tap) {
        for (int distance = 1; distance < 1 << log2_lanes; distance *= 2) {
          dot[tap] += __shfl_xor_sync(kWholeWarp, dot[tap], distance);
        }
        const A sum = __shfl_sync(kWholeWarp, dot[tap], own.TakenBy(log2_lanes));
        if (own.IsTakenIn(step, log2_lanes)) own_dot[tap] = sum;
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
      if (axis < sizes.dims) d_locations.array[axis][sizes.coordinate(own.batch, point, axis)] = sum;
    }
  }
}

}  // namespace

const char* Sample(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                   const Coordinates<const void>& locations, void* out) {
  const VectorType vector_type(dtype, sizes.channels);
  const int64_t pixel_bytes = sizes.channels * BytesOf(dtype);
  return DispatchShape(sizes, [&](auto shape) {
    using S = decltype(shape);
    const auto launch = [&](auto tag, auto width) {
      using A = decltype(tag);
      return Launch<SampleKernel<A, S, decltype(width)::value>>(
          device, BlocksFor(sizes.batches * sizes.points), sizes, vector_type, uint32_t(pixel_bytes),
          Log2Lanes(pixel_bytes), static_cast<const char*>(x), locations.As<const A>(), static_cast<char*>(out));
    };
    // Twice as many blocks of a bicubic sampling are resident where a thread moves one element at a time.
    if constexpr (S::kIsCubic) {
      return DispatchSums(vector_type, launch);
    } else {
      return DispatchAccumulator(dtype, [&](auto tag) { return launch(tag, Width<0>()); });
    }
  });
}

const char* SamplingLocationsCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                                       const Coordinates<const void>& locations, const void* d_out,
                                       const Coordinates<void>& d_locations) {
  return DispatchShape(sizes, [&](auto shape) {
    return DispatchAccumulator(dtype, [&](auto tag) {
      using A = decltype(tag);
      const int64_t pixel_bytes = sizes.channels * BytesOf(dtype);
      return Launch<LocationsCotangentKernel<A, decltype(shape)>>(
          device, BlocksFor(sizes.batches * sizes.points), sizes, VectorType(dtype, sizes.channels),
          uint32_t(pixel_bytes), Log2Lanes(pixel_bytes), static_cast<const char*>(x), locations.As<const A>(),
          static_cast<const char*>(d_out), d_locations.As<A>());
    });
  });
}

}  // namespace dcn
