// The sampling locations of a deformable aggregation: normalised locations in the levels of a feature pyramid, or the
// taps of a window, moved by offsets. Host and device code share this one implementation; bilinear.h interpolates.
#pragma once

#include <cmath>
#include <cstdint>

#include "bilinear.h"
#include "host_device.h"
#include "rounded_product.h"
#include "window.h"

namespace dcn {

// The limit is more than the levels of a pyramid whose sizes halve until they are 1. It lets kernels take the levels by
// value.
constexpr int kMaxLevels = 32;
// The most taps per query and head, in all levels. Kernels round 32-bit numbers of taps up.
constexpr int64_t kMaxTaps = int64_t{1} << 24;

// A feature map of the value. Its pixels are consecutive, and so are its taps among those of a query.
struct Level {
  int32_t height, width;
  int32_t taps;         // per query and head
  int32_t first_tap;    // in all taps of the query and head
  int64_t first_pixel;  // in all pixels of the value

  // The cells by which samples are sorted: scatter/cells.h.
  int64_t cells() const { return (int64_t{height} + 1) * (int64_t{width} + 1); }
};

// How the last dimension of `locations`, (x, y), determines the position of a tap in its level.
enum class SamplingMethod {
  kBilinear,  // fractions of the level: 0 is the left or top edge of the first pixel, 1 the other edge of the last
  kDiscrete,  // the same, but the tap reads a single pixel, and has no derivative in its location
  kWindow,    // offsets in pixels from the taps of a window around the query's pixel; bilinear
};

// The cell of the window of SamplingMethod::kWindow that a tap has. Cells and taps are counted column by column;
// without `remove_center`, every cell has a tap.
DCN_HOST_DEVICE int32_t CellOfTap(const Window& window, bool remove_center, int32_t tap) {
  const int32_t center = window.kernel[1] / 2 * window.kernel[0] + window.kernel[0] / 2;
  return tap + (remove_center && tap >= center);
}
// The distance of the window's centre from its first cell.
DCN_HOST_DEVICE int32_t HalfWindow(const Window& window, int axis) {
  return window.dilation[axis] * (window.kernel[axis] - 1) / 2;
}
// The coordinate of the window's centre for a row or column of queries.
DCN_HOST_DEVICE int64_t WindowCenter(const Window& window, int axis, int64_t query) {
  return window.start(axis, query) + HalfWindow(window, axis);
}
// The distance of a row (axis 0) or column (axis 1) of cells from the window's centre. The offset is added to it, and
// offset_scale scales both.
DCN_HOST_DEVICE int32_t CenterDistance(const Window& window, int axis, int32_t row_or_column) {
  return row_or_column * window.dilation[axis] - HalfWindow(window, axis);
}

// `size` is the level's height or width; `location` is the matching coordinate of the tap.
template <typename A>
DCN_HOST_DEVICE A NormalizedPosition(A location, int32_t size) {
  return RoundedProduct(location, A(size)) - A(0.5);
}

// `center` is a WindowCenter and `distance` a CenterDistance; `offset` is the matching coordinate of the tap.
template <typename A>
DCN_HOST_DEVICE A WindowPosition(int64_t center, int32_t distance, A offset, A offset_scale) {
  return A(center) + RoundedProduct(A(distance) + offset, offset_scale);
}

// A sample of the single pixel at or beyond a location, as RT-DETRv2 rounds it: half a pixel after the bilinear
// position. Locations outside read the border, also infinite ones. Only corner 0 of the sample is read, with weight 1.
template <typename A>
DCN_HOST_DEVICE AxisLocation<A> LocateDiscrete(A location, int32_t size) {
  const A position = RoundedProduct(location, A(size)) + A(0.5);
  if (position != position) return {{kOutside, -1}, position, false};
  const int32_t pixel = !(position > A(0)) ? 0 : position < A(size) ? int32_t(position) : size - 1;
  return {{pixel, -1}, A(0), true};
}

}  // namespace dcn
