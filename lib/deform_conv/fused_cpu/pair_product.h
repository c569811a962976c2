// Products of pairs of bfloat16 by vector instructions, and the kernels that multiply by them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attributes.h"
#include "deform_conv/fused_cpu/kernels.h"
#include "deform_conv/fused_cpu/pairs.h"
#include "deform_conv/fused_cpu/plan.h"
#include "deform_conv/fused_cpu/product.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// A word is two bfloat16.
struct PairWords {
  static constexpr int kValues = 2;
  static DCN_INLINE Floats MultiplyAdd(const float* a, Floats b, Floats sum) {
#if DCN_HAS_X86_KERNELS
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)BroadcastWord(a), (__m512bh)b);
#elif DCN_HAS_NEON_KERNELS
    return (Floats)vbfdotq_lane_f32((float32x4_t)sum, (bfloat16x8_t)b, (bfloat16x4_t)FirstElement(a), 0);
#endif
  }
};

struct PairProduct : RegisterProduct<PairWords> {
  static int64_t Steps(int64_t pixels) { return (pixels + 1) / 2; }

  // Pairs of pixels as the first operand of a product over the pixels: rows of features, in blocks.
  static int64_t PairsSize(int64_t max_pixels, int64_t features) {
    return Steps(max_pixels) * ((features + kBlockWords - 1) / kBlockWords) * kRowWords;
  }
  static void StorePairs(const Words (&pairs)[kLanes], int64_t first, int64_t feature, int64_t steps, float* out) {
    out += (feature / kBlockWords * steps + first) * kRowWords + feature % kBlockWords;
    for (int64_t i = 0; i < std::min<int64_t>(kLanes, steps - first); ++i) Store((Floats)pairs[i], out + i * kRowWords);
  }
  void MultiplyPairs(int64_t features, int64_t channels, int64_t steps, const float* pairs, Panels<float> columns,
                     float* sums, int64_t stride, bool is_first) {
    for (int64_t f = 0; f < features; f += kBlockWords) {
      Multiply<1, kRowWords>(std::min(kBlockWords, features - f), channels, steps,
                             pairs + f / kBlockWords * steps * kRowWords, columns, sums + f * stride, stride, is_first);
    }
  }
};

}  // namespace

const FusedKernels& FusedKernelsFor(DType, bool is_on_grid) { return KernelsOf<Pairs<PairProduct>, BF16>(is_on_grid); }

DCN_END_TARGET
