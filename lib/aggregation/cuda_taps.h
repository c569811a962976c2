// The sampling locations of a deformable aggregation on the GPU.
#pragma once

#include <cstdint>

#include "aggregation/aggregation.h"
#include "division.h"
#include "vector.h"

namespace dcn {

// What the kernels know of a aggregation.
struct Aggregation {
  AggregationSizes sizes;
  Taps taps;
  WideDivisor by_queries, by_heads, by_columns;
  Divisor by_taps, by_kernel_rows;

  Aggregation(const AggregationSizes& sizes, const Taps& taps)
      : sizes(sizes),
        taps(taps),
        by_queries(sizes.queries()),
        by_heads(sizes.heads),
        by_columns(sizes.columns),
        by_taps(sizes.taps),
        by_kernel_rows(sizes.window.kernel[0]) {}
};

// A query and a head of a batch, to which a row of `weights` and a row of `out` belong.
struct QueryHead {
  int64_t batch, query, head;

  // The index of the row.
  __device__ int64_t index(const AggregationSizes& sizes) const {
    return (batch * sizes.queries() + query) * sizes.heads + head;
  }
};

// The index of the first channel of the head at the first pixel of the batch, in `value`.
__device__ inline int64_t FirstChannel(const AggregationSizes& sizes, const QueryHead& query_head) {
  return (query_head.batch * sizes.pixels * sizes.heads + query_head.head) * sizes.channels;
}

// Locates the taps of a query.
template <typename A>
class TapLocator {
 public:
  __device__ TapLocator(const Aggregation& aggregation, int64_t query) : aggregation_(aggregation) {
    if (aggregation.sizes.sampling != SamplingMethod::kWindow) return;
    const int64_t row = aggregation.by_columns.Quotient(query), column = query - row * aggregation.sizes.columns;
    center_[0] = WindowCenter(aggregation.sizes.window, 0, aggregation.taps.origin[0] + row);
    center_[1] = WindowCenter(aggregation.sizes.window, 1, aggregation.taps.origin[1] + column);
    scale_ = A(aggregation.sizes.offset_scale);
  }

  // `tap` counts those of all levels; `index` is that of the tap in `weights`.
  __device__ BilinearCorners<A> operator()(const Level& level, int32_t tap, int64_t index) const {
    const Vector<A, 2> location = AsVector<2>(static_cast<const A*>(aggregation_.taps.locations) + 2 * index);
    const A x = location.value[0], y = location.value[1];
    if (aggregation_.sizes.sampling == SamplingMethod::kDiscrete) {
      return {LocateDiscrete(y, level.height), LocateDiscrete(x, level.width)};
    }
    if (aggregation_.sizes.sampling == SamplingMethod::kBilinear) {
      return Corners(level, NormalizedPosition(y, level.height), NormalizedPosition(x, level.width));
    }
    const Window& window = aggregation_.sizes.window;
    const int32_t cell = CellOfTap(window, aggregation_.sizes.remove_center, tap),
                  column = int32_t(aggregation_.by_kernel_rows.Quotient(uint32_t(cell)));
    const int32_t row = cell - column * window.kernel[0];
    return Corners(level, WindowPosition(center_[0], CenterDistance(window, 0, row), y, scale_),
                   WindowPosition(center_[1], CenterDistance(window, 1, column), x, scale_));
  }

 private:
  __device__ static BilinearCorners<A> Corners(const Level& level, A y, A x) {
    return LocateCorners(y, x, level.height, level.width, false);
  }

  const Aggregation& aggregation_;
  // The center of the query's window, and the scale of its offsets, in SamplingMethod::kWindow.
  int64_t center_[2];
  A scale_;
};

}  // namespace dcn
