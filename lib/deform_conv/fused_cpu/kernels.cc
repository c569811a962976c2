// The kernels of the fused convolution that multiply in float32.
#include "deform_conv/fused_cpu/kernels.h"

#include "deform_conv/fused_cpu/elements.h"
#include "deform_conv/fused_cpu/plan.h"
#include "element.h"
#include "instruction_sets.h"

DCN_BEGIN_TARGET

const FusedKernels& FusedKernelsFor(DType dtype, bool is_on_grid) {
  if (dtype == DType::kF16) return KernelsOf<Widened<F16>, F16>(is_on_grid);
  return dtype == DType::kF32 ? KernelsOf<Widened<float>, float>(is_on_grid)
                              : KernelsOf<Widened<BF16>, BF16>(is_on_grid);
}

DCN_END_TARGET
