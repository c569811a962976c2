// Bilinear sampling of an image at one position, and its cotangents. Host and device code share these functions: all
// kernels that interpolate locate their samples by them, so this file has the rules for the border, NaN and infinity:
//
// - A sample is the sum of weight · pixel over its four corners: the pixels around the position. A corner outside the
//   image is never read and counts as zero. With circular padding, all corners are in bounds.
// - A position is inside where -1 < y < height and -1 < x < width; with circular padding, where it is finite. A
//   position outside reads no corner: the sample and the cotangents of its position and mask are zero.
// - A NaN coordinate makes all four weights NaN. The sample and the cotangents of its position and mask are NaN, no
//   corner is read, and nothing is added to the image's cotangent.
// - The derivative with respect to the position is right-handed where a coordinate is an integer.
//
// The one exception is an infinite cotangent of a sample whose position is inside but which has a corner outside the
// image. The CPU kernels multiply the channels of that corner as zeros, so that the cotangents of the position and
// the mask are NaN. The CUDA kernels skip the corner. The same holds for an infinite tangent of the position of such
// a sample: the sample's tangent is NaN on the CPU. With an infinite mask, a corner of weight 0 makes the sample NaN in
// the CUDA kernels, which multiply the weights by the mask. The fused kernels multiply more zeros, as docs/memory.md
// says.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace dcn {

// pixel[0] of a coordinate outside. -1 is taken: it is the floor of the coordinates between -1 and 0.
constexpr int32_t kOutside = -2;

// The two pixels next to a coordinate, and its distance from the first.
template <typename A>
struct AxisLocation {
  int32_t pixel[2];  // -1 where the image has no such pixel; {kOutside, -1} for a coordinate outside
  A fraction;        // from 0 to 1; NaN for a NaN coordinate
  bool is_inside;    // pixel[0] != kOutside; stored so that callers that need only this flag do not compute the pixels

  DCN_HOST_DEVICE bool is_nan() const { return fraction != fraction; }
  DCN_HOST_DEVICE A weight(int i) const { return i ? fraction : A(1) - fraction; }
};

template <typename A>
DCN_HOST_DEVICE AxisLocation<A> LocateOnAxis(A position, int64_t size, bool circular) {
  const bool is_nan = position != position;
  if (circular) {
    if (size == 0 || !(position - position == A(0))) return {{kOutside, -1}, is_nan ? position : A(0), false};
    A low = std::floor(position);
    const A fraction = position - low;
    if (low < A(0) || low >= A(size)) low = std::fmod(low, A(size));
    const int64_t pixel = int64_t(low) + (low < A(0) ? size : 0);
    return {{int32_t(pixel), int32_t(pixel + 1 == size ? 0 : pixel + 1)}, fraction, true};
  }
  // Without branches, so that compilers vectorize a loop over positions.
  const bool is_inside = (position > A(-1)) & (position < A(size));
  const A bounded = is_inside ? position : A(kOutside), low = std::floor(bounded);
  const int32_t pixel = int32_t(low), next = pixel + 1;
  return {{pixel, next < int32_t(size) ? next : -1}, is_nan ? position : bounded - low, is_inside};
}

// The weight of a corner, from the fractions of the location on both axes, times `factor`.
template <typename A>
DCN_HOST_DEVICE A CornerWeight(A y, A x, A factor, bool is_bottom, bool is_right) {
  return (is_bottom ? y : A(1) - y) * (is_right ? x : A(1) - x) * factor;
}

// The four corners of a sample, in the order top left, top right, bottom left, bottom right (drawn in docs/kernels.md):
// corner = 2 · bottom + right, so that corner / 2 selects a row and corner % 2 a column.
template <typename A>
struct BilinearCorners {
  AxisLocation<A> y, x;

  DCN_HOST_DEVICE bool is_inside() const { return y.is_inside && x.is_inside; }
  DCN_HOST_DEVICE bool is_nan() const { return y.is_nan() || x.is_nan(); }
  // The value of a sample that reads no corner.
  DCN_HOST_DEVICE A unread_value() const { return is_nan() ? A(NAN) : A(0); }
  DCN_HOST_DEVICE bool is_read(int corner) const { return y.pixel[corner / 2] >= 0 && x.pixel[corner % 2] >= 0; }
  // The pixel index of a corner that is read, in an array of rows of `width` pixels; `first_row` is the row at which
  // the image starts.
  DCN_HOST_DEVICE int64_t pixel(int corner, int64_t first_row, int64_t width) const {
    return (first_row + y.pixel[corner / 2]) * width + x.pixel[corner % 2];
  }
  DCN_HOST_DEVICE A weight(int corner) const { return y.weight(corner / 2) * x.weight(corner % 2); }
  // The derivatives of the weight with respect to the position.
  DCN_HOST_DEVICE A weight_dy(int corner) const { return (corner / 2 ? A(1) : A(-1)) * x.weight(corner % 2); }
  DCN_HOST_DEVICE A weight_dx(int corner) const { return (corner % 2 ? A(1) : A(-1)) * y.weight(corner / 2); }
  // The tangent of the weight, from the tangent of the position.
  DCN_HOST_DEVICE A weight_tangent(int corner, A dy, A dx) const {
    return is_inside() ? weight_dy(corner) * dy + weight_dx(corner) * dx : unread_value();
  }
};

template <typename A>
DCN_HOST_DEVICE BilinearCorners<A> LocateCorners(A y, A x, int64_t height, int64_t width, bool circular) {
  return {LocateOnAxis(y, height, circular), LocateOnAxis(x, width, circular)};
}

template <typename A>
struct PositionCotangents {
  A y, x, mask;
};

// The cotangents of a sample's position and mask. dot[corner] is the dot product, over the channels, of the sample's
// cotangent and the corner's pixel.
template <typename A>
DCN_HOST_DEVICE PositionCotangents<A> CotangentsOfPosition(const BilinearCorners<A>& corners, const A (&dot)[4],
                                                           A mask) {
  const A unread = corners.unread_value();
  if (!corners.is_inside()) return {unread, unread, unread};
  A dy = 0, dx = 0, d_mask = 0;
  for (int corner = 0; corner < 4; ++corner) {
    dy += corners.weight_dy(corner) * dot[corner];
    dx += corners.weight_dx(corner) * dot[corner];
    d_mask += corners.weight(corner) * dot[corner];
  }
  return {mask * dy, mask * dx, d_mask};
}

}  // namespace dcn
