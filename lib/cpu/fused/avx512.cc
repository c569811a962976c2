#include "fused/includes.h"

#ifdef __x86_64__
DCN_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma")

namespace dcn {
namespace {

constexpr int kLanes = 16, kTileRows = 14, kTileVectors = 2;
#include "fused/all.h"

constexpr FusedKernels kFloat = Kernels<Widened<float>, float>();
constexpr FusedKernels kBFloat16 = Kernels<Widened<BF16>, BF16>();

}  // namespace

const FusedKernels& Avx512Kernels(DType dtype) { return dtype == DType::kF32 ? kFloat : kBFloat16; }

}  // namespace dcn

DCN_END_TARGET
#endif
