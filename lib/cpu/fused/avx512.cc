#include "fused/includes.h"

#if DCN_HAS_X86_KERNELS
#include <immintrin.h>

DCN_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

namespace dcn {
namespace {

constexpr int kLanes = 16, kTileRows = 14, kTileVectors = 2;
#include "fused/all.h"
#include "fused/half.h"

constexpr FusedKernels kFloat = Kernels<Widened<float>, float>();
constexpr FusedKernels kBFloat16 = Kernels<Widened<BF16>, BF16>();
constexpr FusedKernels kFloat16 = Kernels<Widened<F16>, F16>();

}  // namespace

const FusedKernels& Avx512Kernels(DType dtype) {
  if (dtype == DType::kF16) return kFloat16;
  return dtype == DType::kF32 ? kFloat : kBFloat16;
}

}  // namespace dcn

DCN_END_TARGET
#endif
