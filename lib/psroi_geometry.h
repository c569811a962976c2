// Which points a bin of a region averages. Host and device, the only copy.
#pragma once

#include <cmath>
#include <cstdint>

#include "geometry.h"

namespace dcn {

struct PoolSizes {
  int64_t batches, images, height, width, channels, regions, classes;
  int32_t output[2], group[2], part[2], points[2];  // rows and columns; points are those of a bin
  double spatial_scale, trans_std;

  DCN_HOST_DEVICE int64_t groups() const { return int64_t{group[0]} * group[1]; }
  DCN_HOST_DEVICE int64_t bins() const { return int64_t{output[0]} * output[1]; }
  DCN_HOST_DEVICE int64_t features() const { return channels / groups(); }
  DCN_HOST_DEVICE int64_t class_features() const { return features() / classes; }
  // Where bin p of an axis lies among its parts or groups.
  DCN_HOST_DEVICE int64_t Scaled(int axis, int64_t p, const int32_t size[2]) const {
    return p * size[axis] / output[axis];
  }
};

enum class RegionState { kPooled, kOutsideBatch, kNotFinite };

template <typename A>
struct Region {
  RegionState state;
  int64_t image;
  A start[2], extent[2], bin[2], step[2];  // y, x: where it begins, its size, a bin's, and from point to point of a bin
};

// roi: image index, x1, y1, x2, y2.
template <typename A>
DCN_HOST_DEVICE Region<A> LocateRegion(const PoolSizes& sizes, const A* roi) {
  Region<A> region = {RegionState::kPooled, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}};
  if (!(roi[0] >= A(0) && roi[0] < A(sizes.images))) {
    region.state = RegionState::kOutsideBatch;
    return region;
  }
  region.image = int64_t(roi[0]);
  const A scale = A(sizes.spatial_scale);
  for (int axis = 0; axis < 2; ++axis) {
    region.start[axis] = std::round(roi[2 - axis]) * scale - A(0.5);
    const A extent = (std::round(roi[4 - axis]) + A(1)) * scale - A(0.5) - region.start[axis];
    if (!(extent - extent == A(0))) region.state = RegionState::kNotFinite;
    region.extent[axis] = extent > A(0.1) ? extent : A(0.1);
    region.bin[axis] = region.extent[axis] / A(sizes.output[axis]);
    region.step[axis] = region.bin[axis] / A(sizes.points[axis]);
  }
  return region;
}

// A point of a bin along one axis: between pixel[0] and pixel[1], which are the same where it lies on one.
template <typename A>
struct PoolPoint {
  bool kept;
  int32_t pixel[2];
  A fraction;

  DCN_HOST_DEVICE A weight(int i) const { return i ? fraction : A(1) - fraction; }
  // The weight's derivative in the position.
  DCN_HOST_DEVICE A slope(int i) const { return pixel[0] == pixel[1] ? A(0) : i ? A(1) : A(-1); }
};

// Point i of bin p, moved by `shift` (a fraction of the region).
template <typename A>
DCN_HOST_DEVICE PoolPoint<A> LocatePoint(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p,
                                         int32_t i, A shift) {
  const int64_t size = axis == 0 ? sizes.height : sizes.width;
  A position = region.start[axis] + A(p) * region.bin[axis] + shift * region.extent[axis] + A(i) * region.step[axis];
  if (!(size > 0 && position >= A(-0.5) && position <= A(size) - A(0.5))) return {false, {0, 0}, A(0)};
  position = position < A(0) ? A(0) : position > A(size - 1) ? A(size - 1) : position;
  const A low = std::floor(position);
  const int32_t last = int32_t(size - 1);  // which A may have rounded up, from 2^24 on
  const auto pixel = [&](A whole) { return whole < A(last) ? int32_t(whole) : last; };
  return {true, {pixel(low), pixel(std::ceil(position))}, position - low};
}

// Calls touch(pixel, weight, slope) for every pixel that bin p's points touch along an axis, in ascending order, with
// the sums over the points, and returns how many points are kept. The points of a bin are the product of those along
// its two axes, and so are their weights: a bin is a sum over a few pixels, however many points there are.
template <typename A, typename F>
DCN_HOST_DEVICE int32_t ForEachTouch(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p, A shift,
                                     const F& touch) {
  int32_t kept = 0, pixel = 0;
  A weight[2] = {0, 0}, slope[2] = {0, 0};  // of `pixel` and of the one behind it
  const auto flush = [&](int side) {
    if (weight[side] != A(0) || slope[side] != A(0)) touch(pixel + side, weight[side], slope[side]);
  };
  for (int32_t i = 0; i < sizes.points[axis]; ++i) {
    const PoolPoint<A> point = LocatePoint(sizes, region, axis, p, i, shift);
    if (!point.kept) continue;
    if (kept++ && point.pixel[0] != pixel) {
      flush(0);
      const bool next = point.pixel[0] == pixel + 1;
      if (!next) flush(1);
      weight[0] = next ? weight[1] : A(0);
      slope[0] = next ? slope[1] : A(0);
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
  return kept;
}

}  // namespace dcn
