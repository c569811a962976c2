// The sample points of each bin of a region of interest (RoI), and the pixels and weights that they read. Host and
// device code share this one implementation.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace dcn {

// The convention decides the locations of a bin's sample points, and which of them count. All other differences follow.
//
//                         kRounded                kAligned          kUnaligned
//   corners of an RoI     rounded to pixels, the  exact             exact
//                         last one included
//   subtracted from them  1/2                     1/2               0
//   smallest size         0.1                     none              1
//   point i of a bin at   i steps                 i + 1/2 steps     i + 1/2 steps
//   valid positions       -1/2 to length - 1/2    -1 to length      -1 to length
//   mean over             valid points            all points        all points
//   slope on a pixel      0                       that after it     that after it
//
// kRounded is deformable PS-RoI pooling, kAligned and kUnaligned are RoIAlign with and without its half-pixel shift.
enum class RoiConvention : int32_t { kRounded, kAligned, kUnaligned };

struct PoolSizes {
  int64_t batches, images, height, width, channels, rois, classes;
  // Rows and columns of bins, channel groups and parts of an RoI, and of sample points per bin; 0 points: adaptive, one
  // per pixel of the bin, rounded up. A part, as the paper calls it, is a cell of the RoI that has an offset of its
  // own.
  int32_t output[2], group[2], part[2], points[2];
  RoiConvention convention;
  double spatial_scale, trans_std;

  DCN_HOST_DEVICE bool is_rounded() const { return convention == RoiConvention::kRounded; }
  DCN_HOST_DEVICE int64_t length(int axis) const { return axis == 0 ? height : width; }
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
  A start[2], size[2];  // the size is negative if the corners are in the wrong order, which kAligned allows
  A bin_size[2];
  A points[2];  // sample points per bin, a whole number; an adaptive number has no bound that an integer could hold
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
  const A scale = A(sizes.spatial_scale), half = sizes.convention == RoiConvention::kUnaligned ? A(0) : A(0.5);
  for (int axis = 0; axis < 2; ++axis) {
    const A first = sizes.is_rounded() ? std::round(box[2 - axis]) : box[2 - axis];
    const A end = sizes.is_rounded() ? std::round(box[4 - axis]) + A(1) : box[4 - axis];
    roi.start[axis] = first * scale - half;
    A size = end * scale - half - roi.start[axis];
    if (!(size - size == A(0))) roi.state = RoiState::kNotFinite;
    if (sizes.convention != RoiConvention::kAligned) {
      const A smallest = sizes.is_rounded() ? A(0.1) : A(1);
      size = size > smallest ? size : smallest;
    }
    roi.size[axis] = size;
    roi.bin_size[axis] = size / A(sizes.output[axis]);
    const A adaptive = roi.bin_size[axis] > A(0) ? std::ceil(roi.bin_size[axis]) : A(0);
    roi.points[axis] = sizes.points[axis] ? A(sizes.points[axis]) : adaptive;
  }
  return roi;
}

// A sample point of a bin along one axis. It is interpolated between two pixels, which are equal where the derivative
// with respect to the position is zero.
template <typename A>
struct PoolPoint {
  bool is_valid;  // in bounds, so that it is not zero, and in kRounded counts towards the mean
  int32_t pixel[2];
  A fraction;

  DCN_HOST_DEVICE A weight(int i) const { return i ? fraction : A(1) - fraction; }
  DCN_HOST_DEVICE A WeightOf(int64_t index) const {
    return (index == pixel[0] ? weight(0) : A(0)) + (index == pixel[1] ? weight(1) : A(0));
  }
  // The derivative of the weight with respect to the position. Unlike the convolution's, it is zero where the position
  // is clamped, and in kRounded also on a pixel.
  DCN_HOST_DEVICE A slope(int i) const { return pixel[0] == pixel[1] ? A(0) : i ? A(1) : A(-1); }
};

// Interpolates along an axis of `size` pixels at `position`.
template <typename A>
DCN_HOST_DEVICE PoolPoint<A> LocatePosition(const PoolSizes& sizes, int64_t size, A position) {
  const A lowest = sizes.is_rounded() ? A(-0.5) : A(-1), highest = A(size) - (sizes.is_rounded() ? A(0.5) : A(0));
  if (!(size > 0 && position >= lowest && position <= highest)) return {false, {0, 0}, A(0)};
  const int32_t last = int32_t(size - 1);  // A(size - 1) may be rounded up: float has no odd integers above 2^24
  if (position < A(0)) return {true, {0, 0}, A(0)};
  if (position >= A(last)) return {true, {last, last}, A(0)};
  const A low = std::floor(position), high = sizes.is_rounded() ? std::ceil(position) : low + A(1);
  const auto to_pixel = [&](A whole) { return whole < A(last) ? int32_t(whole) : last; };
  return {true, {to_pixel(low), to_pixel(high)}, position - low};
}

// The sample points of a row (axis 0) or column (axis 1) of bins that can be in the image: `count` points from index
// `first` on.
//
// A fixed number of points is visited whole. An adaptive number has no bound, but neighbours are more than half a pixel
// apart wherever a bin has several, so that few are in the image. One before and one after them are visited too,
// because the first index is rounded. Every visited point is tested.
template <typename A>
struct BinPoints {
  A origin;  // the position of the bin's first edge
  A first;   // a whole number
  A scale;   // the step between points in kRounded, otherwise the size of a bin
  int32_t count;

  // `shift` is the scaled offset, as a fraction of the RoI's size.
  DCN_HOST_DEVICE BinPoints(const PoolSizes& sizes, const Roi<A>& roi, int axis, int64_t bin, A shift)
      : origin(roi.start[axis] + A(bin) * roi.bin_size[axis] + shift * roi.size[axis]),
        first(0),
        scale(sizes.is_rounded() ? roi.bin_size[axis] / roi.points[axis] : roi.bin_size[axis]),
        count(sizes.points[axis]) {
    if (count) return;
    const A most = roi.points[axis], before = (A(-1) - origin) / (roi.bin_size[axis] / most) - A(1.5);
    first = before > A(0) ? std::floor(before) : A(0);
    first = first < most ? first : most;
    count = int32_t(MostVisited(sizes, axis));
    if (most - first < A(count)) count = int32_t(most - first);
  }

  // An upper bound on `count`.
  DCN_HOST_DEVICE static int64_t MostVisited(const PoolSizes& sizes, int axis) {
    return sizes.points[axis] ? sizes.points[axis] : 2 * sizes.length(axis) + 6;
  }

  // The point at index first + i.
  DCN_HOST_DEVICE PoolPoint<A> Locate(const PoolSizes& sizes, const Roi<A>& roi, int axis, int32_t i) const {
    const A index = first + A(i);
    const A distance = sizes.is_rounded() ? index * scale : (index + A(0.5)) * scale / roi.points[axis];
    return LocatePosition(sizes, sizes.length(axis), origin + distance);
  }
};

// The largest of a bin's sample points and its location. Points outside the image are zero. A NaN is larger than any
// number, and the first of equal points is kept, in the order of rows and then columns.
template <typename A>
struct Largest {
  A value = 0;
  int32_t row = -1, column = -1;  // among the visited points; -1 if the point is outside the image, or there is none
  bool is_empty = true;

  DCN_HOST_DEVICE void Add(A candidate, bool is_valid, int32_t candidate_row, int32_t candidate_column) {
    const bool is_larger = candidate > value || (candidate != candidate && value == value);
    if (!is_empty && !is_larger) return;
    value = candidate;
    row = is_valid ? candidate_row : -1;
    column = is_valid ? candidate_column : -1;
    is_empty = false;
  }
};

// Calls visit(pixel, weight, slope) for each pixel that a row or column of bins reads along an axis, in ascending
// order. `weight` and `slope` are sums over the bin's sample points. Returns the number of points that count towards
// the mean.
//
// The points of a bin are the outer product of those along its two axes, and so are their weights. A bin is therefore a
// weighted sum of a few pixels, however many points it has.
template <typename A, typename F>
DCN_HOST_DEVICE A ForEachPixel(const PoolSizes& sizes, const Roi<A>& roi, int axis, int64_t bin, A shift,
                               const F& visit) {
  const BinPoints<A> points(sizes, roi, axis, bin, shift);
  int32_t num_valid = 0, pixel = 0;
  A weight[2] = {0, 0}, slope[2] = {0, 0};  // of `pixel` and `pixel` + 1
  const bool is_ascending = roi.size[axis] >= A(0);
  for (int32_t i = 0;; ++i) {
    const bool is_end = i == points.count;
    PoolPoint<A> point = {};
    if (!is_end) {
      point = points.Locate(sizes, roi, axis, is_ascending ? i : points.count - 1 - i);
      if (!point.is_valid) continue;
      ++num_valid;
    }
    // Pixels before those of the point have their sums. A loop, because each call of `visit` is inlined.
    const int32_t first = is_end ? pixel + 2 : point.pixel[0];
    for (int complete = first == pixel ? 0 : first == pixel + 1 ? 1 : 2; complete > 0; --complete, ++pixel) {
      if (weight[0] != A(0) || slope[0] != A(0)) visit(pixel, weight[0], slope[0]);
      weight[0] = weight[1];
      slope[0] = slope[1];
      weight[1] = slope[1] = A(0);
    }
    if (is_end) break;
    pixel = first;
    for (int side = 0; side < 2; ++side) {
      weight[side] += point.weight(side);
      slope[side] += point.slope(side);
    }
  }
  return sizes.is_rounded() ? A(num_valid) : roi.points[axis];
}

}  // namespace dcn
