#include "tensor_core.h"

#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace ptx {
namespace {

constexpr int kM = 16, kN = 8;

template <MmaType type>
float Element(uint32_t word, int half) {
  const uint16_t bits = uint16_t(word >> 16 * half);
  return type == MmaType::kTf32 ? FromTf32(word) : type == MmaType::kF16 ? FromF16(bits) : FromBF16(bits);
}

// sums[n] += Σ a[k] · b[k][n] for a row of the product, as tensor cores sum.
template <int kK>
void AddRow(const float (&a)[kK], const float (&b)[kK][kN], float (&sums)[kN]) {
  constexpr int kFractionBits = 23, kMinExponent = -100, kBias = 127;
  float largest[kN];
  float products[kK][kN];
  for (int n = 0; n < kN; ++n) largest[n] = std::fabs(sums[n]);
  float check = 0;  // becomes NaN with the first operand that is not finite
  for (int k = 0; k < kK; ++k) {
    for (int n = 0; n < kN; ++n) {
      products[k][n] = a[k] * b[k][n];
      const float magnitude = std::fabs(products[k][n]);
      largest[n] = largest[n] < magnitude ? magnitude : largest[n];
    }
  }
  for (int k = 0; k < kK; ++k) {
    for (int n = 0; n < kN; ++n) check += products[k][n] * 0;
  }
  for (int n = 0; n < kN; ++n) check += sums[n] * 0;
  if (check != 0) {
    for (int k = 0; k < kK; ++k) {
      for (int n = 0; n < kN; ++n) sums[n] = Canonical(sums[n] + products[k][n]);
    }
    return;
  }
  float scale[kN], unit[kN];
  int32_t total[kN];
  for (int n = 0; n < kN; ++n) {
    const int exponent = std::max(int(ToBits(largest[n]) >> kFractionBits) - kBias, kMinExponent);
    scale[n] = FromBits<float>(uint32_t(kFractionBits - exponent + kBias) << kFractionBits);
    unit[n] = FromBits<float>(uint32_t(std::max(exponent - kFractionBits + kBias, 1)) << kFractionBits);
    total[n] = int32_t(sums[n] * scale[n]);
  }
  for (int k = 0; k < kK; ++k) {
    for (int n = 0; n < kN; ++n) total[n] += int32_t(products[k][n] * scale[n]);  // cuts off toward zero
  }
  for (int n = 0; n < kN; ++n) {
    const uint32_t magnitude = uint32_t(std::abs(total[n]));
    const int excess = magnitude ? std::max(31 - __builtin_clz(magnitude) - kFractionBits, 0) : 0;
    sums[n] = std::copysign(float(magnitude >> excess << excess), float(total[n])) * unit[n];
  }
}

}  // namespace

// Lane 4 · group + member has these elements (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8"). A word
// holds one tf32 or two 16-bit elements along K.
template <MmaType type>
void MultiplyAccumulate(const uint32_t (&a)[4][kLanes], const uint32_t (&b)[2][kLanes], float (&c)[4][kLanes]) {
  constexpr int kPerWord = type == MmaType::kTf32 ? 1 : 2, kK = 8 * kPerWord;
  float rows[kM][kK], columns[kK][kN];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane / 4, k = lane % 4 * kPerWord;
    for (int half = 0; half < kPerWord; ++half) {
      for (int word = 0; word < 4; ++word) {
        rows[group + word % 2 * 8][k + word / 2 * kK / 2 + half] = Element<type>(a[word][lane], half);
      }
      for (int word = 0; word < 2; ++word)
        columns[k + word * kK / 2 + half][group] = Element<type>(b[word][lane], half);
    }
  }
  for (int row = 0; row < kM; ++row) {
    float sums[kN];
    for (int n = 0; n < kN; ++n) sums[n] = c[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2];
    AddRow<kK>(rows[row], columns, sums);
    for (int n = 0; n < kN; ++n) c[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] = sums[n];
  }
}

template void MultiplyAccumulate<MmaType::kF16>(const uint32_t (&)[4][kLanes], const uint32_t (&)[2][kLanes],
                                                float (&)[4][kLanes]);
template void MultiplyAccumulate<MmaType::kBF16>(const uint32_t (&)[4][kLanes], const uint32_t (&)[2][kLanes],
                                                 float (&)[4][kLanes]);
template void MultiplyAccumulate<MmaType::kTf32>(const uint32_t (&)[4][kLanes], const uint32_t (&)[2][kLanes],
                                                 float (&)[4][kLanes]);

}  // namespace ptx
