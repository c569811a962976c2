// What all instructions have in common: decoding.
#include "instructions.h"

#include <algorithm>

namespace ptx {

std::vector<std::string> Words(const std::string& opcode) {
  std::vector<std::string> words;
  for (size_t start = 0; start <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', start), opcode.size());
    words.push_back(opcode.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

Place PlaceOf(const Operand& operand, uint32_t bytes, RegisterLayout& registers, bool* ok) {
  if (operand.kind == Operand::kImmediate) return registers.AddConstant(operand.bits, bytes);
  if (operand.kind == Operand::kNone) return registers.Add(bytes);  // a result that is not used
  if (operand.kind != Operand::kRegister || operand.bytes != bytes) *ok = false;
  return operand.place;
}

bool Decode(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
            Instruction* out) {
  const std::vector<std::string> words = Words(opcode);
  if (opcode == "bra" || opcode == "bra.uni") {
    out->control = Control::kBranch;
    return true;
  }
  if (opcode == "ret" || opcode == "exit") {
    out->control = Control::kExit;
    return true;
  }
  if (opcode == "bar.sync" || opcode == "barrier.sync") {
    out->control = Control::kBlockBarrier;
    return operands.size() == 1 && operands[0].kind == Operand::kImmediate && operands[0].bits == 0;
  }
  const std::string& name = words[0];
  if (name == "ld" || name == "st" || name == "atom" || name == "red") {
    return DecodeMemoryInstruction(opcode, operands, registers, out);
  }
  if (name == "shfl" || name == "vote" || name == "match" || name == "bar") {
    return DecodeWarpInstruction(opcode, operands, registers, out);
  }
  return DecodeLaneInstruction(opcode, operands, registers, out);
}

}  // namespace ptx
