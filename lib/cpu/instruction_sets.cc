#include "instruction_sets.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
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

struct Row {
  const char *name, *features;
};
#define DCN_ROW(set) {#set, DCN_TABLE_##set(DCN_FEATURES)},
constexpr Row kTable[] = {DCN_INSTRUCTION_SETS(DCN_ROW)};
constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if DCN_HAS_X86_KERNELS
// Whether Linux lets this process use the tile registers. A process asks once, before their first use.
bool MayUseTiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  explicit Cpuid(unsigned leaf) { __get_cpuid_count(leaf, 0, &eax, &ebx, &ecx, &edx); }
};

struct Feature {
  const char* name;
  bool (*is_present)();
};
#define DCN_FEATURE(name) {name, [] { return bool(__builtin_cpu_supports(name)); }}
constexpr Feature kFeatures[] = {
    DCN_FEATURE("sse2"),
    DCN_FEATURE("avx2"),
    DCN_FEATURE("fma"),
    {"f16c", [] { return bool(Cpuid(1).ecx >> 29 & 1); }},
    DCN_FEATURE("avx512f"),
    DCN_FEATURE("avx512bw"),
    DCN_FEATURE("avx512dq"),
    DCN_FEATURE("avx512vl"),
    DCN_FEATURE("avx512bf16"),
    {"amx-bf16", [] { return bool(Cpuid(7).edx >> 22 & 1); }},
    {"amx-tile", [] { return bool(Cpuid(7).edx >> 24 & 1) && MayUseTiles(); }},
};

bool HasFeature(const std::string& name) {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures),
                     [&](const Feature& feature) { return feature.name == name && feature.is_present(); });
}
#endif

// Tests the features in the order of the table, so that a process without the others does not ask for tile registers.
bool HasAllFeatures([[maybe_unused]] const Row& row) {
#if DCN_HAS_X86_KERNELS
  std::istringstream names(row.features);
  for (std::string name; std::getline(names, name, ',');) {
    if (!HasFeature(name)) return false;
  }
#endif
  return true;
}

// Intel's processors multiply pairs of bfloat16 more slowly than float32.
bool IsSlow([[maybe_unused]] InstructionSet set) {
#if DCN_HAS_X86_KERNELS
  return set == InstructionSet::kAvx512Bf16 && __builtin_cpu_is("intel");
#else
  return false;
#endif
}

InstructionSet Determine() {
  const char* const variable = std::getenv("JAX_DCN_CPU_INSTRUCTIONS");
  const bool is_limited = variable && *variable;
  const auto limit = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&](const char* name) { return is_limited && std::strcmp(name, variable) == 0; });
  if (is_limited && limit == std::end(kNames)) {
    throw std::invalid_argument(std::string("JAX_DCN_CPU_INSTRUCTIONS is ") + variable +
                                ", must be portable, avx2, avx512, avx512_bf16 or amx");
  }
  const int best = int(std::size(kTable)) - 1, requested = is_limited ? int(limit - std::begin(kNames)) : -1;
  for (int i = is_limited ? std::min(requested, best) : best; i > 0; --i) {
    if ((i == requested || !IsSlow(InstructionSet(i))) && HasAllFeatures(kTable[i])) return InstructionSet(i);
  }
  return InstructionSet::kPortable;
}

}  // namespace

InstructionSet BestInstructionSet() {
  static const InstructionSet best = Determine();
  return best;
}

const char* NameOf(InstructionSet set) { return kNames[int(set)]; }

}  // namespace dcn
