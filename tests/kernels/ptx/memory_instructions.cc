// Loads, stores, asynchronous copies and ldmatrix. Operand 4 is the address; operands 0 to 3 are what is
// loaded or stored.
#include <algorithm>
#include <cstring>

#include "instructions.h"
#include "interpreter.h"

namespace ptx {
namespace {

constexpr int kAddress = 4;

void GetAddresses(Warp& warp, const Instruction& instruction, int operand, uint32_t bytes,
                  uint64_t (&addresses)[kLanes]) {
  const Place place = instruction.operands[operand];
  for (int lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = bytes == 8 ? warp.At<uint64_t>(place)[lane] : warp.At<uint32_t>(place)[lane];
    if (operand == kAddress) addresses[lane] += uint64_t(int64_t(instruction.displacement));
  }
}

// Element is the type in memory, Register the one in the register file.
template <bool kIsLoad, typename Element, typename Register>
void LoadOrStore(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  GetAddresses(warp, instruction, kAddress, instruction.address_bytes, addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, instruction.space, instruction.access, addresses,
                          sizeof(Element) * instruction.count);
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

// cp.async [target], [source], 16, count: reads `count` bytes, and fills the rest with zeros. Operands 5 and 6 are the
// source and the count.
void CopyAsync(Warp& warp, const Instruction& instruction, Lanes lanes) {
  constexpr uint32_t kCopyBytes = sizeof AsyncCopy::data;
  uint64_t targets[kLanes], sources[kLanes];
  GetAddresses(warp, instruction, kAddress, sizeof(uint32_t), targets);
  GetAddresses(warp, instruction, kAddress + 1, sizeof(uint64_t), sources);
  Launch& launch = warp.launch;
  launch.CheckAccess(warp, instruction, lanes, Space::kShared, Access::kAsyncWrite, targets, kCopyBytes);
  const uint32_t* counts = warp.At<uint32_t>(instruction.operands[kAddress + 2]);
  Lanes reading = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    if (counts[lane] != 0 && counts[lane] != kCopyBytes) {
      launch.Fail(warp, instruction, lane, "copies " + std::to_string(counts[lane]) + " of 16 bytes");
    }
    if (counts[lane]) reading |= Lanes{1} << lane;
  }
  launch.CheckAccess(warp, instruction, reading, Space::kGlobal, Access::kAsyncRead, sources, kCopyBytes);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    AsyncCopy copy = {uint32_t(targets[lane]), warp.copy_groups[lane], {}};
    if (Has(reading, lane)) std::memcpy(copy.data, reinterpret_cast<const uint8_t*>(sources[lane]), kCopyBytes);
    launch.AddCopy(warp, lane, copy);
  }
}

template <bool kCommits, bool kWaits>
void CommitAndWait(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    if (kCommits) ++warp.copy_groups[lane];
    if (kWaits) warp.launch.CompleteCopies(warp, lane, warp.At<uint32_t>(instruction.operands[0])[lane]);
  }
}

// Operands 0 to 3 receive the four matrices; lanes 8i to 8i + 7 have the addresses of the rows of matrix i.
template <bool kIsTransposed>
void Ldmatrix(Warp& warp, const Instruction& instruction, Lanes lanes) {
  constexpr int kRows = 8, kRowBytes = 16;
  uint64_t addresses[kLanes];
  GetAddresses(warp, instruction, kAddress, sizeof(uint32_t), addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, Space::kShared, Access::kRead, addresses, kRowBytes);
  const uint8_t* memory = warp.launch.Memory(Space::kShared);
  uint32_t words[4][kLanes];
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t elements[kRows][kRows];
    for (int row = 0; row < kRows; ++row)
      std::memcpy(elements[row], memory + addresses[matrix * kRows + row], kRowBytes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      const uint32_t low = kIsTransposed ? elements[j][i] : elements[i][j];
      const uint32_t high = kIsTransposed ? elements[j + 1][i] : elements[i][j + 1];
      words[matrix][lane] = low | high << 16;
    }
  }
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::memcpy(warp.At<uint32_t>(instruction.operands[matrix]), words[matrix], sizeof words[matrix]);
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

bool DecodeCopy(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                Instruction* out) {
  bool ok = true;
  if (opcode == "cp.async.cg.shared.global") {
    if (operands.size() != 4 || operands[1].kind != Operand::kAddress || operands[2].bits != 16) return false;
    out->execute = CopyAsync;
    out->operands[kAddress + 1] = PlaceOf(operands[1].elements[0], 8, registers, &ok);
    out->operands[kAddress + 2] = PlaceOf(operands[3], 4, registers, &ok);
    return DecodeAddress(operands[0], 4, registers, out) == 4 && ok && operands[1].displacement == 0;
  }
  out->operands[0] = registers.AddConstant(operands.empty() ? 0 : operands[0].bits, 4);
  out->execute = opcode == "cp.async.wait_all"       ? CommitAndWait<true, true>
                 : opcode == "cp.async.wait_group"   ? CommitAndWait<false, true>
                 : opcode == "cp.async.commit_group" ? CommitAndWait<true, false>
                                                     : nullptr;
  return out->execute != nullptr;
}

bool DecodeLdmatrix(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                    Instruction* out) {
  const bool is_transposed = opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16";
  if (!is_transposed && opcode != "ldmatrix.sync.aligned.m8n8.x4.shared.b16") return false;
  if (operands.size() != 2 || operands[0].elements.size() != 4) return false;
  bool ok = true;
  for (int i = 0; i < 4; ++i) out->operands[i] = PlaceOf(operands[0].elements[size_t(i)], 4, registers, &ok);
  out->control = Control::kCollective;
  out->is_aligned = true;
  out->execute = is_transposed ? Ldmatrix<true> : Ldmatrix<false>;
  return DecodeAddress(operands[1], 4, registers, out) == 4 && ok;
}

}  // namespace

bool DecodeMemoryInstruction(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                             Instruction* out) {
  std::vector<std::string> words = Words(opcode);
  if (words[0] == "ld" || words[0] == "st") {
    const std::string& space = words[1];
    // The kernels have no pointers to shared memory, so generic addresses are global ones.
    const bool is_generic = space != "global" && space != "shared" && space != "param";
    if (is_generic) words.insert(words.begin() + 1, "global");
    return DecodeLoadOrStore(words, operands, registers, out);
  }
  if (words[0] == "cp") return DecodeCopy(opcode, operands, registers, out);
  return DecodeLdmatrix(opcode, operands, registers, out);
}

}  // namespace ptx
