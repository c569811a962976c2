// The instruction sets of the CPU kernels: the table of all, how a file is compiled for one of them, and which one this
// processor runs.
#pragma once

// Whether the compiler knows the instructions of all sets of x86.
#ifndef DCN_HAS_X86_KERNELS
#if defined(__x86_64__) && (__clang_major__ >= 12 || (!defined(__clang__) && __GNUC__ >= 11))
#define DCN_HAS_X86_KERNELS 1
#else
#define DCN_HAS_X86_KERNELS 0
#endif
#endif

// On aarch64 the package needs GCC 10 or clang 16, which know the instructions of all sets.
#ifdef __aarch64__
#define DCN_HAS_NEON_KERNELS 1
#else
#define DCN_HAS_NEON_KERNELS 0
#endif

// The features that the compiler may use for a set, by GCC's names. A processor runs the set if it has all of them.
#define DCN_FEATURES_portable "sse2"
#define DCN_FEATURES_avx2 "avx2,fma,f16c"
#define DCN_FEATURES_avx512 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#define DCN_FEATURES_avx512_bf16 "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"
#define DCN_FEATURES_amx "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-bf16,amx-tile"
#define DCN_FEATURES_neon "arch=armv8-a"
#define DCN_FEATURES_neon_bf16 "arch=armv8.2-a+bf16"

// The sets of this architecture, in the order of preference: ROW(name, vector_bytes, tile_pixels). A tile of the
// fused convolution has at most tile_pixels pixels, whose samples fit in the L2 cache. With AMX, they nearly fill
// blocks of 32 rows. All kernels are compiled for the operator sets. Only the fused convolution has kernels for the
// others, which extend the last operator set.
#if DCN_HAS_X86_KERNELS
#define DCN_OPERATOR_SETS(ROW) ROW(portable, 16, 210) ROW(avx2, 32, 210) ROW(avx512, 64, 210)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW) ROW(avx512_bf16, 64, 210) ROW(amx, 64, 252)
#elif DCN_HAS_NEON_KERNELS
#define DCN_OPERATOR_SETS(ROW) ROW(neon, 16, 210)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW) ROW(neon_bf16, 16, 210)
#else
#define DCN_OPERATOR_SETS(ROW) ROW(portable, 16, 210)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW)
#endif

// A file is compiled for DCN_INSTRUCTION_SET. Its kernels are between DCN_BEGIN_TARGET and DCN_END_TARGET, in a
// namespace that is named after the set. All includes come before them: the linker keeps one copy of an inline function
// of a header, which files of other sets call too, so this copy must not be compiled for this set.
#ifndef DCN_INSTRUCTION_SET
#define DCN_INSTRUCTION_SET portable
#endif
#define DCN_CONCATENATE(a, b) a##b
#define DCN_FEATURES_OF(set) DCN_CONCATENATE(DCN_FEATURES_, set)
#define DCN_TARGET DCN_FEATURES_OF(DCN_INSTRUCTION_SET)
#define DCN_PRAGMA(text) _Pragma(#text)
#if !DCN_HAS_X86_KERNELS && !DCN_HAS_NEON_KERNELS
#define DCN_PUSH_TARGET(features)
#define DCN_POP_TARGET
#elif defined(__clang__)
#define DCN_PUSH_TARGET(features) \
  DCN_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define DCN_POP_TARGET DCN_PRAGMA(clang attribute pop)
#else
#define DCN_PUSH_TARGET(features) DCN_PRAGMA(GCC push_options) DCN_PRAGMA(GCC target(features))
#define DCN_POP_TARGET DCN_PRAGMA(GCC pop_options)
#endif
// The pragmas come last: GCC 14 drops what follows one in the expansion of a macro.
#define DCN_BEGIN_TARGET          \
  namespace dcn {                 \
  namespace DCN_INSTRUCTION_SET { \
  DCN_PUSH_TARGET(DCN_TARGET)
#define DCN_END_TARGET \
  }                    \
  }                    \
  DCN_POP_TARGET

namespace dcn {

#define DCN_ENUMERATOR(set, ...) set,
enum class InstructionSet { DCN_INSTRUCTION_SETS(DCN_ENUMERATOR) };

struct InstructionSetRow {
  const char *name, *features;
  int vector_bytes;
  int tile_pixels;
};
#define DCN_ROW(set, vector_bytes, tile_pixels) {#set, DCN_FEATURES_OF(set), vector_bytes, tile_pixels},
constexpr InstructionSetRow kInstructionSets[] = {DCN_INSTRUCTION_SETS(DCN_ROW)};

constexpr const InstructionSetRow& RowOf(InstructionSet set) { return kInstructionSets[int(set)]; }

// The operator set of a processor that runs `set`: the set itself, or the last operator set.
constexpr InstructionSet OperatorSetOf(InstructionSet set) {
#define DCN_ONE(...) +1
  constexpr int kOperatorSets = DCN_OPERATOR_SETS(DCN_ONE);
  return int(set) < kOperatorSets ? set : InstructionSet(kOperatorSets - 1);
}

// The best set of this processor, up to the one that the environment variable JAX_DCN_CPU_INSTRUCTIONS names. On
// Intel's processors, that is avx512_bf16 only if the variable names it. It is determined once.
InstructionSet BestInstructionSet();

}  // namespace dcn
