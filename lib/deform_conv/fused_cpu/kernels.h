// The kernels of the fused convolution for one way to multiply.
#pragma once

#include "deform_conv/fused_cpu/cotangents.h"
#include "deform_conv/fused_cpu/forward.h"
#include "deform_conv/fused_cpu/plan.h"
#include "instruction_sets.h"

DCN_BEGIN_TARGET
namespace {

template <typename Element, typename T, int kCorners>
constexpr FusedKernels kKernels = {Forward<Element, T, kCorners>::Run, Cotangents<Element, T, kCorners>::Run};

template <typename Element, typename T>
const FusedKernels& KernelsOf(bool is_on_grid) {
  return is_on_grid ? kKernels<Element, T, 1> : kKernels<Element, T, 4>;
}

}  // namespace
DCN_END_TARGET
