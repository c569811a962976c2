// The kernels of the fused convolution that multiply in float32.
#include "deform_conv/fused_cpu/cotangents.h"
#include "deform_conv/fused_cpu/elements.h"
#include "deform_conv/fused_cpu/forward.h"
#include "deform_conv/fused_cpu/plan.h"
#include "element.h"
#include "instruction_sets.h"

DCN_BEGIN_TARGET
namespace {

template <typename T>
constexpr FusedKernels kKernels = {Forward<Widened<T>, T>::Run, Cotangents<Widened<T>, T>::Run};

}  // namespace

const FusedKernels& FusedKernelsFor(DType dtype) {
  if (dtype == DType::kF16) return kKernels<F16>;
  return dtype == DType::kF32 ? kKernels<float> : kKernels<BF16>;
}

DCN_END_TARGET
