#include "fused_convolution.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "device.h"
#include "element.h"
#include "fused/instruction_set.h"
#include "fused/kernels.h"

namespace dcn {
namespace {

// The operands of a product fit in the caches: a panel of the weight in the L1, the samples of a tile in the L2 cache.
constexpr int64_t kTilePixels = 210;
constexpr int64_t kTilePixelsOfAmx = 252;  // nearly whole blocks of 32 rows
static_assert(kTilePixelsOfAmx <= kMaxTilePixels, "rows of pairs of pixels would not fit");

constexpr int64_t kMinTilePixels = 28;  // of small outputs, so that several threads have some
constexpr int64_t kMinTiles = 16;

bool HasPairs(const FusedCall& call, bool is_forward) {
  return call.group_channels() % kPairChannels == 0 && call.sizes.group_channels() % kPairChannels == 0 &&
         (is_forward || call.product.group_features() % kPairChannels == 0);
}

struct Selected {
  const FusedKernels& kernels;
  int64_t tile_pixels;
};

Selected KernelsFor(DType dtype, const FusedCall& call, bool is_forward) {
#ifdef __x86_64__
  const InstructionSet best = BestInstructionSet();
  const bool is_paired = dtype == DType::kBF16 && HasPairs(call, is_forward);
  if (best == InstructionSet::kAmx && is_paired) return {AmxKernels(), kTilePixelsOfAmx};
  if (best == InstructionSet::kAvx512Bf16 && is_paired) return {Avx512Bf16Kernels(), kTilePixels};
  if (best >= InstructionSet::kAvx512) return {Avx512Kernels(dtype), kTilePixels};
  if (best == InstructionSet::kAvx2) return {Avx2Kernels(dtype), kTilePixels};
#endif
  return {PortableKernels(dtype), kTilePixels};
}

}  // namespace

const char* FusedInstructions() { return NameOf(BestInstructionSet()); }

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, const FusedForwardArrays& arrays) {
  if (sizes.pixels() == 0) return nullptr;
  const FusedCall call = {sizes, product, positions};
  const auto [selected, tile_pixels] = KernelsFor(dtype, call, true);
  const FusedKernels::Forward& kernels = selected.forward;
  device.ParallelFor(kernels.packing_tasks(call), [&](int64_t task) { kernels.pack(call, arrays, task); });
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  const Tiling tiling(sizes, std::clamp(sizes.pixels() / kMinTiles, kMinTilePixels, tile_pixels));
  std::atomic<int64_t> next{0};
  device.ParallelFor(std::clamp(device.threads(), int64_t{1}, tiling.count()),
                     [&](int64_t) { kernels.compute(call, arrays, zeros.data(), tiling, next); });
  return nullptr;
}

const char* FusedCotangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                            const Product& product, const FusedCotangentArrays& arrays) {
  const FusedCall call = {sizes, product, positions};
  const auto [selected, tile_pixels] = KernelsFor(dtype, call, false);
  const FusedKernels::Cotangents& kernels = selected.cotangents;
  const CotangentPlan plan(dtype, sizes, product, arrays.d_x, arrays.d_offset || arrays.d_mask, arrays.d_weight);
  if (!plan.of_x && !plan.of_positions && !plan.of_weight) return nullptr;
  const Tiling tiling(sizes, tile_pixels);
  const int64_t weight_tasks = sizes.taps() * plan.slices;
  if (plan.of_x || plan.of_positions) {
    device.ParallelFor(weight_tasks, [&](int64_t task) { kernels.pack(call, plan, arrays, task); });
  }
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  for (int64_t round = 0; round * plan.parts < sizes.images; ++round) {
    Progress progress(plan.slices * plan.parts);
    std::atomic<int64_t> next{0};
    device.ParallelFor(std::clamp(device.threads(), int64_t{1}, plan.slots), [&](int64_t slot) {
      kernels.compute(call, plan, arrays, zeros.data(), tiling, round, slot, progress, next);
    });
  }
  if (!plan.of_weight) return nullptr;
  if (sizes.pixels() == 0) {
    std::memset(arrays.d_weight, 0, sizes.taps() * call.group_channels() * product.features * sizeof(float));
  } else {
    device.ParallelFor(weight_tasks, [&](int64_t task) { kernels.sum_weight(call, plan, arrays, task); });
  }
  return nullptr;
}

}  // namespace dcn
