// Where the samples of a sampling read, as its CUDA kernels find it: the pixels of the image and their weights.
#pragma once

#include "sampling/sampling.h"

namespace dcn {

// The axes of an image, of which 2 or 4 pixels each are read. An image of one axis has another one of one pixel, and
// samples that read one pixel of an axis do not read the second one, so that fewer kernels are compiled.
template <int kDimsOfImage, int kLog2AxisTaps>
struct Shape {
  static constexpr int kDims = kDimsOfImage, kAxisTaps = 1 << kLog2AxisTaps, kTaps = 1 << kLog2AxisTaps * kDims;
  static constexpr bool kIsCubic = kAxisTaps == 4;
  static __device__ int AxisTap(int tap, int axis) {
    return tap >> kLog2AxisTaps * (kDims - 1 - axis) & (kAxisTaps - 1);
  }
};

// Calls f with the Shape of a sampling.
template <typename F>
const char* DispatchShape(const SamplingSizes& sizes, const F& f) {
  if (sizes.dims == 3) return f(Shape<3, 1>());
  return sizes.rules.interpolation == Interpolation::kCubic ? f(Shape<2, 2>()) : f(Shape<2, 1>());
}

// A located point: the taps of each axis. The pixels are -1 where the sample reads none.
template <typename A, typename S>
struct LocatedPoint {
  AxisTaps<A> axis[S::kDims];
  A slope[S::kDims];  // of the position in the coordinate

  __device__ LocatedPoint(const SamplingSizes& sizes, const Coordinates<const A>& locations, int64_t batch,
                          int64_t point) {
    SamplingRules rules = sizes.rules;
    if (S::kIsCubic) rules.interpolation = Interpolation::kCubic;
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      const int32_t size = sizes.size[a];
      const AxisScale<A> scale(rules.units, size);
      // On an axis that the image lacks, the first tap reads its pixel.
      const bool exists = a < sizes.dims;
      const A coordinate = exists ? locations.array[a][sizes.coordinate(batch, point, a)] : A(0);
      const AxisPosition<A> folded = FoldPosition(scale.position(coordinate), size, rules.units, rules.fold);
      axis[a] = LocateTaps(folded.position, size, rules);
      slope[a] = axis[a].is_near ? scale.scale * folded.slope : A(0);
    }
  }

  // The pixel of a tap.
  __device__ int32_t pixel(const SamplingSizes& sizes, int tap) const {
    return PixelOf(sizes, [&](int a) { return AxisPixel(sizes, a, S::AxisTap(tap, a)); });
  }
  // Those of all taps, which share the pixels of the axes.
  __device__ void FindPixels(const SamplingSizes& sizes, int32_t* pixels) const {
    int32_t axis_pixel[S::kDims][S::kAxisTaps];
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
#pragma unroll
      for (int tap = 0; tap < S::kAxisTaps; ++tap) axis_pixel[a][tap] = AxisPixel(sizes, a, tap);
    }
#pragma unroll
    for (int tap = 0; tap < S::kTaps; ++tap) {
      pixels[tap] = PixelOf(sizes, [&](int a) { return axis_pixel[a][S::AxisTap(tap, a)]; });
    }
  }

  __device__ bool is_nan() const {
    bool found = false;
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) found |= axis[a].fraction != axis[a].fraction;
    return found;
  }
  __device__ A unread_value() const { return is_nan() ? A(NAN) : A(0); }

  __device__ A weight(Interpolation interpolation, int tap) const {
    A product = A(1);
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      product *= TapWeight(Known(interpolation), S::AxisTap(tap, a), axis[a].fraction);
    }
    return product;
  }
  // The derivative of the weight in the coordinate of an axis.
  __device__ A weight_slope(Interpolation interpolation, int tap, int of) const {
    A product = slope[of];
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      product *= a == of ? TapSlope(Known(interpolation), S::AxisTap(tap, a), axis[a].fraction)
                         : TapWeight(Known(interpolation), S::AxisTap(tap, a), axis[a].fraction);
    }
    return product;
  }

 private:
  // An interpolation with the same weights, of which the compiler knows whether it is cubic.
  __device__ static Interpolation Known(Interpolation interpolation) {
    if (S::kIsCubic) return Interpolation::kCubic;
    return interpolation == Interpolation::kLinear ? Interpolation::kLinear : Interpolation::kNearest;
  }
  __device__ int32_t AxisPixel(const SamplingSizes& sizes, int a, int tap) const {
    const bool is_read = axis[a].is_read && tap < (a < sizes.dims ? sizes.rules.taps() : 1);
    return is_read ? FoldPixel(axis[a].first + tap, sizes.size[a], sizes.rules.outside) : -1;
  }
  template <typename F>
  static __device__ int32_t PixelOf(const SamplingSizes& sizes, const F& axis_pixel) {
    int32_t index = 0, sign = 0;
#pragma unroll
    for (int a = 0; a < S::kDims; ++a) {
      const int32_t of_axis = axis_pixel(a);
      index = index * sizes.size[a] + of_axis;
      sign |= of_axis;
    }
    return sign < 0 ? -1 : index;
  }
};

}  // namespace dcn
