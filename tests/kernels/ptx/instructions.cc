// What all instructions have in common: decoding, and the classes in which they are counted.
#include "instructions.h"

#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace ptx {
namespace {

std::vector<std::string> opcodes;
std::unordered_map<std::string, uint16_t> opcode_numbers;
std::vector<int> opcode_classes;

int ClassOf(const std::string& opcode, const std::vector<std::string>& words) {
  const auto find = [](const char* name) {
    for (int i = 0; i < kClasses; ++i) {
      if (std::strcmp(kClassNames[i], name) == 0) return i;
    }
    throw std::logic_error(name);
  };
  const std::string &name = words[0], &type = words.back();
  if (name == "mma" || name == "ldmatrix") return find(name == "mma" ? "matrix" : "ldmatrix");
  if (name == "cp") return find("async copy");
  if (name == "bar" || name == "barrier") return find("barrier");
  if (name == "shfl" || name == "vote") return find("shuffle");
  if (name == "bra" || name == "ret" || name == "exit") return find("branch");
  if (StartsWith(opcode, "ld.param")) return find("parameter");
  if (name == "ld") return find(words[1] == "shared" ? "shared load" : "global load");
  if (name == "st") return find(words[1] == "shared" ? "shared store" : "global store");
  if (name == "mov" || name == "cvta") return find("move");
  if (name == "cvt") return find("conversion");
  return find(type[0] == 'f' ? "floating" : "integer");
}

uint16_t NumberOf(const std::string& opcode, const std::vector<std::string>& words) {
  const auto [found, is_new] = opcode_numbers.try_emplace(opcode, uint16_t(opcodes.size()));
  if (is_new) {
    opcodes.push_back(opcode);
    opcode_classes.push_back(ClassOf(opcode, words));
  }
  return found->second;
}

}  // namespace

const std::vector<std::string>& Opcodes() { return opcodes; }
int OpcodeClass(uint16_t opcode) { return opcode_classes[opcode]; }

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
  out->opcode = NumberOf(opcode, words);
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
  if (name == "ld" || name == "st" || name == "cp" || name == "ldmatrix") {
    return DecodeMemoryInstruction(opcode, operands, registers, out);
  }
  if (name == "mma" || name == "shfl" || name == "vote" || name == "match" || name == "bar") {
    return DecodeWarpInstruction(opcode, operands, registers, out);
  }
  return DecodeLaneInstruction(opcode, operands, registers, out);
}

}  // namespace ptx
