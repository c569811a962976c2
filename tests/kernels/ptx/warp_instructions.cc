// Instructions that the lanes of a warp execute together: shuffles, votes and barriers.
#include <cstring>

#include "instructions.h"
#include "interpreter.h"

namespace ptx {
namespace {

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// shfl d|p, a, b, c, members: lane b of the segment, or b lanes away; c has the segment's mask and last lane.
template <Shuffle mode>
void RunShuffle(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint32_t result[kLanes] = {};
  Lanes in_range = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const int b = int(warp.At<uint32_t>(instruction.operands[3])[lane] & 31);
    const int c = int(warp.At<uint32_t>(instruction.operands[4])[lane]);
    const int segment = c >> 8 & 31, last = (lane & segment) | (c & 31 & ~segment);
    int source = lane;
    if (mode == Shuffle::kUp) source = lane - b;
    if (mode == Shuffle::kDown) source = lane + b;
    if (mode == Shuffle::kButterfly) source = lane ^ b;
    if (mode == Shuffle::kIndex) source = (lane & segment) | (b & ~segment);
    const bool is_in_range = mode == Shuffle::kUp ? source >= last : source <= last;
    if (!is_in_range) source = lane;
    if (!Has(lanes, source)) warp.launch.Fail(warp, instruction, lane, "shuffles from a lane that does not take part");
    in_range |= Lanes{is_in_range} << lane;
    result[lane] = warp.At<uint32_t>(instruction.operands[2])[source];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (Has(lanes, lane)) warp.At<uint32_t>(instruction.operands[0])[lane] = result[lane];
  }
  Lanes& predicate = warp.Predicate(instruction.operands[1]);
  predicate = (predicate & ~lanes) | in_range;
}

void Ballot(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const Lanes votes = warp.Predicate(instruction.operands[1]) & lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (Has(lanes, lane)) warp.At<uint32_t>(instruction.operands[0])[lane] = votes;
  }
}

void VoteAny(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const bool is_any = warp.Predicate(instruction.operands[1]) & lanes;
  Lanes& result = warp.Predicate(instruction.operands[0]);
  result = (result & ~lanes) | (is_any ? lanes : 0);
}

// match.any d, a, members: the lanes that have the same a.
void MatchAny(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint32_t values[kLanes];
  std::memcpy(values, warp.At<uint32_t>(instruction.operands[1]), sizeof values);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    Lanes peers = 0;
    for (int other = 0; other < kLanes; ++other) {
      if (Has(lanes, other) && values[other] == values[lane]) peers |= Lanes{1} << other;
    }
    warp.At<uint32_t>(instruction.operands[0])[lane] = peers;
  }
}

void WarpBarrier(Warp& warp, const Instruction&, Lanes lanes) {
  if (lanes != warp.exist) return;
  ++warp.barriers;
}

bool DecodeShuffle(const std::vector<std::string>& words, const std::vector<Operand>& operands,
                   RegisterLayout& registers, Instruction* out) {
  const bool has_predicate = operands.size() == 6;
  if ((operands.size() != 5 && !has_predicate) || words.size() != 4 || words[3] != "b32") return false;
  const std::string& mode = words[2];
  out->execute = mode == "up"     ? RunShuffle<Shuffle::kUp>
                 : mode == "down" ? RunShuffle<Shuffle::kDown>
                 : mode == "bfly" ? RunShuffle<Shuffle::kButterfly>
                 : mode == "idx"  ? RunShuffle<Shuffle::kIndex>
                                  : nullptr;
  out->control = Control::kCollective;
  bool ok = out->execute != nullptr;
  out->operands[0] = PlaceOf(operands[0], 4, registers, &ok);
  out->operands[1] = has_predicate ? PlaceOf(operands[1], 0, registers, &ok) : registers.Add(0);
  for (size_t i = 2; i < 5; ++i) out->operands[i] = PlaceOf(operands[has_predicate ? i : i - 1], 4, registers, &ok);
  out->members = int32_t(PlaceOf(operands.back(), 4, registers, &ok));
  return ok;
}

}  // namespace

bool DecodeWarpInstruction(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                           Instruction* out) {
  if (StartsWith(opcode, "shfl.")) return DecodeShuffle(Words(opcode), operands, registers, out);
  bool ok = true;
  out->control = Control::kCollective;
  if (opcode == "vote.sync.ballot.b32" && operands.size() == 3) {
    out->execute = Ballot;
    out->operands[0] = PlaceOf(operands[0], 4, registers, &ok);
    out->operands[1] = PlaceOf(operands[1], 0, registers, &ok);
    out->members = int32_t(PlaceOf(operands[2], 4, registers, &ok));
    return ok;
  }
  if (opcode == "vote.sync.any.pred" && operands.size() == 3) {
    out->execute = VoteAny;
    for (size_t i = 0; i < 2; ++i) out->operands[i] = PlaceOf(operands[i], 0, registers, &ok);
    out->members = int32_t(PlaceOf(operands[2], 4, registers, &ok));
    return ok;
  }
  if (opcode == "match.any.sync.b32" && operands.size() == 3) {
    out->execute = MatchAny;
    for (size_t i = 0; i < 2; ++i) out->operands[i] = PlaceOf(operands[i], 4, registers, &ok);
    out->members = int32_t(PlaceOf(operands[2], 4, registers, &ok));
    return ok;
  }
  if (opcode != "bar.warp.sync" || operands.size() != 1) return false;
  out->execute = WarpBarrier;
  out->members = int32_t(PlaceOf(operands[0], 4, registers, &ok));
  return ok;
}

}  // namespace ptx
