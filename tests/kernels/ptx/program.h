// PTX programs, decoded for the interpreter.
//
// A register is a place in the register file of a warp: an array of its value in each of the 32 lanes, or for a
// predicate a word with one bit per lane. Immediate operands have places, too.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory.h"

namespace ptx {

constexpr int kLanes = 32;
using Lanes = uint32_t;  // a set of lanes
constexpr Lanes kAllLanes = ~Lanes{0};

using Place = uint32_t;  // bytes from the start of a register file

class Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, Lanes);

enum class Control : uint8_t {
  kNext,
  kBranch,
  kExit,
  kBlockBarrier,
  kCollective  // waits for all lanes of `members`
};

enum class Space : uint8_t { kParameter, kShared, kGlobal };

constexpr int kMaxOperands = 5;  // of a load of four elements, with its address

struct Instruction {
  Handler execute = nullptr;
  Control control = Control::kNext;
  bool is_negated = false;    // executes where the guard is false
  uint8_t count = 1;          // elements of a vector that a load or store moves
  uint8_t address_bytes = 8;  // of a load or store, as are the space and the access
  Space space = Space::kGlobal;
  Access access = Access::kRead;
  int32_t guard = -1;         // place of the predicate, or -1
  int32_t target = -1;        // of a branch: index of an instruction
  int32_t members = -1;       // place of the mask of a collective instruction, or -1
  int32_t displacement = 0;   // added to the address operand
  uint32_t used_bytes = ~0u;  // of a load: bit mask of the bytes that the program uses
  Place operands[kMaxOperands] = {};
  uint32_t ptx_line = 0;
  uint32_t location = 0;  // index into Kernel::locations
};

// The registers and constants of a kernel, as places in a warp's register file.
class RegisterLayout {
 public:
  struct Constant {
    Place place;
    uint32_t bytes;  // of a lane; 0 for a predicate
    uint64_t bits;
  };

  Place Add(uint32_t bytes);  // 0: a predicate
  Place AddConstant(uint64_t bits, uint32_t bytes);
  Place AddSpecial(const std::string& name);  // such as %tid.x

  size_t size() const { return size_; }
  const std::vector<Constant>& constants() const { return constants_; }
  const std::map<std::string, Place>& specials() const { return specials_; }

 private:
  size_t size_ = 0;
  std::vector<Constant> constants_;
  std::map<std::pair<uint64_t, uint32_t>, Place> constant_places_;
  std::map<std::string, Place> specials_;
};

constexpr uint32_t kGuardBytes = 128;

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  RegisterLayout registers;
  std::vector<std::pair<uint32_t, uint32_t>> parameters;  // offset and bytes
  uint32_t parameter_bytes = 0, shared_bytes = 0, max_threads = 1024;
  // Offset and bytes. A guard after each variable keeps an access past its end out of the next.
  std::vector<std::pair<uint32_t, uint32_t>> shared_variables;
  std::vector<std::string> locations;  // "file:line<file:line...": a source line, and the lines that it is inlined at

  uint32_t guarded_shared_bytes() const { return shared_bytes + uint32_t(shared_variables.size()) * kGuardBytes; }
};

// The PTX of one source file. Kernels are parsed when they are first used.
class Module {
 public:
  explicit Module(std::string_view text);

  bool has(const std::string& kernel) const { return texts_.count(kernel) != 0; }
  // Throws std::runtime_error if the kernel contains something that the interpreter does not know.
  const Kernel& Find(const std::string& kernel);
  uint32_t LineNumber(size_t position) const;  // from 1
  std::string_view Line(uint32_t number) const;

 private:
  std::string text_;
  std::vector<size_t> line_starts_;
  std::map<std::string, std::pair<size_t, size_t>> texts_;  // begin and end of each kernel
  std::map<uint32_t, std::string> files_;
  std::map<std::string, std::unique_ptr<Kernel>> parsed_;
};

// An operand as it is written.
struct Operand {
  enum Kind { kNone, kRegister, kImmediate, kAddress, kVector };

  Kind kind = kNone;
  Place place = 0;                // of a register
  uint32_t bytes = 0;             // of a register; 0 for a predicate
  uint64_t bits = 0;              // of an immediate
  int32_t displacement = 0;       // of an address
  std::vector<Operand> elements;  // of a vector; the base of an address
};

// Sets what depends on the opcode. Returns false if the interpreter has no such instruction.
bool Decode(const std::string& opcode, const std::vector<Operand>&, RegisterLayout&, Instruction*);

}  // namespace ptx
