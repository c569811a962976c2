// The matrix instructions of the tensor cores, with their fragment layouts and a model of their sums.
#pragma once

#include <cstdint>

#include "program.h"

namespace ptx {

enum class MmaType { kF16, kBF16, kTf32 };

// c += a · b: mma.m16n8k16 of 16-bit types, and mma.m16n8k8 of tf32. Arguments are registers of the 32 lanes.
//
// The PTX ISA does not specify how the products are summed. Tensor cores compute them exactly, align them and the
// accumulator to the largest, and cut off the lower bits (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of
// NVIDIA tensor cores", PeerJ Computer Science, 2021, who tested V100, T4 and A100). This model keeps 24 bits, the
// fewest of these GPUs, and adds all products of an instruction at once, so that its sums are expected to be at least
// as inaccurate as a GPU's. Products are computed in float32, exactly unless they overflow or are subnormal.
template <MmaType type>
void MultiplyAccumulate(const uint32_t (&a)[4][kLanes], const uint32_t (&b)[2][kLanes], float (&c)[4][kLanes]);

}  // namespace ptx
