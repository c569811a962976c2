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

constexpr int64_t kMinTilePixels = 28;      // of small outputs, so that several threads have some
constexpr int64_t kMinTiles = 16;

constexpr int64_t kSliceChannels = 64;
constexpr int64_t kTasks = 8;                     // of the cotangents at a time, if the shapes allow it
constexpr int64_t kImageSumBytes = 16 * 1 << 20;  // of the float32 sums of a cotangent of x of 16 bits

int64_t RoundUp(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

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

CotangentPlan::CotangentPlan(DType dtype, const Sizes& sizes, const Product& product, bool of_x, bool of_positions,
                             bool of_weight)
    : of_x(of_x), of_positions(of_positions), of_weight(of_weight) {
  const int64_t group_channels = sizes.channels / product.groups, features = product.group_features();
  slice_channels = std::min(kSliceChannels, group_channels);
  group_slices = (group_channels + slice_channels - 1) / slice_channels;
  slices = group_slices * product.groups;
  padded_channels = RoundUp(slice_channels, kFeaturePadding);
  parts = std::min(std::max<int64_t>(1, sizes.images), (kTasks + slices - 1) / slices);
  slots = slices * parts;
  packed_weight = 0;
  weight_sums = packed_weight + (of_x || of_positions ? sizes.taps() * slices * padded_channels * features : 0);
  image_sums = weight_sums + (of_weight ? parts * sizes.taps() * slices * features * padded_channels : 0);
  size = image_sums;
  if (of_x && dtype != DType::kF32) {
    const int64_t image = sizes.height * sizes.width * padded_channels;
    slots = std::clamp(kImageSumBytes / std::max<int64_t>(1, int64_t(sizeof(float)) * image), int64_t{1}, slots);
    size += slots * image;
  }
}

const char* FusedInstructions() { return NameOf(BestInstructionSet()); }

int64_t FusedForwardWorkspace(const Sizes& sizes, const Product& product) {
  return sizes.taps() * sizes.channels * RoundUp(product.group_features(), kFeaturePadding);
}

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
  device.ParallelFor(std::min(device.threads(), tiling.count()),
                     [&](int64_t) { kernels.compute(call, arrays, zeros.data(), tiling, next); });
  return nullptr;
}

int64_t FusedCotangentsWorkspace(DType dtype, const Sizes& sizes, const Product& product, bool of_x, bool of_positions,
                                 bool of_weight) {
  return CotangentPlan(dtype, sizes, product, of_x, of_positions, of_weight).size;
}

const char* FusedCotangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                            const Product& product, const FusedCotangentArrays& arrays) {
  const FusedCall call = {sizes, product, positions};
  const auto [selected, tile_pixels] = KernelsFor(dtype, call, false);
  const FusedKernels::Cotangents& kernels = selected.cotangents;
  const CotangentPlan plan(dtype, sizes, product, arrays.d_x, arrays.d_offset || arrays.d_mask, arrays.d_weight);
  const Tiling tiling(sizes, tile_pixels);
  const int64_t weight_tasks = sizes.taps() * plan.slices;
  if (plan.of_x || plan.of_positions) {
    device.ParallelFor(weight_tasks, [&](int64_t task) { kernels.pack(call, plan, arrays, task); });
  }
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  for (int64_t round = 0; round * plan.parts < sizes.images; ++round) {
    Progress progress(plan.slices * plan.parts);
    std::atomic<int64_t> next{0};
    device.ParallelFor(std::min(device.threads(), plan.slots), [&](int64_t slot) {
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
