#include "aggregation.h"

#include <algorithm>
#include <vector>

#include "aggregation_positions.h"
#include "device.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {
namespace {

// A tap of a query and head.
template <typename A>
struct Sample {
  BilinearCorners<A> corners;
  const Level& level;
  int64_t index;  // in the weights, and in the locations as pairs

  // The index of a corner that is read, among the pixels of all levels.
  int64_t pixel(int corner) const { return level.first_pixel + corners.pixel(corner, 0, level.width); }
};

// Calls body(Sample) for the taps of a query and head. `query` counts the queries of all batches.
template <typename A, typename Body>
void ForEachSample(const AggregationSizes& sizes, const Taps& taps, int64_t query, int64_t head, const Body& body) {
  const int64_t first = (query * sizes.heads + head) * sizes.taps;
  TapCorners<A> corners;
  for (int32_t l = 0; l < sizes.num_levels; ++l) {
    const Level& level = sizes.levels[l];
    const int32_t end = level.first_tap + level.taps;
    for (int32_t tap = level.first_tap, count; tap < end; tap += count) {
      count = std::min(TapCorners<A>::kMaxTaps, end - tap);
      const A* locations = static_cast<const A*>(taps.locations) + 2 * (first + tap);
      LocateTaps(sizes, taps.origin, level, query % sizes.queries(), tap, count, locations, corners);
      for (int i = 0; i < count; ++i) body(Sample<A>{corners[i], level, first + tap + i});
    }
  }
}

template <typename T>
void AggregateHead(const AggregationSizes& sizes, const Taps& taps, const T* value, T* out, int64_t query, int64_t head,
                   std::vector<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t channels = sizes.channels, stride = sizes.heads * channels;
  value += query / sizes.queries() * sizes.pixels * stride + head * channels;
  A *sum = scratch.data(), *sampled = sum + channels;
  std::fill_n(sum, channels, A(0));
  ForEachSample<A>(sizes, taps, query, head, [&](const Sample<A>& sample) {
    std::fill_n(sampled, channels, sample.corners.unread_value());
    for (int corner = 0; corner < 4; ++corner) {
      if (!sample.corners.is_read(corner)) continue;
      const A weight = sample.corners.weight(corner);
      const T* pixel = value + sample.pixel(corner) * stride;
      for (int64_t c = 0; c < channels; ++c) sampled[c] += weight * A(pixel[c]);
    }
    const A weight = static_cast<const A*>(taps.weights)[sample.index];
    for (int64_t c = 0; c < channels; ++c) sum[c] += weight * sampled[c];
  });
  for (int64_t c = 0; c < channels; ++c) out[(query * sizes.heads + head) * channels + c] = T(sum[c]);
}

template <typename T>
void ValueCotangentOfHead(const AggregationSizes& sizes, const Taps& taps, const T* d_out, void* d_value, bool is_wide,
                          int64_t batch, int64_t head) {
  using A = Accumulator<T>;
  const int64_t channels = sizes.channels;
  std::vector<A> sums(sizes.pixels * channels);
  for (int64_t query = batch * sizes.queries(); query < (batch + 1) * sizes.queries(); ++query) {
    const T* d = d_out + (query * sizes.heads + head) * channels;
    ForEachSample<A>(sizes, taps, query, head, [&](const Sample<A>& sample) {
      for (int corner = 0; corner < 4; ++corner) {
        if (!sample.corners.is_read(corner)) continue;
        const A weight = sample.corners.weight(corner) * static_cast<const A*>(taps.weights)[sample.index];
        A* sum = &sums[sample.pixel(corner) * channels];
        for (int64_t c = 0; c < channels; ++c) sum[c] += weight * A(d[c]);
      }
    });
  }
  for (int64_t i = 0; i < sizes.pixels * channels; ++i) {
    const int64_t out = ((batch * sizes.pixels + i / channels) * sizes.heads + head) * channels + i % channels;
    if (is_wide) {
      static_cast<A*>(d_value)[out] = sums[i];
    } else {
      static_cast<T*>(d_value)[out] = T(sums[i]);
    }
  }
}

template <typename T>
void TapCotangentsOfHead(const AggregationSizes& sizes, const Taps& taps, const T* value, const T* d_out,
                         Accumulator<T>* d_locations, Accumulator<T>* d_weights, int64_t query, int64_t head) {
  using A = Accumulator<T>;
  const int64_t channels = sizes.channels, stride = sizes.heads * channels;
  const T* d = d_out + (query * sizes.heads + head) * channels;
  value += query / sizes.queries() * sizes.pixels * stride + head * channels;
  ForEachSample<A>(sizes, taps, query, head, [&](const Sample<A>& sample) {
    A dot[4] = {};
    for (int corner = 0; corner < 4; ++corner) {
      if (!sample.corners.is_read(corner)) continue;
      const T* pixel = value + sample.pixel(corner) * stride;
      for (int64_t c = 0; c < channels; ++c) dot[corner] += A(d[c]) * A(pixel[c]);
    }
    const A weight = static_cast<const A*>(taps.weights)[sample.index];
    const PositionCotangents<A> cotangents = CotangentsOfPosition(sample.corners, dot, weight);
    if (d_weights) d_weights[sample.index] = cotangents.mask;
    if (!d_locations) return;
    const bool window = sizes.sampling == Sampling::kWindow, moves = sizes.sampling != Sampling::kDiscrete;
    const A scale_x = window ? A(sizes.grid.offset_scale) : A(sample.level.width);
    const A scale_y = window ? A(sizes.grid.offset_scale) : A(sample.level.height);
    d_locations[2 * sample.index] = moves ? cotangents.x * scale_x : A(0);
    d_locations[2 * sample.index + 1] = moves ? cotangents.y * scale_y : A(0);
  });
}

// Calls body(query, head) for all queries of all batches.
template <typename Body>
void ForEachHead(Device& device, const AggregationSizes& sizes, const Body& body) {
  device.ParallelFor(sizes.batches * sizes.queries(), [&](int64_t query) {
    for (int64_t head = 0; head < sizes.heads; ++head) body(query, head);
  });
}

}  // namespace

const char* Aggregate(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps, const void* value,
                      void* out) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    ForEachHead(device, sizes, [&](int64_t query, int64_t head) {
      std::vector<Accumulator<T>> scratch(2 * sizes.channels);
      AggregateHead(sizes, taps, static_cast<const T*>(value), static_cast<T*>(out), query, head, scratch);
    });
  });
  return nullptr;
}

int64_t MinWorkspaceSize(const AggregationSizes&) { return 0; }

const char* ValueCotangent(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                           const void* d_out, bool is_wide, void* d_value, int32_t*, int64_t) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.heads, [&](int64_t task) {
      ValueCotangentOfHead(sizes, taps, static_cast<const T*>(d_out), d_value, is_wide, task / sizes.heads,
                           task % sizes.heads);
    });
  });
  return nullptr;
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                          const void* value, const void* d_out, void* d_locations, void* d_weights) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    ForEachHead(device, sizes, [&](int64_t query, int64_t head) {
      TapCotangentsOfHead(sizes, taps, static_cast<const T*>(value), static_cast<const T*>(d_out),
                          static_cast<A*>(d_locations), static_cast<A*>(d_weights), query, head);
    });
  });
  return nullptr;
}

}  // namespace dcn
