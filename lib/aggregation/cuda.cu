// The CUDA kernels of a deformable aggregation and of the cotangents of its taps. A subwarp, some
// neighbouring lanes of a warp, has the channels of a query and head. Each lane of a quad, four neighbouring lanes of
// the subwarp, locates another tap. Then the whole subwarp reads the four taps' corners, one tap after the other.
#include "aggregation/aggregation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "aggregation/cuda_taps.h"
#include "device.h"
#include "launch.h"
#include "pixel_pair.h"
#include "vector.h"

namespace dcn {
namespace {

constexpr int kQuad = 4, kMaxLog2Subwarp = 5;

// The logarithm of the number of lanes of a subwarp, each of which has a vector of the channels.
int Log2Subwarp(const AggregationSizes& sizes, int64_t vector) {
  int log2_subwarp = 2;
  while (log2_subwarp < kMaxLog2Subwarp && (vector << log2_subwarp) < sizes.channels) ++log2_subwarp;
  return log2_subwarp;
}

DCN_HOST_DEVICE int64_t NumQueryHeads(const AggregationSizes& sizes) {
  return sizes.batches * sizes.heads * sizes.queries();
}

// Calls f(query, row of `weights`, first byte of the head in the value, whether it is not past the end) for the work
// items of the calling thread's subwarps. Queries are counted first, so that neighbouring subwarps sample neighbouring
// pixels of the same head, which the L1 cache then has. All lanes of a warp exchange what they have located, so those
// past the end repeat the last item.
template <typename T, typename F>
__device__ void ForEachQueryHead(const Aggregation& call, int log2_subwarp, const F& f) {
  const AggregationSizes& sizes = call.sizes;
  const int64_t n = NumQueryHeads(sizes);
  for (int64_t first = global_thread() / kWarp * kWarp; first < n << log2_subwarp; first += grid_stride()) {
    const int64_t work_item = (first + threadIdx.x % kWarp) >> log2_subwarp, existing = min(work_item, n - 1);
    const int64_t head_of_all = call.by_queries.Quotient(existing), batch = call.by_heads.Quotient(head_of_all);
    const int64_t query = existing - head_of_all * sizes.queries(), head = head_of_all - batch * sizes.heads;
    const QueryHead query_head = {batch, query, head};
    f(query, query_head.index(sizes), FirstChannel(sizes, query_head) * sizeof(T), work_item < n);
  }
}

// The tap of a quad's lane, and the corners of its sample.
template <typename A>
struct LocatedTap {
  int64_t index;  // in `weights`
  A weight;
  BilinearCorners<A> corners;
};

// Calls f(level, number of taps, located tap) for the taps of a query and head, up to a quad of them at a time. Lanes
// past the last tap of the level repeat it. `row` is the row of `weights`.
template <typename A, typename F>
__device__ void ForEachQuad(const Aggregation& call, int64_t query, int64_t row, const F& f) {
  const TapLocator<A> locate(call, query);
  const int64_t first_index = row * call.sizes.taps;
  for (int32_t i = 0; i < call.sizes.num_levels; ++i) {
    const Level& level = call.sizes.levels[i];
    for (int32_t first = 0; first < level.taps; first += kQuad) {
      const int32_t tap = level.first_tap + min(first + int32_t(threadIdx.x % kQuad), level.taps - 1);
      const int64_t index = first_index + tap;
      f(level, min(level.taps - first, kQuad),
        LocatedTap<A>{index, static_cast<const A*>(call.taps.weights)[index], locate(level, tap, index)});
    }
  }
}

// The distances from a pixel to the next one and to the one below, in bytes.
struct PixelDistances {
  int64_t right, down;

  __device__ PixelDistances(int64_t pixel_bytes, const Level& level)
      : right(pixel_bytes), down(level.width * pixel_bytes) {}
};

// The pixels that a sample reads, as one number that lanes pass to each other: the distance of the first from the start
// of the value, in bytes, and three flags in the highest bits, where few instructions separate them from the distance.
// Where the level has only one of two rows or columns, its pixels are read twice. So all four corners are read, or
// none.
class PackedCorners {
 public:
  // `first_byte` is that of the head in the first pixel of the batch.
  template <typename A>
  __device__ PackedCorners(int64_t first_byte, const PixelDistances& distances, const Level& level,
                           const PixelPair<A>& y, const PixelPair<A>& x) {
    const int64_t pixel = level.first_pixel + int64_t{y.first} * level.width + x.first;
    const bool is_unread = y.first < 0 || x.first < 0;
    const uint32_t flags = is_unread * kIsUnread | y.is_far * kIsFarDown | x.is_far * kIsFarRight;
    packed_ = ((first_byte + pixel * distances.right) & kDistance) | int64_t(uint64_t{flags} << 32);
  }

  // The corners of the tap of a lane of the quad.
  __device__ PackedCorners Of(int lane) const { return PackedCorners(__shfl_sync(kWholeWarp, packed_, lane, kQuad)); }
  __device__ bool is_read() const { return packed_ >= 0; }

  // Loads the calling lane's vector of each corner. `value` is its address in the first head of the first pixel.
  template <int N, typename T>
  __device__ void Load(const PixelDistances& distances, const T* value, Vector<T, N> (&corners)[4]) const {
    const uint32_t flags = uint32_t(packed_ >> 32);
    const int64_t right = flags & kIsFarRight ? 0 : distances.right, down = flags & kIsFarDown ? 0 : distances.down;
    const char* const top = reinterpret_cast<const char*>(value) + (packed_ & kDistance);
    const auto load = [](const char* address) { return AsVector<N>(reinterpret_cast<const T*>(address)); };
    corners[0] = load(top);
    corners[1] = load(top + right);
    corners[2] = load(top + down);
    corners[3] = load(top + down + right);
  }

 private:
  // Flags in the upper half of the number.
  static constexpr uint32_t kIsUnread = 1u << 31, kIsFarDown = 1u << 30, kIsFarRight = 1u << 29;
  static constexpr int64_t kDistance = (int64_t{1} << 61) - 1;

  __device__ explicit PackedCorners(int64_t packed) : packed_(packed) {}

  int64_t packed_;
};

template <typename T, int N>
__global__ void AggregateKernel(Aggregation call, int log2_subwarp, const T* value, T* out) {
  using A = Accumulator<T>;
  const AggregationSizes& sizes = call.sizes;
  const int subwarp = 1 << log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  const int64_t pixel_bytes = sizes.heads * sizes.channels * sizeof(T);
  ForEachQueryHead<T>(call, log2_subwarp, [&](int64_t query, int64_t row, int64_t first_byte, bool is_valid) {
    for (int64_t first = 0; first < sizes.channels; first += subwarp * N) {
      const int64_t channel = first + lane * N;
      const bool has_channel = channel < sizes.channels;
      A sum[N] = {}, unread = 0;
      ForEachQuad<A>(call, query, row, [&](const Level& level, int32_t count, const LocatedTap<A>& tap) {
        const PixelDistances distances(pixel_bytes, level);
        const PixelPair y(tap.corners.y), x(tap.corners.x);
        const PackedCorners of_lane(first_byte, distances, level, y, x);
        const A tap_weight = tap.weight * y.weight * x.weight;
        A weight[4];
        for (int corner = 0; corner < 4; ++corner)
          weight[corner] = y.share(corner / 2) * x.share(corner % 2) * tap_weight;
        unread += of_lane.is_read() ? A(0) : tap.weight * tap.corners.unread_value();
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          if (k >= count) break;
          const PackedCorners corners = of_lane.Of(k);
          A corner_weight[4];
          for (int corner = 0; corner < 4; ++corner) {
            corner_weight[corner] = __shfl_sync(kWholeWarp, weight[corner], k, kQuad);
          }
          if (!has_channel || !corners.is_read()) continue;
          Vector<T, N> pixel[4];
          corners.Load(distances, value + channel, pixel);
          for (int corner = 0; corner < 4; ++corner) {
            for (int v = 0; v < N; ++v) sum[v] += corner_weight[corner] * A(pixel[corner].value[v]);
          }
        }
      });
      for (int lanes = 1; lanes < kQuad; lanes *= 2) unread += __shfl_xor_sync(kWholeWarp, unread, lanes);
      if (!is_valid || !has_channel) continue;
      Vector<T, N> result;
      for (int v = 0; v < N; ++v) result.value[v] = T(sum[v] + unread);
      AsVector<N>(out + row * sizes.channels + channel) = result;
    }
  });
}

// Adds up the dot products of a quad's taps over its lanes. A lane gives away those of half of the taps that it has,
// and keeps the others, until it has its own tap's.
template <typename A>
__device__ void SumOverQuad(const A (&dot)[kQuad][4], A (&own)[4]) {
  const bool is_upper = threadIdx.x & 2, is_odd = threadIdx.x & 1;
  for (int corner = 0; corner < 4; ++corner) {
    A pair[2];
    for (int k = 0; k < 2; ++k) {
      const A given = is_upper ? dot[k][corner] : dot[k + 2][corner];
      pair[k] = (is_upper ? dot[k + 2][corner] : dot[k][corner]) + __shfl_xor_sync(kWholeWarp, given, 2);
    }
    own[corner] = (is_odd ? pair[1] : pair[0]) + __shfl_xor_sync(kWholeWarp, is_odd ? pair[0] : pair[1], 1);
  }
}

// The factors from derivatives in pixels to those in the last dimension of `locations`.
template <typename A>
__device__ Vector<A, 2> PixelsPerUnit(const AggregationSizes& sizes, const Level& level) {
  if (sizes.sampling == SamplingMethod::kBilinear) return {A(level.width), A(level.height)};
  return {A(sizes.offset_scale), A(sizes.offset_scale)};
}

template <typename T, int N>
__global__ void TapCotangentsKernel(Aggregation call, int log2_subwarp, const T* value, const T* d_out,
                                    Accumulator<T>* d_locations, Accumulator<T>* d_weights) {
  using A = Accumulator<T>;
  const AggregationSizes& sizes = call.sizes;
  const int subwarp = 1 << log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  const int64_t pixel_bytes = sizes.heads * sizes.channels * sizeof(T);
  ForEachQueryHead<T>(call, log2_subwarp, [&](int64_t query, int64_t row, int64_t first_byte, bool is_valid) {
    const T* const cotangent = d_out + row * sizes.channels;
    ForEachQuad<A>(call, query, row, [&](const Level& level, int32_t count, const LocatedTap<A>& tap) {
      const PixelDistances distances(pixel_bytes, level);
      const PackedCorners of_lane(first_byte, distances, level, PixelPair(tap.corners.y), PixelPair(tap.corners.x));
      A dots[kQuad][4] = {};
      for (int64_t first = 0; first < sizes.channels; first += subwarp * N) {
        const int64_t channel = first + lane * N;
        const bool has_channel = channel < sizes.channels;
        Vector<T, N> d = {};
        if (has_channel) d = AsVector<N>(cotangent + channel);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          if (k >= count) break;
          const PackedCorners corners = of_lane.Of(k);
          if (!has_channel || !corners.is_read()) continue;
          Vector<T, N> pixel[4];
          corners.Load(distances, value + channel, pixel);
          for (int corner = 0; corner < 4; ++corner) {
            for (int v = 0; v < N; ++v) dots[k][corner] += A(d.value[v]) * A(pixel[corner].value[v]);
          }
        }
      }
      A dot[4];
      SumOverQuad(dots, dot);
      for (int corner = 0; corner < 4; ++corner) {
        for (int lanes = kQuad; lanes < subwarp; lanes *= 2)
          dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], lanes);
        if (!tap.corners.is_read(corner)) dot[corner] = A(0);
      }
      if (!is_valid || lane >= count) return;
      const PositionCotangents<A> cotangents = CotangentsOfPosition(tap.corners, dot, tap.weight);
      if (d_weights) d_weights[tap.index] = cotangents.mask;
      if (!d_locations) return;
      Vector<A, 2> d_location = PixelsPerUnit<A>(sizes, level);
      d_location.value[0] *= cotangents.x;
      d_location.value[1] *= cotangents.y;
      AsVector<2>(d_locations + 2 * tap.index) =
          sizes.sampling == SamplingMethod::kDiscrete ? Vector<A, 2>{A(0), A(0)} : d_location;
    });
  });
}

// The blocks for all subwarps. They are small, because registers limit the occupancy.
Grid GridFor(const AggregationSizes& sizes, int log2_subwarp) {
  constexpr int kBlockThreads = 128;
  return {((NumQueryHeads(sizes) << log2_subwarp) + kBlockThreads - 1) / kBlockThreads, kBlockThreads};
}

}  // namespace

const char* Aggregate(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps, const void* value,
                      void* out) {
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    const int log2_subwarp = Log2Subwarp(sizes, N);
    return Launch<AggregateKernel<T, N>>(device, GridFor(sizes, log2_subwarp), Aggregation(sizes, taps), log2_subwarp,
                                         static_cast<const T*>(value), static_cast<T*>(out));
  });
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                          const void* value, const void* d_out, void* d_locations, void* d_weights) {
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const int log2_subwarp = Log2Subwarp(sizes, N);
    return Launch<TapCotangentsKernel<T, N>>(device, GridFor(sizes, log2_subwarp), Aggregation(sizes, taps),
                                             log2_subwarp, static_cast<const T*>(value), static_cast<const T*>(d_out),
                                             static_cast<A*>(d_locations), static_cast<A*>(d_weights));
  });
}

}  // namespace dcn
