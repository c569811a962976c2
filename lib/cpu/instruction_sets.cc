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
#if DCN_HAS_NEON_KERNELS && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dcn {
namespace {

struct Feature {
  const char* name;
  bool (*is_present)();
};

#if DCN_HAS_X86_KERNELS
// Whether Linux lets this process use the tile registers of AMX. A process asks once, before it first uses them.
bool MayUseAmx() {
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
    {"amx-tile", [] { return bool(Cpuid(7).edx >> 24 & 1) && MayUseAmx(); }},
};
#elif DCN_HAS_NEON_KERNELS
// Processors that have BF16 must have all of Armv8.2.
bool HasBf16() {
  constexpr unsigned long kBf16 = 1 << 14;  // HWCAP2_BF16, which older headers lack
  return getauxval(AT_HWCAP2) & kBf16;
}

constexpr Feature kFeatures[] = {{"arch=armv8-a", [] { return true; }}, {"arch=armv8.2-a+bf16", HasBf16}};
#else
constexpr Feature kFeatures[] = {{"sse2", [] { return true; }}};
#endif

bool HasFeature(const std::string& name) {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures),
                     [&](const Feature& feature) { return feature.name == name && feature.is_present(); });
}

// Tests the features in the order of their names, so that Linux is asked for AMX only if all other features are
// present.
bool HasAllFeatures(InstructionSet set) {
  std::istringstream names(RowOf(set).features);
  for (std::string name; std::getline(names, name, ',');) {
    if (!HasFeature(name)) return false;
  }
  return true;
}

// Intel's processors multiply pairs of bfloat16 more slowly than float32.
bool IsSlow([[maybe_unused]] InstructionSet set) {
#if DCN_HAS_X86_KERNELS
  return set == InstructionSet::avx512_bf16 && __builtin_cpu_is("intel");
#else
  return false;
#endif
}

// As in "portable, avx2 or avx512".
std::string AllNames() {
  std::string names;
  for (const InstructionSetRow& row : kInstructionSets) {
    const bool is_first = &row == std::begin(kInstructionSets), is_last = &row + 1 == std::end(kInstructionSets);
    names += (is_first ? "" : is_last ? " or " : ", ") + std::string(row.name);
  }
  return names;
}

InstructionSet Determine() {
  const char* const variable = std::getenv("JAX_DCN_CPU_INSTRUCTIONS");
  const bool is_limited = variable && *variable;
  constexpr int kCount = int(std::size(kInstructionSets));
  int requested = kCount - 1;
  while (is_limited && requested >= 0 && std::strcmp(kInstructionSets[requested].name, variable) != 0) --requested;
  if (requested < 0) {
    throw std::invalid_argument(std::string("JAX_DCN_CPU_INSTRUCTIONS is ") + variable + ", must be " + AllNames());
  }
  for (int i = requested; i > 0; --i) {
    const InstructionSet set{i};
    if (((is_limited && i == requested) || !IsSlow(set)) && HasAllFeatures(set)) return set;
  }
  return InstructionSet{0};
}

}  // namespace

InstructionSet BestInstructionSet() {
  static const InstructionSet best = Determine();
  return best;
}

}  // namespace dcn
