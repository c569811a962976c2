#include "deform_conv/fused.h"

#include "deform_conv/fused_cpu/plan.h"
#include "device.h"
#include "instruction_sets.h"
#include "large_pages.h"
#include "saturating.h"

namespace dcn {
namespace {

const FusedKernels& KernelsOf(InstructionSet set, const Convolution& convolution) {
#define DCN_KERNELS_OF(set, ...) set::FusedKernelsFor,
  constexpr const FusedKernels& (*kKernels[])(DType, bool) = {DCN_INSTRUCTION_SETS(DCN_KERNELS_OF)};
  return kKernels[int(set)](convolution.dtype, convolution.is_on_grid);
}

}  // namespace

const char* FusedInstructions() { return RowOf(BestInstructionSet()).name; }

int64_t CotangentTasks(const Convolution& convolution) {
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), convolution, false);
  const ChannelSlices slices(convolution);
  const int64_t image_tiles = CotangentTiling(set, convolution.sizes, slices).image_tiles();
  return SaturatingProduct({convolution.sizes.images, image_tiles, slices.count});
}

const char* FusedForward(Device& device, const Convolution& convolution, const FusedForwardArrays& arrays) {
  const auto& [dtype, sizes, positions, product, is_on_grid] = convolution;
  if (sizes.pixels() == 0) return nullptr;
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), convolution, true);
  const int64_t y_bytes = arrays.is_y_float ? int64_t(sizeof(float)) : BytesOf(dtype);
  PreferLargePages(static_cast<char*>(arrays.y), sizes.pixels() * product.features * y_bytes);
  KernelsOf(set, convolution).forward(device, convolution, arrays, ForwardTiling(set, convolution));
  return nullptr;
}

const char* FusedCotangents(Device& device, const Convolution& convolution, CotangentDivision division,
                            const FusedCotangentArrays& arrays) {
  if (!arrays.requested.any()) return nullptr;
  const auto& [dtype, sizes, positions, product, is_on_grid] = convolution;
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), convolution, false);
  PreferLargePages(static_cast<char*>(arrays.d_x),
                   sizes.images * sizes.height * sizes.width * sizes.channels * BytesOf(dtype));
  if (arrays.requested.positions) {
    const int64_t samples = sizes.pixels() * sizes.pixel_samples();
    PreferLargePages(arrays.d_offset, 2 * samples);
    PreferLargePages(arrays.d_mask, samples);
  }
  const ChannelSlices slices(convolution);
  const CotangentPlan plan = {convolution, arrays.requested, division, CotangentTiling(set, sizes, slices), slices};
  KernelsOf(set, convolution).cotangents(device, plan, arrays);
  return nullptr;
}

}  // namespace dcn
