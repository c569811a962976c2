// Where a sample of an image reads along one axis: the position of a coordinate, and the pixels around it with their
// weights. Host and device code share this implementation; cpu_taps.cc also has one for vectors.
// jax_dcn/_operators/sampling/geometry.py has the same rules, and says what the options mean.
//
// - A NaN coordinate makes the sample and the cotangents of its coordinates NaN, and no pixel is read.
// - A pixel outside the image that no pixel stands for is not read and counts as zero.
// - A position that is infinite, or kFar away where the image repeats, is outside: no pixel is read, except with
//   Outside::kClip and Fold::kClip.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"
#include "rounded_product.h"

namespace dcn {

constexpr int kMaxAxes = 3;
constexpr int kMaxAxisTaps = 4;
constexpr int32_t kMaxAxisSize = 1 << 29;
constexpr int32_t kFar = 1 << 30;

enum class Interpolation { kNearest, kRounded, kLinear, kCubic };  // the first rounds halves to even
enum class Units { kPixels, kEdges, kCorners };
enum class Fold { kNone, kClip, kReflect };
enum class Outside { kZero, kClip, kWrap, kMirror, kReflect };

struct SamplingRules {
  Interpolation interpolation;
  Units units;
  Fold fold;
  Outside outside;

  DCN_HOST_DEVICE int32_t taps() const {
    return interpolation == Interpolation::kCubic ? 4 : interpolation == Interpolation::kLinear ? 2 : 1;
  }
  DCN_HOST_DEVICE bool repeats() const { return fold == Fold::kReflect || outside >= Outside::kWrap; }
};

// The position of a coordinate that is not in pixels: (coordinate + 1) · scale - shift, which rounds as PyTorch does;
// in pixels, it is the coordinate. An axis without length has one position.
template <typename A>
struct AxisScale {
  A first, scale, shift;  // the first is added to the coordinate

  DCN_HOST_DEVICE AxisScale(Units units, int32_t size)
      : first(units == Units::kPixels ? 0 : 1),
        scale(units == Units::kPixels ? A(1) : A(units == Units::kEdges ? size : size - 1) / 2),
        shift(units == Units::kEdges ? A(0.5) : A(0)) {
    if (!(scale > A(0))) scale = A(0);
  }
  DCN_HOST_DEVICE A position(A coordinate) const {
    const A product = RoundedProduct(coordinate + first, scale);
    const bool is_origin = (scale == A(0)) & (coordinate == coordinate);
    return (is_origin ? A(0) : product) - shift;
  }
};

template <typename A>
struct AxisPosition {
  A position;
  A slope;  // its derivative in the position before
};

template <typename A>
DCN_HOST_DEVICE AxisPosition<A> FoldPosition(A position, int32_t size, Units units, Fold fold) {
  if (fold == Fold::kNone) return {position, A(1)};
  A folded = position, slope = A(1);
  bool is_far = false;
  if (fold == Fold::kReflect) {
    const bool edges = units == Units::kEdges;
    const A low = edges ? A(-0.5) : A(0), span = A(edges ? size : size - 1);
    const A distance = std::fabs(position - low);
    const A turns = std::floor(distance / (span > A(1) ? span : A(1)));
    const A rest = distance - RoundedProduct(turns, span);
    const bool is_even = turns - 2 * std::floor(turns / 2) == A(0);
    is_far = !(std::fabs(position) < A(kFar));
    folded = is_even ? low + rest : low + span - rest;
    slope = (position >= low) == is_even ? A(1) : A(-1);
  }
  const A last = A(size - 1);
  const bool is_inside = (folded > A(0)) & (folded < last);
  const A raised = folded > A(0) ? folded : A(0), clipped = raised < last ? raised : last;
  // NaN and what is far stay as they are.
  return {((position != position) | is_far) ? position : is_inside ? folded : clipped, is_inside ? slope : A(0)};
}

// The taps of a position: pixels first, first + 1, … before the rule for those outside.
template <typename A>
struct AxisTaps {
  int32_t first;
  A fraction;  // of the position from the pixel below, or the nearest; NaN for a NaN coordinate
  bool is_read;
  bool is_near;  // else the sample does not depend on the position
};

template <typename A>
DCN_HOST_DEVICE AxisTaps<A> LocateTaps(A position, int32_t size, const SamplingRules& rules) {
  const A limit = rules.repeats() ? A(kFar) : A(size + kMaxAxisTaps);
  const bool is_nan = position != position, is_near = std::fabs(position) < limit;
  const A beyond = position > A(0) ? limit : -limit;
  const A bounded = is_near ? position : is_nan ? A(0) : beyond;
  A low = std::floor(bounded);
  if (rules.interpolation == Interpolation::kNearest) low = std::nearbyint(bounded);
  if (rules.interpolation == Interpolation::kRounded) low = std::round(bounded);
  const int32_t first = int32_t(low) - (rules.interpolation == Interpolation::kCubic);
  return {first, is_nan ? position : bounded - low, rules.outside == Outside::kClip ? !is_nan : is_near, is_near};
}

// The remainder of a floored division by a positive number.
DCN_HOST_DEVICE int32_t FlooredRemainder(int32_t dividend, int32_t divisor) {
#ifdef __CUDA_ARCH__
  const int32_t remainder = dividend % divisor;
  return remainder < 0 ? remainder + divisor : remainder;
#else
  // Compilers vectorize the division of doubles, but not that of integers. The floor of the quotient is exact, because
  // both operands have at most 32 bits.
  return dividend - int32_t(std::floor(double(dividend) / double(divisor))) * divisor;
#endif
}

// The pixel that tap `index` reads; negative if none.
DCN_HOST_DEVICE int32_t FoldPixel(int32_t index, int32_t size, Outside outside) {
  if (outside == Outside::kZero) return index < size ? index : -1;
  if (outside == Outside::kClip) {
    const int32_t raised = index > 0 ? index : 0;
    return raised < size ? raised : size - 1;
  }
  const int32_t period = outside == Outside::kWrap ? size : outside == Outside::kMirror ? 2 * (size - 1) : 2 * size;
  if (size == 0) return -1;
  if (period == 0) return 0;
  const int32_t turned = FlooredRemainder(index, period);
  return turned < size ? turned : period - turned - (outside == Outside::kReflect);
}

// Keys' cubic convolution with the parameter of PyTorch and OpenCV, of a pixel at most 1, and 1 to 2 away.
template <typename A>
struct CubicConvolution {
  static constexpr A kParameter = A(-0.75);
  static DCN_HOST_DEVICE A Near(A x) { return ((kParameter + 2) * x - (kParameter + 3)) * x * x + 1; }
  static DCN_HOST_DEVICE A Far(A x) {
    return ((kParameter * x - 5 * kParameter) * x + 8 * kParameter) * x - 4 * kParameter;
  }
  static DCN_HOST_DEVICE A NearSlope(A x) { return (3 * (kParameter + 2) * x - 2 * (kParameter + 3)) * x; }
  static DCN_HOST_DEVICE A FarSlope(A x) { return (3 * kParameter * x - 10 * kParameter) * x + 8 * kParameter; }
};

// The weight of a tap, and its derivative in the position.
template <typename A>
DCN_HOST_DEVICE A TapWeight(Interpolation interpolation, int tap, A fraction) {
  using Cubic = CubicConvolution<A>;
  if (interpolation == Interpolation::kLinear) return tap ? fraction : A(1) - fraction;
  if (interpolation != Interpolation::kCubic) return A(1);
  if (tap < 2) return tap ? Cubic::Near(fraction) : Cubic::Far(fraction + 1);
  return tap == 2 ? Cubic::Near(1 - fraction) : Cubic::Far(2 - fraction);
}
template <typename A>
DCN_HOST_DEVICE A TapSlope(Interpolation interpolation, int tap, A fraction) {
  using Cubic = CubicConvolution<A>;
  if (interpolation == Interpolation::kLinear) return tap ? A(1) : A(-1);
  if (interpolation != Interpolation::kCubic) return A(0);
  if (tap < 2) return tap ? Cubic::NearSlope(fraction) : Cubic::FarSlope(fraction + 1);
  return tap == 2 ? -Cubic::NearSlope(1 - fraction) : -Cubic::FarSlope(2 - fraction);
}

}  // namespace dcn
