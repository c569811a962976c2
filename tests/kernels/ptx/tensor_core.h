// The matrix instructions of the tensor cores, with their fragment layouts and a model of their sums.
#pragma once

#include <cstdint>

#include "program.h"

namespace ptx {

enum class MmaType { kF16, kBF16, kTf32 };
inline constexpr const char* kMmaNames[] = {"f16", "bf16", "tf32"};

// c += a · b: mma.m16n8k16 of 16-bit types, and mma.m16n8k8 of tf32. Arguments are registers of the 32 lanes.
//
// Products are exact. The PTX ISA does not specify how they are summed. Tensor cores align the products and the
// accumulator to the largest of them and cut off the lower bits, which costs accuracy (Fasi, Higham, Mikaitis and
// Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science, 2021). This model keeps 24 bits, as a
// V100 does and no later GPU, and cuts the sum of a whole instruction off at once: it is at least as inaccurate as any
// GPU that has these instructions.
template <MmaType type>
void MultiplyAccumulate(const uint32_t (&a)[4][kLanes], const uint32_t (&b)[2][kLanes], float (&c)[4][kLanes]);

}  // namespace ptx
