// The windows of convolutions and aggregations: regular grids of taps, which offsets move.
//
// An operator with other sampling locations, such as normalised coordinates, provides a small header like this one, its
// own sizes struct, and its own code that locates a sample and loops over samples, as LocateSample in
// deform_conv/cuda_samples.h and ForEachSample in deform_conv/cpu.cc do. It calls LocateCorners and
// CotangentsOfPosition of bilinear.h.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace dcn {

// Pairs are (vertical, horizontal).
struct Window {
  int32_t kernel[2];
  int32_t strides[2];
  int32_t padding[2];  // above and left of the image
  int32_t dilation[2];
  bool circular;  // circular padding: positions wrap around

  DCN_HOST_DEVICE int32_t taps() const { return kernel[0] * kernel[1]; }
  // The coordinate of the first tap for an output row (axis 0) or column (axis 1).
  DCN_HOST_DEVICE int64_t start(int axis, int64_t output) const { return output * strides[axis] - padding[axis]; }
  // The distance of a tap from the first. Taps are counted row by row.
  DCN_HOST_DEVICE int64_t distance(int axis, int32_t tap) const {
    return int64_t{axis == 0 ? tap / kernel[1] : tap % kernel[1]} * dilation[axis];
  }
};

template <typename A>
struct Point {
  A y, x;
};

// (y, x) is the tap on the regular grid; offset: (dy, dx), which moves it.
template <typename A>
DCN_HOST_DEVICE Point<A> SamplingLocation(int64_t y, int64_t x, const A* offset) {
  return {A(y) + offset[0], A(x) + offset[1]};
}

}  // namespace dcn
