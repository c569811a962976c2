// The sample points of each bin of a region of interest (RoI), and the pixels and weights that they read. Host and
// device code share this one implementation.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace dcn {

struct PoolSizes {
  int64_t batches, images, height, width, channels, rois, classes;
  // Rows and columns of bins, channel groups and parts of an RoI, and of sample points per bin.
  int32_t output[2], group[2], part[2], points[2];
  double spatial_scale, trans_std;

  DCN_HOST_DEVICE int64_t groups() const { return int64_t{group[0]} * group[1]; }
  DCN_HOST_DEVICE int64_t bins() const { return int64_t{output[0]} * output[1]; }
  DCN_HOST_DEVICE int64_t features() const { return channels / groups(); }
  DCN_HOST_DEVICE int64_t class_features() const { return features() / classes; }
  // The row (axis 0) or column (axis 1) of `grid`, which is `group` or `part`, that contains a row or column of bins.
  DCN_HOST_DEVICE int64_t GridCellOfBin(int axis, int64_t bin, const int32_t grid[2]) const {
    return bin * grid[axis] / output[axis];
  }
};

// kPadding: the image index is out of range. kNotFinite: a corner or the size of the RoI is infinite or NaN.
enum class RoiState { kValid, kPadding, kNotFinite };

// Positions and lengths are in pixels of x, with y before x.
template <typename A>
struct Roi {
  RoiState state;
  int64_t image;
  A start[2], size[2];
  A bin_size[2];
  A step[2];  // between neighbouring sample points of a bin
};

// box: image index, x1, y1, x2, y2.
template <typename A>
DCN_HOST_DEVICE Roi<A> LocateRoi(const PoolSizes& sizes, const A* box) {
  Roi<A> roi = {RoiState::kValid, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}};
  if (!(box[0] >= A(0) && box[0] < A(sizes.images))) {
    roi.state = RoiState::kPadding;
    return roi;
  }
  roi.image = int64_t(box[0]);
  const A scale = A(sizes.spatial_scale);
  for (int axis = 0; axis < 2; ++axis) {
    roi.start[axis] = std::round(box[2 - axis]) * scale - A(0.5);
    const A size = (std::round(box[4 - axis]) + A(1)) * scale - A(0.5) - roi.start[axis];
    if (!(size - size == A(0))) roi.state = RoiState::kNotFinite;
    roi.size[axis] = size > A(0.1) ? size : A(0.1);
    roi.bin_size[axis] = roi.size[axis] / A(sizes.output[axis]);
    roi.step[axis] = roi.bin_size[axis] / A(sizes.points[axis]);
  }
  return roi;
}

// A sample point of a bin along one axis. It is interpolated between pixel[0] = floor and pixel[1] = ceil of its
// position, which are equal if the position is an integer.
template <typename A>
struct PoolPoint {
  bool is_valid;  // in bounds, so that it counts towards the mean
  int32_t pixel[2];
  A fraction;

  DCN_HOST_DEVICE A weight(int i) const { return i ? fraction : A(1) - fraction; }
  // The derivative of the weight with respect to the position. Unlike the convolution's, it is zero on a pixel.
  DCN_HOST_DEVICE A slope(int i) const { return pixel[0] == pixel[1] ? A(0) : i ? A(1) : A(-1); }
};

// Sample point `i` of a row or column of bins. `shift` is the scaled offset, as a fraction of the RoI's size.
template <typename A>
DCN_HOST_DEVICE PoolPoint<A> LocatePoint(const PoolSizes& sizes, const Roi<A>& roi, int axis, int64_t bin, int32_t i,
                                         A shift) {
  const int64_t size = axis == 0 ? sizes.height : sizes.width;
  A position = roi.start[axis] + A(bin) * roi.bin_size[axis] + shift * roi.size[axis] + A(i) * roi.step[axis];
  if (!(size > 0 && position >= A(-0.5) && position <= A(size) - A(0.5))) return {false, {0, 0}, A(0)};
  position = position < A(0) ? A(0) : position > A(size - 1) ? A(size - 1) : position;
  const A low = std::floor(position);
  const int32_t last = int32_t(size - 1);  // A(size - 1) may be rounded up: float has no odd integers above 2^24
  const auto to_pixel = [&](A whole) { return whole < A(last) ? int32_t(whole) : last; };
  return {true, {to_pixel(low), to_pixel(std::ceil(position))}, position - low};
}

// Calls visit(pixel, weight, slope) for each pixel that a row or column of bins reads along an axis, in ascending
// order. `weight` and `slope` are sums over the bin's sample points. Returns the number of valid points.
//
// The points of a bin are the outer product of those along its two axes, and so are their weights. A bin is therefore a
// weighted sum of a few pixels, however many points it has.
template <typename A, typename F>
DCN_HOST_DEVICE int32_t ForEachPixel(const PoolSizes& sizes, const Roi<A>& roi, int axis, int64_t bin, A shift,
                                     const F& visit) {
  int32_t num_valid = 0, pixel = 0;
  A weight[2] = {0, 0}, slope[2] = {0, 0};  // of `pixel` and `pixel` + 1
  const auto flush = [&](int side) {
    if (weight[side] != A(0) || slope[side] != A(0)) visit(pixel + side, weight[side], slope[side]);
  };
  for (int32_t i = 0; i < sizes.points[axis]; ++i) {
    const PoolPoint<A> point = LocatePoint(sizes, roi, axis, bin, i, shift);
    if (!point.is_valid) continue;
    if (num_valid++ && point.pixel[0] != pixel) {
      flush(0);
      const bool is_next = point.pixel[0] == pixel + 1;
      if (!is_next) flush(1);
      weight[0] = is_next ? weight[1] : A(0);
      slope[0] = is_next ? slope[1] : A(0);
      weight[1] = slope[1] = A(0);
    }
    pixel = point.pixel[0];
    for (int side = 0; side < 2; ++side) {
      weight[side] += point.weight(side);
      slope[side] += point.slope(side);
    }
  }
  flush(0);
  flush(1);
  return num_valid;
}

}  // namespace dcn
