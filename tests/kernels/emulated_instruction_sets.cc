// In place of lib/cpu/instruction_sets.cc: the instruction set that JAX_DCN_CPU_INSTRUCTIONS names, which the
// processor need not have.
#include "instruction_sets.h"

#include <cstdlib>
#include <cstring>
#include <iterator>

namespace dcn {

InstructionSet BestInstructionSet() {
  const char* const name = std::getenv("JAX_DCN_CPU_INSTRUCTIONS");
  int set = 0;
  while (!name || std::strcmp(RowOf(InstructionSet{set}).name, name) != 0) {
    if (++set == int(std::size(kInstructionSets))) std::abort();
  }
  return InstructionSet{set};
}

}  // namespace dcn
