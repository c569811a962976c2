// The 16-bit element types, in the representation that XLA uses. Conversions round to nearest, ties to even. They have
// no branches, so that compilers can vectorize loops over channels.
#pragma once

#include <cstdint>
#include <cstring>

#include "attributes.h"

namespace dcn {

template <typename To, typename From>
DCN_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast needs types of the same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct BF16 {
  uint16_t bits;

  BF16() = default;
  DCN_INLINE explicit BF16(float value) {
    const uint32_t u = BitCast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40;
    bits = uint16_t((u & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
  DCN_INLINE operator float() const { return BitCast<float>(uint32_t{bits} << 16); }
};

struct F16 {
  uint16_t bits;

  F16() = default;
  DCN_INLINE explicit F16(float value) {
    const uint32_t u = BitCast<uint32_t>(value);
    const uint32_t sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14 the result is subnormal: adding 1/2 rounds the value and moves its float16 bits to the low bits of
    // the sum.
    const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    bits = uint16_t(sign | (magnitude >= 0x477ff000 ? special : finite));
  }
  DCN_INLINE operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    const uint32_t subnormal = BitCast<uint32_t>(float(int32_t(magnitude)) * 0x1p-24f);
    const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00 ? 0x38000000 : 0x70000000);
    return BitCast<float>(sign | (magnitude < 0x400 ? subnormal : normal));
  }

  // The same for a vector of elements, because compilers do not vectorize the operator. `Words` and `Integers` are
  // vectors of uint32_t and int32_t.
  template <typename Integers, typename Words, typename Floats>
  static DCN_INLINE void Convert(const Words& from, Floats& to) {
    const Words sign = (from & 0x8000) << 16, magnitude = from & 0x7fff;
    const Floats subnormal = __builtin_convertvector((Integers)magnitude, Floats) * 0x1p-24f;
    const Words normal = (magnitude << 13) + 0x38000000, special = (magnitude << 13) + 0x70000000;
    const Words bits = magnitude < 0x400 ? (Words)subnormal : magnitude < 0x7c00 ? normal : special;
    to = (Floats)(sign | bits);
  }
};

}  // namespace dcn
