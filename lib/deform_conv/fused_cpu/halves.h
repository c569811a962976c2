// Vectors of bfloat16, two to a word: the operations that the kernels of pairs need.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

#if DCN_HAS_X86_KERNELS
// Rounds to bfloat16: `low` in the low half of the result, `high` in the high half.
DCN_INLINE Words RoundedHalves(Floats low, Floats high) {
  return (Words)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Two rows, one above the other, become two vectors, whose words are pairs of the rows' elements.
struct Interleaved {
  Words low, high;

  DCN_INLINE Interleaved(Words first, Words second) {
    alignas(64) static constexpr uint16_t kLow[] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low_order = _mm512_load_si512(kLow);
    const __m512i high_order = _mm512_add_epi16(low_order, _mm512_set1_epi16(16));
    low = (Words)_mm512_permutex2var_epi16((__m512i)first, low_order, (__m512i)second);
    high = (Words)_mm512_permutex2var_epi16((__m512i)first, high_order, (__m512i)second);
  }
};

// The elements of the low half, each followed by the one in its place in the high half.
DCN_INLINE Words InterleavedHalves(Words halves) {
  alignas(64) static constexpr uint16_t kOrder[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (Words)_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), (__m512i)halves);
}

#elif DCN_HAS_NEON_KERNELS
DCN_INLINE Words RoundedHalves(Floats low, Floats high) {
  return (Words)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high);
}

struct Interleaved {
  Words low, high;

  DCN_INLINE Interleaved(Words first, Words second)
      : low((Words)vzip1q_u16((uint16x8_t)first, (uint16x8_t)second)),
        high((Words)vzip2q_u16((uint16x8_t)first, (uint16x8_t)second)) {}
};

DCN_INLINE Words InterleavedHalves(Words halves) {
  return (Words)vzip1q_u16((uint16x8_t)halves, (uint16x8_t)vextq_u32((uint32x4_t)halves, (uint32x4_t)halves, 2));
}
#endif

}  // namespace
DCN_END_TARGET
