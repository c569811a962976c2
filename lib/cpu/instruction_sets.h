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

// The table, in the order of preference. Its columns:
// - the bytes of a vector;
// - the features that the compiler may use, by GCC's names; the processor must have all of them;
// - the set whose operators are called. Only the fused convolution has kernels for the last two sets.
// NEON needs a row of 16 bytes, in a list of its own for __aarch64__.
#define DCN_TABLE_portable(COLUMN) COLUMN(16, "sse2", portable)
#define DCN_TABLE_avx2(COLUMN) COLUMN(32, "avx2,fma,f16c", avx2)
#define DCN_TABLE_avx512(COLUMN) COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", avx512)
#define DCN_TABLE_avx512_bf16(COLUMN) COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", avx512)
#define DCN_TABLE_amx(COLUMN) \
  COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-bf16,amx-tile", avx512)
#if DCN_HAS_X86_KERNELS
#define DCN_INSTRUCTION_SETS(ROW) ROW(portable) ROW(avx2) ROW(avx512) ROW(avx512_bf16) ROW(amx)
#else
#define DCN_INSTRUCTION_SETS(ROW) ROW(portable)
#endif

#define DCN_VECTOR_BYTES(vector_bytes, features, operators) vector_bytes
#define DCN_FEATURES(vector_bytes, features, operators) features
#define DCN_OPERATORS_OF(vector_bytes, features, operators) operators

// A file is compiled for DCN_INSTRUCTION_SET. Its kernels are between DCN_BEGIN_TARGET and DCN_END_TARGET, in a
// namespace that is named after the set. Files must be included before: the linker keeps one copy of an inline
// function, which files of other sets call too, so it must not be compiled for this set.
#ifndef DCN_INSTRUCTION_SET
#define DCN_INSTRUCTION_SET portable
#endif
#define DCN_CONCATENATE(a, b) a##b
#define DCN_COLUMN(set, column) DCN_CONCATENATE(DCN_TABLE_, set)(column)
#define DCN_PRAGMA(text) _Pragma(#text)
#if !DCN_HAS_X86_KERNELS
#define DCN_PUSH_TARGET(names)
#define DCN_POP_TARGET
#elif defined(__clang__)
#define DCN_PUSH_TARGET(names) DCN_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define DCN_POP_TARGET DCN_PRAGMA(clang attribute pop)
#else
#define DCN_PUSH_TARGET(names) DCN_PRAGMA(GCC push_options) DCN_PRAGMA(GCC target(names))
#define DCN_POP_TARGET DCN_PRAGMA(GCC pop_options)
#endif
#define DCN_BEGIN_TARGET                                         \
  DCN_PUSH_TARGET(DCN_COLUMN(DCN_INSTRUCTION_SET, DCN_FEATURES)) \
  namespace dcn {                                                \
  namespace DCN_INSTRUCTION_SET {
#define DCN_END_TARGET \
  }                    \
  }                    \
  DCN_POP_TARGET

namespace dcn {

// The rows of the table.
enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The best set of this processor, up to the one that the environment variable JAX_DCN_CPU_INSTRUCTIONS names. On
// Intel's processors, that is kAvx512Bf16 only if the variable names it. It is determined once.
InstructionSet BestInstructionSet();
const char* NameOf(InstructionSet);

}  // namespace dcn
