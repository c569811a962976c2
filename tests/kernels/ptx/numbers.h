// Floating-point numbers as a GPU rounds and converts them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace ptx {

template <typename T>
using UnsignedOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
UnsignedOf<T> ToBits(T value) {
  UnsignedOf<T> bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <typename T>
T FromBits(UnsignedOf<T> bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Instructions on float32 return one NaN only.
inline float Canonical(float value) { return value != value ? FromBits<float>(0x7fffffff) : value; }
inline double Canonical(double value) { return value; }

inline float FromBF16(uint16_t bits) { return FromBits<float>(uint32_t{bits} << 16); }
inline uint16_t ToBF16(float value) {
  if (value != value) return 0x7fff;
  const uint32_t bits = ToBits(value);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromF16(uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return Canonical(float(value));
}
inline uint16_t ToF16(float value) {
  if (value != value) return 0x7fff;
  const auto rounded = _Float16(value);
  uint16_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

// A float is converted to the nearest integer of its range. NaN becomes 0, or only the highest bit if source or target
// have 64 bits.
template <typename I, typename T>
I ToInteger(T whole) {
  using Limits = std::numeric_limits<I>;
  if (whole != whole) {
    return sizeof(T) == 8 || sizeof(I) == 8 ? I(std::make_unsigned_t<I>(1) << (8 * sizeof(I) - 1)) : I(0);
  }
  if (whole < T(Limits::min())) return Limits::min();
  if (whole >= std::ldexp(T(1), Limits::digits)) return Limits::max();
  return I(whole);
}

// The rounded result of an operation on finite numbers, moved one number toward zero if its exact value is nearer to
// zero. `error` is the exact value minus the rounded one, or has its sign.
template <typename T>
T RoundTowardZero(T rounded, T error) {
  if (std::isinf(rounded)) return std::copysign(std::numeric_limits<T>::max(), rounded);
  return error != 0 && (error < 0) == (rounded > 0) ? std::nextafter(rounded, T(0)) : rounded;
}

template <typename T>
T AddTowardZero(T a, T b) {
  const T sum = a + b, part = sum - a;  // TwoSum (Knuth)
  if (!std::isfinite(a) || !std::isfinite(b)) return Canonical(sum);
  return RoundTowardZero(sum, (a - (sum - part)) + (b - part));
}

// Exact for products that neither overflow nor lose bits to subnormal numbers.
template <typename T>
T FmaTowardZero(T a, T b, T c) {
  const T result = std::fma(a, b, c), product = a * b, low = std::fma(a, b, -product);
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c)) return Canonical(result);
  const T sum = product + c, part = sum - product, error = (product - (sum - part)) + (c - part);
  return RoundTowardZero(result, (sum - result) + (error + low));
}

inline float FlushSubnormal(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// div.approx.f32 may err by two units in the last place. Half of the results here are one unit off, always the same.
// rcp.approx is rounded to nearest instead, because CUDA's fmodf relies on exact reciprocals of powers of two.
inline float DivideApproximately(float a, float b) {
  const float quotient = Canonical(a / b);
  if (std::fabs(b) > 0x1p126f && !std::isinf(b)) return std::isinf(a) ? Canonical(NAN) : 0 * quotient;
  if (!std::isnormal(quotient)) return quotient;
  const uint32_t hash = (ToBits(a) ^ ToBits(b) * 0x9e3779b9u) * 0x85ebca6bu >> 30;
  if (hash > 1) return quotient;
  const uint32_t bits = ToBits(quotient);
  return FromBits<float>(hash ? bits + 1 : bits - 1);
}

}  // namespace ptx
