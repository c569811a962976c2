// The instructions by kind. Each function decodes the instructions of its kind: it sets what depends on the opcode, and
// returns false if the interpreter has no such instruction.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace ptx {

// Those that act on each lane by itself, and access no memory.
bool DecodeLaneInstruction(const std::string& opcode, const std::vector<Operand>&, RegisterLayout&, Instruction*);
// Loads, stores and atomic additions.
bool DecodeMemoryInstruction(const std::string& opcode, const std::vector<Operand>&, RegisterLayout&, Instruction*);
// The other ones that lanes execute together: shuffles, votes and barriers of a warp.
bool DecodeWarpInstruction(const std::string& opcode, const std::vector<Operand>&, RegisterLayout&, Instruction*);

inline bool Has(Lanes lanes, int lane) { return lanes >> lane & 1; }

inline bool StartsWith(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

std::vector<std::string> Words(const std::string& opcode);  // between its dots

// The place of an operand of `bytes`. Sets *ok to false if it has another width.
Place PlaceOf(const Operand&, uint32_t bytes, RegisterLayout&, bool* ok);

}  // namespace ptx
