#include "fused/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

#if DCN_HAS_X86_KERNELS
#include <cpuid.h>
#endif
#if DCN_HAS_X86_KERNELS && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dcn {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if DCN_HAS_X86_KERNELS
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool HasAvx2() {
  constexpr unsigned kLeaf = 1, kF16cBit = 29;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(kLeaf, &eax, &ebx, &ecx, &edx) && (ecx >> kF16cBit & 1);
}

// Whether Linux lets this process use the tile registers. A process asks once, before their first use.
bool MayUseTiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool HasTiles() {
  constexpr unsigned kLeaf = 7, kBf16Bit = 22, kTileBit = 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(kLeaf, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx >> kBf16Bit & 1) && (edx >> kTileBit & 1) && MayUseTiles();
}
#endif

// The best of the processor up to `limit`. The process asks Linux for the tile registers only if `limit` is AMX.
InstructionSet OfProcessor(InstructionSet limit) {
#if DCN_HAS_X86_KERNELS
  if (HasAvx2() && HasAvx512()) {
    if (limit == InstructionSet::kAmx && __builtin_cpu_supports("avx512bf16") && HasTiles())
      return InstructionSet::kAmx;
    // Intel's processors multiply pairs of bfloat16 more slowly than float32.
    const bool is_requested = limit == InstructionSet::kAvx512Bf16;
    const bool has_fast_pairs = __builtin_cpu_supports("avx512bf16") && (is_requested || !__builtin_cpu_is("intel"));
    return has_fast_pairs ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
  }
  if (HasAvx2()) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kPortable;
}

InstructionSet Determine() {
  const char* const requested = std::getenv("JAX_DCN_CPU_INSTRUCTIONS");
  if (!requested || !*requested) return OfProcessor(InstructionSet::kAmx);
  const auto found = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&](const char* name) { return std::strcmp(name, requested) == 0; });
  if (found == std::end(kNames)) {
    throw std::invalid_argument(std::string("JAX_DCN_CPU_INSTRUCTIONS is ") + requested +
                                ", must be portable, avx2, avx512, avx512_bf16 or amx");
  }
  const auto limit = InstructionSet(found - std::begin(kNames));
  return std::min(OfProcessor(limit), limit);
}

}  // namespace

InstructionSet BestInstructionSet() {
  static const InstructionSet best = Determine();
  return best;
}

const char* NameOf(InstructionSet set) { return kNames[int(set)]; }

}  // namespace dcn
