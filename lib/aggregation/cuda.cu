// The CUDA kernels of a deformable aggregation and of the cotangents of its taps. A subwarp, some
// neighbouring lanes of a warp, has the channels of a query and head. Each lane of a quad, four neighbouring lanes of
// the subwarp, locates another tap. Then the whole subwarp reads the four taps' corners, one tap after the other. Where
// queries and heads are few, several subwarps take turns with the quads of taps.
#include "aggregation/aggregation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "aggregation/cuda_taps.h"
#include "device.h"
#include "launch.h"
#include "pixel_pair.h"
#include "vector.h"

namespace dcn {
namespace {

constexpr int kQuad = 4, kMaxLog2Subwarp = 5;

DCN_HOST_DEVICE int64_t NumQueryHeads(const AggregationSizes& sizes) {
  return sizes.batches * sizes.heads * sizes.queries();
}

// A level without taps has nothing to locate.
AggregationSizes WithoutEmptyLevels(AggregationSizes sizes) {
  int32_t count = 0;
  for (int32_t i = 0; i < sizes.num_levels; ++i) {
    if (sizes.levels[i].taps > 0) sizes.levels[count++] = sizes.levels[i];
  }
  sizes.num_levels = count;
  return sizes;
}

// How a warp is divided among queries and heads. The sizes have no empty levels.
struct Lanes {
  int log2_subwarp;  // the lanes of a subwarp, which have a vector of the channels each
  int log2_lanes;    // of all subwarps that have the same query and head
  int steps;         // in each of which a subwarp has a quad of taps

  Lanes(const AggregationSizes& sizes, int64_t vector) : log2_subwarp(2) {
    constexpr int64_t kManyLanes = 1 << 18;  // enough to keep a large GPU busy
    while (log2_subwarp < kMaxLog2Subwarp && (vector << log2_subwarp) < sizes.channels) ++log2_subwarp;
    int64_t quads = 0;
    for (int32_t i = 0; i < sizes.num_levels; ++i) quads += CeilDiv(sizes.levels[i].taps, kQuad);
    log2_lanes = log2_subwarp;
    while (log2_lanes < kMaxLog2Subwarp && 2 * turns() <= quads && NumQueryHeads(sizes) << log2_lanes < kManyLanes)
      ++log2_lanes;
    steps = int(CeilDiv(quads, turns()));
  }

  DCN_HOST_DEVICE int subwarp() const { return 1 << log2_subwarp; }
  DCN_HOST_DEVICE int turns() const { return 1 << (log2_lanes - log2_subwarp); }
  __device__ int lane() const { return int(threadIdx.x) & (subwarp() - 1); }  // of the calling thread in its subwarp
  __device__ int turn() const { return (int(threadIdx.x) >> log2_subwarp) & (turns() - 1); }
};

// Calls f(query, row of `weights`, first byte of the head in the value, whether it is not past the end) for the work
// items of the calling thread's subwarps. Queries are counted first, so that neighbouring subwarps sample neighbouring
// pixels of the same head, which the L1 cache then has. All lanes of a warp exchange what they have located, so those
// past the end repeat the last item.
template <typename T, typename F>
__device__ void ForEachQueryHead(const Aggregation& aggregation, const Lanes& lanes, const F& f) {
  const AggregationSizes& sizes = aggregation.sizes;
  const int64_t n = NumQueryHeads(sizes);
  for (int64_t first = global_thread() / kWarp * kWarp; first < n << lanes.log2_lanes; first += grid_stride()) {
    const int64_t work_item = (first + threadIdx.x % kWarp) >> lanes.log2_lanes, existing = min(work_item, n - 1);
    const int64_t head_of_all = aggregation.by_queries.Quotient(existing),
                  batch = aggregation.by_heads.Quotient(head_of_all);
    const int64_t query = existing - head_of_all * sizes.queries(), head = head_of_all - batch * sizes.heads;
    const QueryHead query_head = {batch, query, head};
    f(query, query_head.index(sizes), FirstChannel(sizes, query_head) * sizeof(T), work_item < n);
  }
}

// The tap of a quad's lane, and the corners of its sample.
template <typename A>
struct LocatedTap {
  int32_t quad_taps;  // how many of the quad's lanes have a tap of their own
  int64_t index;      // in `weights`
  A weight;
  BilinearCorners<A> corners;
};

// Calls f(level, located tap) for the taps of a query and head, a quad at a time. `row` is the row of `weights`. With a
// level of six taps and one of three, two subwarps of eight lanes that take turns have these taps:
//
//   lane     0   1   2   3   4   5   6   7     8   9  10  11  12  13  14  15
//   step 0   0   1   2   3   0   1   2   3     4   5  (5) (5)  4   5  (5) (5)
//   step 1   6   7   8  (8)  6   7   8  (8)   (6) (7) (8) (8) (6) (7) (8) (8)
//
// Those in brackets are repeated, because all lanes of a warp make the same calls and take part in its shuffles.
template <bool kTakesTurns, typename A, typename F>
__device__ void ForEachQuad(const Aggregation& aggregation, const Lanes& lanes, int64_t query, int64_t row,
                            const F& f) {
  const TapLocator<A> locate(aggregation, query);
  const AggregationSizes& sizes = aggregation.sizes;
  const int turns = kTakesTurns ? lanes.turns() : 1;
  int32_t i = 0, first = 0;
  const auto advance = [&](int quads) {
    for (; quads > 0 && i < sizes.num_levels; --quads) {
      first += kQuad;
      if (first < sizes.levels[i].taps) continue;
      first = 0;
      ++i;
    }
  };
  advance(kTakesTurns ? lanes.turn() : 0);
  for (int step = 0; step < lanes.steps; ++step, advance(turns)) {
    const bool is_past = kTakesTurns && i == sizes.num_levels;
    const Level& level = sizes.levels[is_past ? i - 1 : i];
    const int32_t count = is_past ? 0 : min(level.taps - first, kQuad);
    const int32_t tap = level.first_tap + min(first + int32_t(threadIdx.x % kQuad), level.taps - 1);
    const int64_t index = row * sizes.taps + tap;
    f(level,
      LocatedTap<A>{count, index, static_cast<const A*>(aggregation.taps.weights)[index], locate(level, tap, index)});
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

template <typename T, int N, bool kTakesTurns>
__global__ void AggregateKernel(Aggregation aggregation, Lanes lanes, const T* value, T* out) {
  using A = Accumulator<T>;
  const AggregationSizes& sizes = aggregation.sizes;
  const int64_t pixel_bytes = sizes.heads * sizes.channels * sizeof(T);
  ForEachQueryHead<T>(aggregation, lanes, [&](int64_t query, int64_t row, int64_t first_byte, bool is_valid) {
    for (int64_t first = 0; first < sizes.channels; first += lanes.subwarp() * N) {
      const int64_t channel = first + lanes.lane() * N;
      const bool has_channel = channel < sizes.channels;
      A sum[N] = {}, unread = 0;
      ForEachQuad<kTakesTurns, A>(aggregation, lanes, query, row, [&](const Level& level, const LocatedTap<A>& tap) {
        const PixelDistances distances(pixel_bytes, level);
        const PixelPair y(tap.corners.y), x(tap.corners.x);
        const PackedCorners of_lane(first_byte, distances, level, y, x);
        const A tap_weight = tap.weight * y.weight * x.weight;
        A weight[4];
        ComputeWeights(y, x, tap_weight, weight);
        unread += of_lane.is_read() ? A(0) : tap.weight * tap.corners.unread_value();
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          if (!kTakesTurns && k >= tap.quad_taps) break;
          const PackedCorners corners = of_lane.Of(k);
          A corner_weight[4];
          for (int corner = 0; corner < 4; ++corner) {
            corner_weight[corner] = __shfl_sync(kWholeWarp, weight[corner], k, kQuad);
          }
          if ((kTakesTurns && k >= tap.quad_taps) || !has_channel || !corners.is_read()) continue;
          Vector<T, N> pixel[4];
          corners.Load(distances, value + channel, pixel);
          for (int corner = 0; corner < 4; ++corner) {
            for (int v = 0; v < N; ++v) sum[v] += corner_weight[corner] * A(pixel[corner].value[v]);
          }
        }
      });
      for (int distance = 1; distance < kQuad; distance *= 2) unread += __shfl_xor_sync(kWholeWarp, unread, distance);
      for (A& of_channel : sum) of_channel += unread;
      for (int distance = lanes.subwarp(); distance < 1 << lanes.log2_lanes; distance *= 2) {
        for (A& of_channel : sum) of_channel += __shfl_xor_sync(kWholeWarp, of_channel, distance);
      }
      if (!is_valid || !has_channel || lanes.turn() > 0) continue;
      Vector<T, N> result;
      for (int v = 0; v < N; ++v) result.value[v] = T(sum[v]);
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

template <typename T, int N, bool kTakesTurns>
__global__ void TapCotangentsKernel(Aggregation aggregation, Lanes lanes, const T* value, const T* d_out,
                                    Accumulator<T>* d_locations, Accumulator<T>* d_weights) {
  using A = Accumulator<T>;
  const AggregationSizes& sizes = aggregation.sizes;
  const int64_t pixel_bytes = sizes.heads * sizes.channels * sizeof(T);
  ForEachQueryHead<T>(aggregation, lanes, [&](int64_t query, int64_t row, int64_t first_byte, bool is_valid) {
    const T* const cotangent = d_out + row * sizes.channels;
    ForEachQuad<kTakesTurns, A>(aggregation, lanes, query, row, [&](const Level& level, const LocatedTap<A>& tap) {
      const PixelDistances distances(pixel_bytes, level);
      const PackedCorners of_lane(first_byte, distances, level, PixelPair(tap.corners.y), PixelPair(tap.corners.x));
      A dots[kQuad][4] = {};
      for (int64_t first = 0; first < sizes.channels; first += lanes.subwarp() * N) {
        const int64_t channel = first + lanes.lane() * N;
        const bool has_channel = channel < sizes.channels;
        Vector<T, N> d = {};
        if (has_channel) d = AsVector<N>(cotangent + channel);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          if (!kTakesTurns && k >= tap.quad_taps) break;
          const PackedCorners corners = of_lane.Of(k);
          if (k >= tap.quad_taps || !has_channel || !corners.is_read()) continue;
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
        for (int distance = kQuad; distance < lanes.subwarp(); distance *= 2)
          dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], distance);
        if (!tap.corners.is_read(corner)) dot[corner] = A(0);
      }
      if (!is_valid || lanes.lane() >= tap.quad_taps) return;
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
Grid GridFor(const AggregationSizes& sizes, const Lanes& lanes) {
  constexpr int kBlockThreads = 128;
  return {CeilDiv(NumQueryHeads(sizes) << lanes.log2_lanes, kBlockThreads), kBlockThreads};
}

}  // namespace

const char* Aggregate(Device& device, DType dtype, const AggregationSizes& all_sizes, const Taps& taps,
                      const void* value, void* out) {
  const AggregationSizes sizes = WithoutEmptyLevels(all_sizes);
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    const Lanes lanes(sizes, N);
    const auto launch = [&](auto takes_turns) {
      return Launch<AggregateKernel<T, N, takes_turns.value>>(device, GridFor(sizes, lanes), Aggregation(sizes, taps),
                                                              lanes, static_cast<const T*>(value),
                                                              static_cast<T*>(out));
    };
    return lanes.turns() > 1 ? launch(std::true_type()) : launch(std::false_type());
  });
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& all_sizes, const Taps& taps,
                          const void* value, const void* d_out, void* d_locations, void* d_weights) {
  const AggregationSizes sizes = WithoutEmptyLevels(all_sizes);
  return DispatchVectors(dtype, sizes.channels, [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const Lanes lanes(sizes, N);
    const auto launch = [&](auto takes_turns) {
      return Launch<TapCotangentsKernel<T, N, takes_turns.value>>(
          device, GridFor(sizes, lanes), Aggregation(sizes, taps), lanes, static_cast<const T*>(value),
          static_cast<const T*>(d_out), static_cast<A*>(d_locations), static_cast<A*>(d_weights));
    };
    return lanes.turns() > 1 ? launch(std::true_type()) : launch(std::false_type());
  });
}

}  // namespace dcn
