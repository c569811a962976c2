#include "aggregation_positions.h"

namespace dcn {

template <typename A>
void LocateTaps(const AggregationSizes& sizes, const int32_t* origin, const Level& level, int64_t query,
                int32_t first_tap, int count, const A* locations, TapCorners<A>& corners) {
  for (int axis = 0; axis < 2; ++axis) {
    const int32_t size = axis == 0 ? level.height : level.width;
    const int64_t index = int64_t{origin[axis]} + (axis == 0 ? query / sizes.columns : query % sizes.columns);
    for (int i = 0; i < count; ++i) {
      const A coordinate = locations[2 * i + 1 - axis];
      AxisLocation<A> location;
      if (sizes.sampling == Sampling::kDiscrete) {
        location = LocateDiscrete(coordinate, size);
      } else if (sizes.sampling == Sampling::kBilinear) {
        location = LocateOnAxis(NormalizedPosition(coordinate, size), size, false);
      } else {
        const TapGrid& grid = sizes.grid;
        const A position = WindowPosition(grid.center(axis, index), grid.distance(axis, first_tap + i), coordinate,
                                          A(grid.offset_scale));
        location = LocateOnAxis(position, size, false);
      }
      corners.pixel[axis][0][i] = location.pixel[0];
      corners.pixel[axis][1][i] = location.pixel[1];
      corners.fraction[axis][i] = location.fraction;
    }
  }
}

template void LocateTaps(const AggregationSizes&, const int32_t*, const Level&, int64_t, int32_t, int, const float*,
                         TapCorners<float>&);
template void LocateTaps(const AggregationSizes&, const int32_t*, const Level&, int64_t, int32_t, int, const double*,
                         TapCorners<double>&);

}  // namespace dcn
