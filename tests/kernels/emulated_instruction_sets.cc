// In place of lib/cpu/instruction_sets.cc: the instruction set that JAX_DCN_CPU_INSTRUCTIONS names, which the
// processor need not have.
#include "instruction_sets.h"

#include <cstdlib>
#include <cstring>

namespace dcn {

InstructionSet BestInstructionSet() {
  const char* const name = std::getenv("JAX_DCN_CPU_INSTRUCTIONS");
  return name && std::strcmp(name, "amx") == 0 ? InstructionSet::amx : InstructionSet::avx512_bf16;
}

}  // namespace dcn
