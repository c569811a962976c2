// The fused convolution for processors whose instruction set has no file of its own.
#include "fused/includes.h"

namespace dcn {
namespace {

constexpr int kLanes = 4, kTileRows = 5, kTileVectors = 2;
#include "fused/all.h"

constexpr FusedKernels kFloat = Kernels<Widened<float>, float>();
constexpr FusedKernels kBFloat16 = Kernels<Widened<BF16>, BF16>();

}  // namespace

const FusedKernels& PortableKernels(DType dtype) { return dtype == DType::kF32 ? kFloat : kBFloat16; }

}  // namespace dcn
