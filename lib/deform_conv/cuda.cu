// The CUDA kernels of a deformable convolution that leave the matrix products to XLA, and that sample x: the columns,
// their tangents, and the cotangents of offset and mask. cuda_x_cotangent.cu has the cotangent of x.
#include "deform_conv/deform_conv.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "deform_conv/cuda_sample_tiles.h"
#include "device.h"
#include "lane_sums.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

// Calls f(record, number of the sample in the tile, whether there is one) for the samples of the calling thread's
// subwarp. All lanes of a warp make the same calls: the last may be past the end, with the record of the last sample.
template <typename A, typename F>
__device__ void ForEachSample(const SampleTiles& tiles, int samples, const SampleRecord<A>* records, const F& f) {
  const int warp_samples = kWarp >> tiles.log2_subwarp, lane_sample = int(threadIdx.x % kWarp) >> tiles.log2_subwarp;
  for (int first = int(threadIdx.x / kWarp) * warp_samples; first < samples; first += kThreads >> tiles.log2_subwarp) {
    const int i = first + lane_sample;
    f(records[i < samples ? i : samples - 1], i, i < samples);
  }
}

// Calls f(offset in bytes) for the channels of the calling thread, N elements of T at a time.
template <typename T, int N, typename F>
__device__ void ForEachVector(const SampleTiles& tiles, const F& f) {
  constexpr int kBytes = N * sizeof(T);
  const int subwarp = 1 << tiles.log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  for (int64_t c = lane * kBytes; c < tiles.group_bytes; c += subwarp * kBytes) f(c);
}

template <typename T, typename A, int N>
__device__ void StoreRounded(char* address, const A (&values)[N]) {
  Vector<T, N> vector;
  for (int v = 0; v < N; ++v) vector.value[v] = T(values[v]);
  AsVector<N>(reinterpret_cast<T*>(address)) = vector;
}

// One more block is resident per SM where a thread adds up one channel at a time in float: kernels need fewer
// registers.
template <typename A, int N>
constexpr int kHasFewSums = N == 1 && sizeof(A) == 4;

// Stores the value of a sample that reads no corner.
template <typename T, int N, typename A>
__device__ void StoreUnread(const SampleTiles& tiles, const SampleRecord<A>& record, char* columns) {
  A value[N];
  for (A& of_channel : value) of_channel = record.weights[0];
  ForEachVector<T, N>(tiles, [&](int64_t c) { StoreRounded<T>(columns + c, value); });
}

// A subwarp computes the columns of a sample: the channels of its offset group, N at a time. On an H200, five resident
// blocks were 5 % faster than four with more registers. With N = 4, sm_120 would spill registers.
template <typename A, int N>
__global__ void __launch_bounds__(kThreads, (N == 8 ? 5 : 4) + kHasFewSums<A, N>)
    SampleColumnsKernel(SampleTiles tiles, VectorType vector_type, const char* x, char* columns) {
  __shared__ SampleRecord<A> records[kThreads];
  for (int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    const int64_t image = tiles.Image(tile);
    const TileSample own = tiles.Sample(tile, image);
    if (own.index >= 0) records[threadIdx.x] = tiles.Record(own, tiles.Locate<A>(own));
    __syncthreads();
    const char* const pixels = x + tiles.ImageStart(image);
    ForEachSample(tiles, tiles.Samples(tile, image), records, [&](const SampleRecord<A>& record, int, bool is_valid) {
      if (!is_valid) return;
      vector_type.Dispatch<A, N>([&](auto tag, auto) {
        using T = decltype(tag);
        char* const out = columns + record.column;
        if (record.pixel == kUnread) {
          StoreUnread<T, N>(tiles, record, out);
          return;
        }
        const CornerChannels corners(tiles, pixels, record);
        ForEachVector<T, N>(tiles, [&](int64_t c) {
          A sum[N] = {};
          for (int corner = 0; corner < 4; ++corner) {
            const Vector<A, N> pixel = corners.Load<T, N>(corner, c);
            for (int v = 0; v < N; ++v) sum[v] += record.weights[corner] * pixel.value[v];
          }
          StoreRounded<T>(out + c, sum);
        });
      });
    });
    __syncthreads();
  }
}

// The corner whose pixel is read for a corner, and the factor of its weight.
template <typename A>
struct ReadCorner {
  int corner;
  A factor;

  __device__ ReadCorner(const BilinearCorners<A>& corners, int number) : factor(1) {
    const bool misses_row = (corners.y.pixel[0] | corners.y.pixel[1]) < 0;
    const bool misses_column = (corners.x.pixel[0] | corners.x.pixel[1]) < 0;
    const int row = misses_row ? corners.y.pixel[0] < 0 : number / 2;
    const int column = misses_column ? corners.x.pixel[0] < 0 : number % 2;
    if (misses_row) factor *= A(0.5);
    if (misses_column) factor *= A(0.5);
    corner = 2 * row + column;
  }
};

// The tangents of a record's weights; d_offset and d_mask may be null.
template <typename A>
__device__ Vector<A, 4> WeightTangents(const Positions& positions, int64_t sample_index,
                                       const BilinearCorners<A>& corners, const A* d_offset, const A* d_mask) {
  Vector<A, 4> tangents = {};
  for (int corner = 0; corner < 4; ++corner) {
    const ReadCorner<A> read(corners, corner);
    A& tangent = tangents.value[corner];
    if (d_offset) {
      const Vector<A, 2> d_position = AsVector<2>(d_offset + 2 * sample_index);
      tangent = Mask<A>(positions, sample_index) *
                corners.weight_tangent(read.corner, d_position.value[0], d_position.value[1]);
    }
    if (d_mask)
      tangent += d_mask[sample_index] * (corners.is_inside() ? corners.weight(read.corner) : corners.unread_value());
    tangent *= read.factor;
  }
  return tangents;
}

// A subwarp computes the tangents of the columns of a sample, and its columns if requested.
template <typename A, int N>
__global__ void __launch_bounds__(kThreads, (N == 1 ? 4 : 3) + kHasFewSums<A, N>)
    SampleTangentsKernel(SampleTiles tiles, VectorType vector_type, Tangents tangents, const char* x,
                         bool columns_requested, char* columns) {
  const char* const d_x = static_cast<const char*>(tangents.x);
  const A* const d_offset = static_cast<const A*>(tangents.offset);
  const A* const d_mask = static_cast<const A*>(tangents.mask);
  __shared__ SampleRecord<A> records[kThreads];
  __shared__ Vector<A, 4> weight_tangents[kThreads];
  for (int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    const int64_t image = tiles.Image(tile);
    const TileSample own = tiles.Sample(tile, image);
    if (own.index >= 0) {
      const BilinearCorners<A> corners = tiles.Locate<A>(own);
      records[threadIdx.x] = tiles.Record(own, corners);
      weight_tangents[threadIdx.x] = WeightTangents(tiles.positions, own.index, corners, d_offset, d_mask);
    }
    __syncthreads();
    const int64_t image_start = tiles.ImageStart(image);
    ForEachSample(tiles, tiles.Samples(tile, image), records, [&](const SampleRecord<A>& record, int i, bool is_valid) {
      if (!is_valid) return;
      vector_type.Dispatch<A, N>([&](auto tag, auto) {
        using T = decltype(tag);
        // The columns follow the tangents of the same tap.
        char* const out = columns + record.column;
        char* const value_out = out + tiles.pixel_bytes;
        if (record.pixel == kUnread) {
          StoreUnread<T, N>(tiles, record, out);
          if (columns_requested) StoreUnread<T, N>(tiles, record, value_out);
          return;
        }
        const CornerChannels corners(tiles, x + image_start, record), d_corners(tiles, d_x + image_start, record);
        const Vector<A, 4> weight_tangent = weight_tangents[i];
        ForEachVector<T, N>(tiles, [&](int64_t c) {
          A value[N] = {}, tangent[N] = {};
          for (int corner = 0; corner < 4; ++corner) {
            const Vector<A, N> pixel = corners.Load<T, N>(corner, c);
            for (int v = 0; v < N; ++v) value[v] += record.weights[corner] * pixel.value[v];
            // A tangent that is zero has no term, which would be NaN for an infinite factor.
            if (d_offset || d_mask) {
              for (int v = 0; v < N; ++v) tangent[v] += weight_tangent.value[corner] * pixel.value[v];
            }
            if (d_x) {
              const Vector<A, N> d_pixel = d_corners.Load<T, N>(corner, c);
              for (int v = 0; v < N; ++v) tangent[v] += record.weights[corner] * d_pixel.value[v];
            }
          }
          StoreRounded<T>(out + c, tangent);
          if (columns_requested) StoreRounded<T>(value_out + c, value);
        });
      });
    });
    __syncthreads();
  }
}

// A subwarp computes the dot products of a sample's cotangent and its corners, and its columns if they are not null;
// then each thread computes the cotangents of the offset and mask of the sample that it has located.
template <typename A, int N>
__global__ void __launch_bounds__(kThreads, (sizeof(A) == 8 ? 2 : 3) + kHasFewSums<A, N>)
    OffsetCotangentKernel(SampleTiles tiles, VectorType vector_type, const char* x, const char* d_columns, A* d_offset,
                          A* d_mask, char* columns) {
  __shared__ SampleRecord<A> records[kThreads];
  __shared__ Vector<A, 4> dots[kThreads];
  const int subwarp = 1 << tiles.log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  for (int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    const int64_t image = tiles.Image(tile);
    const TileSample own = tiles.Sample(tile, image);
    BilinearCorners<A> own_corners;
    if (own.index >= 0) {
      own_corners = tiles.Locate<A>(own);
      records[threadIdx.x] = tiles.Record(own, own_corners);
    }
    __syncthreads();
    const char* const pixels = x + tiles.ImageStart(image);
    ForEachSample(tiles, tiles.Samples(tile, image), records, [&](const SampleRecord<A>& record, int i, bool is_valid) {
      A dot[4] = {};
      vector_type.Dispatch<A, N>([&](auto tag, auto) {
        using T = decltype(tag);
        char* const out = columns + record.column;
        if (record.pixel == kUnread) {
          if (columns && is_valid) StoreUnread<T, N>(tiles, record, out);
          return;
        }
        const CornerChannels corners(tiles, pixels, record);
        ForEachVector<T, N>(tiles, [&](int64_t c) {
          const Vector<A, N> d_column = Load<T, N>(d_columns + record.column + c);
          A sum[N] = {};
          for (int corner = 0; corner < 4; ++corner) {
            const Vector<A, N> pixel = corners.Load<T, N>(corner, c);
            for (int v = 0; v < N; ++v) {
              dot[corner] += d_column.value[v] * pixel.value[v];
              sum[v] += record.weights[corner] * pixel.value[v];
            }
          }
          if (columns && is_valid) StoreRounded<T>(out + c, sum);
        });
      });
      if (tiles.log2_subwarp == kMaxLog2Subwarp) {
        A sum = SumOverLanes(dot);
        sum += __shfl_xor_sync(kWholeWarp, sum, 4);
        if (lane < 4 && is_valid) dots[i].value[lane] = sum;
        return;
      }
      for (int corner = 0; corner < 4; ++corner) {
        for (int distance = subwarp / 2; distance; distance /= 2) {
          dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], distance);
        }
      }
      if (lane == 0 && is_valid) dots[i] = {{dot[0], dot[1], dot[2], dot[3]}};
    });
    __syncthreads();
    if (own.index >= 0) {
      A dot[4];
      for (int corner = 0; corner < 4; ++corner) {
        dot[corner] = own_corners.is_read(corner) ? dots[threadIdx.x].value[corner] : A(0);
      }
      StorePositionCotangents(tiles.positions, own.index, own_corners, dot, d_offset, d_mask);
    }
  }
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  const VectorType vector_type(dtype, sizes.group_channels());
  return DispatchSums(vector_type, [&](auto tag, auto width) {
    const SampleTiles tiles(sizes, positions, vector_type);
    return Launch<SampleColumnsKernel<decltype(tag), decltype(width)::value>>(
        device, tiles.count(), tiles, vector_type, static_cast<const char*>(x), static_cast<char*>(columns));
  });
}

const char* SampleTangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const Tangents& tangents, const void* x, bool columns_requested, void* columns) {
  const VectorType vector_type(dtype, sizes.group_channels());
  return DispatchSums(vector_type, [&](auto tag, auto width) {
    const SampleTiles tiles(sizes, positions, vector_type, columns_requested ? 2 : 1);
    return Launch<SampleTangentsKernel<decltype(tag), decltype(width)::value>>(
        device, tiles.count(), tiles, vector_type, tangents, static_cast<const char*>(x), columns_requested,
        static_cast<char*>(columns));
  });
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  const VectorType vector_type(dtype, sizes.group_channels());
  return DispatchSums(vector_type, [&](auto tag, auto width) {
    using A = decltype(tag);
    const SampleTiles tiles(sizes, positions, vector_type);
    return Launch<OffsetCotangentKernel<A, decltype(width)::value>>(
        device, tiles.count(), tiles, vector_type, static_cast<const char*>(x), static_cast<const char*>(d_columns),
        static_cast<A*>(d_offset), static_cast<A*>(d_mask), static_cast<char*>(columns));
  });
}

}  // namespace dcn
