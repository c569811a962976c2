// Loads, stores and atomic additions. Operand 4 is the address; operands 0 to 3 are what is loaded or stored, or 0 is
// the number in memory before the addition, and 1 what is added.
#include <algorithm>
#include <cstring>

#include "instructions.h"
#include "interpreter.h"

namespace ptx {
namespace {

constexpr int kAddress = 4;

// Finds and checks the addresses at which the lanes access `bytes`.
void FindAddresses(Warp& warp, const Instruction& instruction, Lanes lanes, uint32_t bytes,
                   uint64_t (&addresses)[kLanes]) {
  const Place place = instruction.operands[kAddress];
  for (int lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = instruction.address_bytes == 8 ? warp.At<uint64_t>(place)[lane] : warp.At<uint32_t>(place)[lane];
    addresses[lane] += uint64_t(int64_t(instruction.displacement));
  }
  warp.launch.CheckAccess(warp, instruction, lanes, instruction.space, instruction.access, addresses, bytes);
}

// Element is the type in memory, Register the one in the register file.
template <bool kIsLoad, typename Element, typename Register>
void LoadOrStore(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  FindAddresses(warp, instruction, lanes, sizeof(Element) * instruction.count, addresses);
  uint8_t* memory = warp.launch.Memory(instruction.space);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    for (int i = 0; i < instruction.count; ++i) {
      uint8_t* const element = memory + addresses[lane] + size_t(i) * sizeof(Element);
      Register& value = warp.At<Register>(instruction.operands[i])[lane];
      Element moved = Element(value);
      kIsLoad ? std::memcpy(&moved, element, sizeof moved) : std::memcpy(element, &moved, sizeof moved);
      if (kIsLoad) value = Register(moved);
    }
  }
}

void AddAtomically(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  FindAddresses(warp, instruction, lanes, sizeof(uint32_t), addresses);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    uint8_t* const element = warp.launch.Memory(instruction.space) + addresses[lane];
    uint32_t before;
    std::memcpy(&before, element, sizeof before);
    const uint32_t sum = before + warp.At<uint32_t>(instruction.operands[1])[lane];
    std::memcpy(element, &sum, sizeof sum);
    warp.At<uint32_t>(instruction.operands[0])[lane] = before;
  }
}

Handler MemoryHandler(bool is_load, char kind, uint32_t memory_bytes, uint32_t register_bytes) {
  const auto make = [&](auto element, auto reg) -> Handler {
    using Element = decltype(element);
    using Register = decltype(reg);
    return is_load ? LoadOrStore<true, Element, Register> : LoadOrStore<false, Element, Register>;
  };
  const bool is_signed = kind == 's';  // a load extends the sign
  switch (memory_bytes * 16 + register_bytes) {
    case 0x12:
      return is_signed ? make(int8_t(), int16_t()) : make(uint8_t(), uint16_t());
    case 0x14:
      return is_signed ? make(int8_t(), int32_t()) : make(uint8_t(), uint32_t());
    case 0x22:
      return make(uint16_t(), uint16_t());
    case 0x24:
      return is_signed ? make(int16_t(), int32_t()) : make(uint16_t(), uint32_t());
    case 0x44:
      return make(uint32_t(), uint32_t());
    case 0x48:
      return is_signed ? make(int32_t(), int64_t()) : make(uint32_t(), uint64_t());
    case 0x88:
      return make(uint64_t(), uint64_t());
    default:
      return nullptr;
  }
}

// Sets the address operand. Returns its bytes, or 0 if it is none.
uint32_t DecodeAddress(const Operand& address, uint32_t immediate_bytes, RegisterLayout& registers, Instruction* out) {
  if (address.kind != Operand::kAddress) return 0;
  const Operand& base = address.elements[0];
  const uint32_t bytes = base.kind == Operand::kImmediate ? immediate_bytes : base.bytes;
  bool ok = true;
  out->operands[kAddress] = PlaceOf(base, bytes, registers, &ok);
  out->displacement = address.displacement;
  return ok ? bytes : 0;
}

bool DecodeLoadOrStore(const std::vector<std::string>& words, const std::vector<Operand>& operands,
                       RegisterLayout& registers, Instruction* out) {
  if (operands.size() != 2) return false;
  const bool is_load = words[0] == "ld";
  const Operand &address = operands[is_load ? 1 : 0], &data = operands[is_load ? 0 : 1];
  const std::string &space = words[1], &type = words.back();
  bool is_constant = false;
  for (size_t i = 2; i + 1 < words.size(); ++i) {
    is_constant |= words[i] == "nc";
    if (words[i] != "nc" && words[i] != "v2" && words[i] != "v4") return false;
  }
  const std::vector<Operand> elements = data.kind == Operand::kVector ? data.elements : std::vector<Operand>{data};
  const uint32_t memory_bytes = uint32_t(std::stoul(type.substr(1))) / 8;
  uint32_t register_bytes = std::max(memory_bytes, 2u);
  for (const Operand& element : elements) {
    if (element.kind == Operand::kRegister) register_bytes = element.bytes;
  }
  if (elements.size() > 4) return false;
  bool ok = true;
  out->count = uint8_t(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    out->operands[i] = PlaceOf(elements[i], register_bytes, registers, &ok);
  }
  const uint32_t address_bytes = DecodeAddress(address, space == "global" ? 8 : 4, registers, out);
  const bool is_global = space == "global";
  if (!is_global && space != "shared" && space != "param") return false;
  if (!ok || address_bytes == 0 || (is_global && address_bytes != 8)) return false;
  out->address_bytes = uint8_t(address_bytes);
  out->space = is_global ? Space::kGlobal : space == "shared" ? Space::kShared : Space::kParameter;
  out->access = !is_load ? Access::kWrite : is_constant && is_global ? Access::kConstantRead : Access::kRead;
  out->execute = MemoryHandler(is_load, type[0], memory_bytes, register_bytes);
  return out->execute != nullptr;
}

bool DecodeAtomicAddition(std::vector<Operand> operands, bool has_result, RegisterLayout& registers, Instruction* out) {
  if (!has_result) operands.insert(operands.begin(), Operand{});
  if (operands.size() != 3) return false;
  bool ok = true;
  out->operands[0] = PlaceOf(operands[0], sizeof(uint32_t), registers, &ok);
  out->operands[1] = PlaceOf(operands[2], sizeof(uint32_t), registers, &ok);
  out->address_bytes = uint8_t(DecodeAddress(operands[1], 4, registers, out));
  out->space = Space::kShared;
  out->access = Access::kAtomic;
  out->execute = AddAtomically;
  return ok && out->address_bytes > 0;
}

}  // namespace

bool DecodeMemoryInstruction(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                             Instruction* out) {
  if (opcode == "atom.shared.add.u32") return DecodeAtomicAddition(operands, true, registers, out);
  if (opcode == "red.shared.add.u32") return DecodeAtomicAddition(operands, false, registers, out);
  std::vector<std::string> words = Words(opcode);
  if (words[0] != "ld" && words[0] != "st") return false;
  const std::string& space = words[1];
  // The kernels have no pointers to shared memory, so generic addresses are global ones.
  const bool is_generic = space != "global" && space != "shared" && space != "param";
  if (is_generic) words.insert(words.begin() + 1, "global");
  return DecodeLoadOrStore(words, operands, registers, out);
}

}  // namespace ptx
