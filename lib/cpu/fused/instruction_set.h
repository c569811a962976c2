// The instruction sets that the fused convolution has kernels for.
#pragma once

// Whether the compiler knows the instructions of all these kernels.
#if defined(__x86_64__) && (__clang_major__ >= 12 || (!defined(__clang__) && __GNUC__ >= 11))
#define DCN_HAS_X86_KERNELS 1
#else
#define DCN_HAS_X86_KERNELS 0
#endif

namespace dcn {

// In the order of preference.
enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The best of this processor, up to the one that the environment variable JAX_DCN_CPU_INSTRUCTIONS names. On Intel's
// processors, that is kAvx512Bf16 only if the variable names it. It is determined once.
InstructionSet BestInstructionSet();
const char* NameOf(InstructionSet);

}  // namespace dcn
