// Sampling of images of one to three axes. Each backend implements these functions for its own Device. They return
// nullptr, or an error message.
//
//   out[b, p, :] = sum over pixels i around location p of weight(p, i) · x[b, i, :]
//
// geometry.h defines the pixels and the weights: those of an axis each, multiplied.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "host_device.h"
#include "sampling/geometry.h"
#include "scatter/tables.h"

namespace dcn {

struct Device;

struct SamplingSizes {
  int64_t batches, points, channels;
  int32_t dims;
  int32_t size[kMaxAxes];  // of the image; 1 for axes that it lacks
  SamplingRules rules;
  bool is_planar;  // whether the coordinates along each axis are an array of their own

  DCN_HOST_DEVICE int64_t pixels() const { return int64_t{size[0]} * size[1] * size[2]; }
  // The pixels that a sample reads.
  DCN_HOST_DEVICE int32_t taps() const {
    int32_t product = 1;
    for (int axis = 0; axis < dims; ++axis) product *= rules.taps();
    return product;
  }
  // The taps of all samples of an image, of which some may read no pixel: as many of a sample as its Shape has on CUDA.
  DCN_HOST_DEVICE int64_t sorted_entries() const {
    return points * (dims == 3 ? 8 : rules.interpolation == Interpolation::kCubic ? 16 : 4);
  }
  // The index of a point's coordinate along an axis in its array, and the distance from one point to the next.
  DCN_HOST_DEVICE int64_t coordinate(int64_t batch, int64_t point, int axis) const {
    return is_planar ? batch * points + point : (batch * points + point) * dims + dims - 1 - axis;
  }
  DCN_HOST_DEVICE int64_t coordinate_stride() const { return is_planar ? 1 : dims; }
};

// The array of the coordinates along each axis; the same one if all are in one.
template <typename T>
struct Coordinates {
  T* array[kMaxAxes];

  template <typename A>
  Coordinates<A> As() const {
    Coordinates<A> typed = {};
    for (int axis = 0; axis < kMaxAxes; ++axis) typed.array[axis] = static_cast<A*>(array[axis]);
    return typed;
  }
};

// In the functions below, DType is the type T of x and out, and of the cotangent of out. A, the accumulator type, is
// float, or double for a DType of float64.

// x: T[batches, size…, channels]; locations: A[batches, points, dims], the last axis first, or if planar an
// A[batches, points] for each axis; out: T[batches, points, channels].
const char* Sample(Device&, DType, const SamplingSizes&, const void* x, const Coordinates<const void>& locations,
                   void* out);

// d_x: the cotangent of x, of type A if it is wide, else T. A Device that sorts (kSorts) sorts the taps of as many
// images at a time as there are tables; their rows are the pixels.
const char* SamplingXCotangent(Device&, DType, const SamplingSizes&, const Coordinates<const void>& locations,
                               const void* d_out, bool is_wide, void* d_x, const CsrTables&);

// d_locations: the cotangent of the locations, of type A and their shapes.
const char* SamplingLocationsCotangent(Device&, DType, const SamplingSizes&, const void* x,
                                       const Coordinates<const void>& locations, const void* d_out,
                                       const Coordinates<void>& d_locations);

}  // namespace dcn
