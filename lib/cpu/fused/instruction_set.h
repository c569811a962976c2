// The instruction sets that the fused convolution has kernels for.
#pragma once

namespace dcn {

// In the order of preference.
enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The best of this processor, or the one that the environment variable JAX_DCN_CPU_INSTRUCTIONS names, if that is not
// better. It is determined once.
InstructionSet BestInstructionSet();
const char* NameOf(InstructionSet);

}  // namespace dcn
