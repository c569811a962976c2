// Where the taps of an aggregation sample. aggregation_positions.cc is compiled without fused multiply-adds, which the
// last bits of the positions require; the kernels, in aggregation.cc, are compiled with them.
#pragma once

#include <cstdint>

#include "aggregation.h"
#include "sampling.h"

namespace dcn {

// The corners of up to kMaxTaps taps of a query and head, as arrays, so that the compiler vectorizes their computation.
template <typename A>
struct TapCorners {
  static constexpr int kMaxTaps = 32;
  int32_t pixel[2][2][kMaxTaps];  // axes: vertical, horizontal; neighbours: first, second
  A fraction[2][kMaxTaps];

  BilinearCorners<A> operator[](int i) const { return {Axis(0, i), Axis(1, i)}; }

 private:
  AxisLocation<A> Axis(int axis, int i) const {
    return {{pixel[axis][0][i], pixel[axis][1][i]}, fraction[axis][i], pixel[axis][0][i] != kOutside};
  }
};

// Locates the taps [first_tap, first_tap + count) of a query, all of one level. `query` counts the rows and columns of
// a call; `locations` are those of these taps.
template <typename A>
void LocateTaps(const AggregationSizes&, const int32_t* origin, const Level&, int64_t query, int32_t first_tap,
                int count, const A* locations, TapCorners<A>& corners);

}  // namespace dcn
