#include "fused_convolution.h"

#include <atomic>
#include <vector>

#include "device.h"
#include "element.h"
#include "fused/instruction_set.h"
#include "fused/kernels.h"

namespace dcn {
namespace {

// Of the operands that one product has at a time, those of the weight are in the L1 and those of the samples in the L2
// cache.
constexpr int64_t kTilePixels = 210;
bool HasPairs(const FusedCall& call) {
  return call.group_channels() % kPairChannels == 0 && call.sizes.group_channels() % kPairChannels == 0;
}

const FusedKernels& KernelsFor(DType dtype, const FusedCall& call) {
#ifdef __x86_64__
  const InstructionSet best = BestInstructionSet();
  const bool is_paired = dtype == DType::kBF16 && HasPairs(call);
  if (best == InstructionSet::kAmx && is_paired) return AmxKernels();
  if (best == InstructionSet::kAvx512Bf16 && is_paired) return Avx512Bf16Kernels();
  if (best >= InstructionSet::kAvx512) return Avx512Kernels(dtype);
  if (best == InstructionSet::kAvx2) return Avx2Kernels(dtype);
#endif
  return PortableKernels(dtype);
}

}  // namespace

const char* FusedInstructions() { return NameOf(BestInstructionSet()); }

int64_t FusedForwardWorkspace(const Sizes& sizes, const Product& product) {
  const int64_t panels = (product.group_features() + kFeaturePadding - 1) / kFeaturePadding;
  return sizes.taps() * sizes.channels * panels * kFeaturePadding;
}

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, const FusedForwardArrays& arrays) {
  if (sizes.pixels() == 0) return nullptr;
  const FusedCall call = {sizes, product, positions};
  const FusedKernels::Forward& kernels = KernelsFor(dtype, call).forward;
  device.ParallelFor(kernels.packing_tasks(call), [&](int64_t task) { kernels.pack(call, arrays, task); });
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  const Tiling tiling(sizes, kTilePixels);
  std::atomic<int64_t> next{0};
  device.ParallelFor(std::min(device.threads(), tiling.count()),
                     [&](int64_t) { kernels.compute(call, arrays, zeros.data(), tiling, next); });
  return nullptr;
}

}  // namespace dcn
