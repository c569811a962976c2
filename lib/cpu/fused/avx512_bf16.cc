#include "fused/includes.h"

#ifdef __x86_64__
#include <immintrin.h>

DCN_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace dcn {
namespace {

constexpr int kLanes = 16, kTileRows = 14, kTileVectors = 2;
#include "fused/all.h"

#include "fused/pairs.h"

// A word is two bfloat16.
struct PairWords {
  static constexpr int kValues = 2;
  static DCN_INLINE Floats MultiplyAdd(const float* a, Floats b, Floats sum) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)BroadcastWord(a), (__m512bh)b);
  }
};

constexpr FusedKernels kPairs = Kernels<Pairs<RegisterProduct<PairWords>>, BF16>();

}  // namespace

const FusedKernels& Avx512Bf16Kernels() { return kPairs; }

}  // namespace dcn

DCN_END_TARGET
#endif
