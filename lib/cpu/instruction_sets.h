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

// The instructions of aarch64 are in GCC 10 and clang 16, which it needs.
#ifdef __aarch64__
#define DCN_HAS_NEON_KERNELS 1
#else
#define DCN_HAS_NEON_KERNELS 0
#endif

// The table, in the order of preference. Its columns:
// - the bytes of a vector;
// - the features that the compiler may use, by GCC's names; the processor must have all of them;
// - the set whose operators are called. Only the fused convolution has kernels for the other sets;
// - the pixels of a tile of the fused convolution, at most. A panel of the weight fits in the L1 cache, and the samples
//   of a tile in the L2 cache. With AMX, a tile has nearly whole blocks of 32 rows.
#define DCN_TABLE_portable(COLUMN) COLUMN(16, "sse2", portable, 210)
#define DCN_TABLE_avx2(COLUMN) COLUMN(32, "avx2,fma,f16c", avx2, 210)
#define DCN_TABLE_avx512(COLUMN) COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", avx512, 210)
#define DCN_TABLE_avx512_bf16(COLUMN) \
  COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", avx512, 210)
#define DCN_TABLE_amx(COLUMN) \
  COLUMN(64, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-bf16,amx-tile", avx512, 252)
#define DCN_TABLE_neon(COLUMN) COLUMN(16, "arch=armv8-a", neon, 210)
#define DCN_TABLE_neon_bf16(COLUMN) COLUMN(16, "arch=armv8.2-a+bf16", neon, 210)
#if DCN_HAS_X86_KERNELS
#define DCN_OPERATOR_SETS(ROW) ROW(portable) ROW(avx2) ROW(avx512)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW) ROW(avx512_bf16) ROW(amx)
#elif DCN_HAS_NEON_KERNELS
#define DCN_OPERATOR_SETS(ROW) ROW(neon)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW) ROW(neon_bf16)
#else
#define DCN_OPERATOR_SETS(ROW) ROW(portable)
#define DCN_INSTRUCTION_SETS(ROW) DCN_OPERATOR_SETS(ROW)
#endif

#define DCN_VECTOR_BYTES(vector_bytes, features, operators, tile_pixels) vector_bytes
#define DCN_FEATURES(vector_bytes, features, operators, tile_pixels) features
#define DCN_OPERATORS_OF(vector_bytes, features, operators, tile_pixels) operators

// A file is compiled for DCN_INSTRUCTION_SET. Its kernels are between DCN_BEGIN_TARGET and DCN_END_TARGET, in a
// namespace that is named after the set. Files must be included before: the linker keeps one copy of an inline
// function, which files of other sets call too, so it must not be compiled for this set.
#ifndef DCN_INSTRUCTION_SET
#define DCN_INSTRUCTION_SET portable
#endif
#define DCN_CONCATENATE(a, b) a##b
#define DCN_COLUMN(set, column) DCN_CONCATENATE(DCN_TABLE_, set)(column)
#define DCN_PRAGMA(text) _Pragma(#text)
#if !DCN_HAS_X86_KERNELS && !DCN_HAS_NEON_KERNELS
#define DCN_PUSH_TARGET(names)
#define DCN_POP_TARGET
#elif defined(__clang__)
#define DCN_PUSH_TARGET(names) DCN_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define DCN_POP_TARGET DCN_PRAGMA(clang attribute pop)
#else
#define DCN_PUSH_TARGET(names) DCN_PRAGMA(GCC push_options) DCN_PRAGMA(GCC target(names))
#define DCN_POP_TARGET DCN_PRAGMA(GCC pop_options)
#endif
// The pragmas come last: GCC 14 drops what follows one in the expansion of a macro.
#define DCN_BEGIN_TARGET          \
  namespace dcn {                 \
  namespace DCN_INSTRUCTION_SET { \
  DCN_PUSH_TARGET(DCN_COLUMN(DCN_INSTRUCTION_SET, DCN_FEATURES))
#define DCN_END_TARGET \
  }                    \
  }                    \
  DCN_POP_TARGET

namespace dcn {

// The rows of the table for this architecture.
#define DCN_ENUMERATOR(set) set,
enum class InstructionSet { DCN_INSTRUCTION_SETS(DCN_ENUMERATOR) };

struct InstructionSetRow {
  const char* name;
  int vector_bytes;
  const char* features;
  InstructionSet operators;
  int tile_pixels;
};
#define DCN_COLUMNS(vector_bytes, features, operators, tile_pixels) \
  vector_bytes, features, InstructionSet::operators, tile_pixels
#define DCN_ROW(set) {#set, DCN_TABLE_##set(DCN_COLUMNS)},
constexpr InstructionSetRow kInstructionSets[] = {DCN_INSTRUCTION_SETS(DCN_ROW)};

constexpr const InstructionSetRow& RowOf(InstructionSet set) { return kInstructionSets[int(set)]; }

// The best set of this processor, up to the one that the environment variable JAX_DCN_CPU_INSTRUCTIONS names. On
// Intel's processors, that is avx512_bf16 only if the variable names it. It is determined once.
InstructionSet BestInstructionSet();

}  // namespace dcn
