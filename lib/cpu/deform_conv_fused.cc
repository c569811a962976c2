#include "deform_conv_fused.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "device.h"
#include "fused/kernels.h"
#include "instruction_sets.h"
#include "large_pages.h"

namespace dcn {
namespace {

const FusedKernels& KernelsOf(InstructionSet set, DType dtype) {
#define DCN_KERNELS_OF(set) set::FusedKernelsFor,
  constexpr const FusedKernels& (*kKernels[])(DType) = {DCN_INSTRUCTION_SETS(DCN_KERNELS_OF)};
  return kKernels[int(set)](dtype);
}

}  // namespace

const char* FusedInstructions() { return NameOf(BestInstructionSet()); }

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, const FusedForwardArrays& arrays) {
  if (sizes.pixels() == 0) return nullptr;
  const ConvolutionCall call = {sizes, product, positions};
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), dtype, call, true);
  const int64_t y_bytes = arrays.is_y_float ? int64_t(sizeof(float)) : BytesOf(dtype);
  PreferLargePages(static_cast<char*>(arrays.y), sizes.pixels() * product.features * y_bytes);
  const FusedKernels::Forward& kernels = KernelsOf(set, dtype).forward;
  if (kernels.pack) {
    device.ParallelFor(kernels.packing_tasks(call), [&](int64_t task) { kernels.pack(call, arrays, task); });
  }
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  const Tiling tiling = ForwardTiling(set, dtype, call);
  std::atomic<int64_t> next{0};
  device.ParallelFor(std::clamp(device.threads(), int64_t{1}, tiling.count()),
                     [&](int64_t) { kernels.compute(call, arrays, zeros.data(), tiling, next); });
  return nullptr;
}

const char* FusedCotangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                            const Product& product, FusedTasks tasks, const FusedCotangentArrays& arrays) {
  const ConvolutionCall call = {sizes, product, positions};
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), dtype, call, false);
  const FusedKernels::Cotangents& kernels = KernelsOf(set, dtype).cotangents;
  const RequestedCotangents requested = arrays.requested;
  if (!requested.any()) return nullptr;
  const CotangentPlan plan(dtype, sizes, product, requested, tasks);
  const int64_t x_elements = sizes.images * sizes.height * sizes.width * sizes.channels;
  const int64_t samples = sizes.images * sizes.offset_groups * sizes.samples();
  PreferLargePages(static_cast<char*>(arrays.d_x), x_elements * BytesOf(dtype));
  PreferLargePages(arrays.d_offset, 2 * samples);
  PreferLargePages(arrays.d_mask, samples);
  const Tiling tiling = CotangentTiling(set, sizes);
  const int64_t weight_tasks = sizes.taps() * plan.slices;
  if (requested.x || requested.positions) {
    device.ParallelFor(weight_tasks, [&](int64_t task) { kernels.pack(call, plan, arrays, task); });
  }
  const std::vector<float> zeros(sizes.group_channels(), 0.0f);
  FinishedTiles finished(plan.tasks());
  std::atomic<int64_t> next{0};
  device.ParallelFor(std::clamp(device.threads(), int64_t{1}, plan.slots), [&](int64_t slot) {
    kernels.compute(call, plan, arrays, zeros.data(), tiling, slot, finished, next);
  });
  if (!requested.weight) return nullptr;
  if (sizes.pixels() == 0) {
    std::memset(arrays.d_weight, 0, sizes.taps() * call.group_channels() * product.features * sizeof(float));
  } else {
    device.ParallelFor(weight_tasks, [&](int64_t task) { kernels.sum_weight(call, plan, arrays, task); });
  }
  return nullptr;
}

}  // namespace dcn
