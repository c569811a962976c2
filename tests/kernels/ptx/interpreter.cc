#include "interpreter.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

namespace ptx {
namespace {

constexpr int kPoison = 0xff;  // of memory that was not written: NaN, or -1

uint32_t last_epoch = Cell::kFirstEpoch;

uint32_t NextEpoch() {
  if (++last_epoch == 0) throw Fault("the process has run too many blocks to tell them apart");
  return last_epoch;
}

int FirstLane(Lanes lanes) { return __builtin_ctz(lanes); }

bool Has(Lanes lanes, int lane) { return lanes >> lane & 1; }

std::string Hex(Lanes lanes) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", lanes);
  return text;
}

}  // namespace

Warp::Warp(Launch& launch, uint32_t index, uint32_t lanes, uint8_t* registers)
    : launch(launch),
      index(index),
      exist(lanes == kLanes ? kAllLanes : (Lanes{1} << lanes) - 1),
      alive(exist),
      registers(registers),
      groups{{0, exist}} {}

Launch::Launch(Module& module, const Kernel& kernel, const GridShape& grid, void** arguments, const Options& options)
    : module_(module),
      kernel_(kernel),
      grid_(grid),
      options_(options),
      parameters_(kernel.parameter_bytes),
      shared_(kernel.guarded_shared_bytes()),
      shared_cells_(shared_.size() / kGranule + 1),
      random_(options.seed * 0x9e3779b97f4a7c15 + 1) {
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const auto [offset, bytes] = kernel.parameters[i];
    std::memcpy(&parameters_[offset], arguments[i], bytes);
  }
  AddGuards();
}

// Forbids accesses to shared memory outside variables.
void Launch::AddGuards() {
  uint32_t end = 0;
  for (const auto& [start, bytes] : kernel_.shared_variables) {
    std::fill(shared_cells_.begin() + (end + kGranule - 1) / kGranule, shared_cells_.begin() + start / kGranule,
              Cell::Guard());
    end = start + bytes;
  }
  std::fill(shared_cells_.begin() + (end + kGranule - 1) / kGranule, shared_cells_.end(), Cell::Guard());
}

uint64_t Launch::Random() {  // xorshift64
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  return random_ ^= random_ << 17;
}

void Launch::Fail(const Warp& warp, const Instruction& instruction, int lane, const std::string& what) const {
  const std::string_view text = module_.Line(instruction.ptx_line);
  throw Fault(kernel_.name + ", block " + std::to_string(block_) + ", thread " +
              std::to_string(warp.index * kLanes + uint32_t(lane)) + ", " + kernel_.locations[instruction.location] +
              ": `" + std::string(text.substr(text.find_first_not_of(" \t"))) + "` (PTX line " +
              std::to_string(instruction.ptx_line) + ") " + what);
}

void Launch::Run() {
  epochs_.launch = NextEpoch();
  const uint32_t blocks = grid_.blocks[0] * grid_.blocks[1] * grid_.blocks[2];
  if (options_.only_last_block) return RunBlock(blocks - 1);
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t i = blocks; i > 1; --i) std::swap(order[i - 1], order[Random() % i]);
  for (const uint32_t block : order) RunBlock(block);
}

void Launch::InitializeRegisters(Warp& warp, const uint32_t (&block)[3]) {
  for (const auto& [name, place] : kernel_.registers.specials()) {
    const uint32_t axis = uint32_t(name.back() - 'x');
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      uint32_t& value = warp.At<uint32_t>(place)[lane];
      if (name.rfind("%tid.", 0) == 0) {
        value = axis == 0 ? warp.index * kLanes + lane : 0;
      } else if (name.rfind("%ntid.", 0) == 0) {
        value = axis == 0 ? grid_.threads : 1;
      } else if (name.rfind("%ctaid.", 0) == 0) {
        value = block[axis];
      } else if (name.rfind("%nctaid.", 0) == 0) {
        value = grid_.blocks[axis];
      } else if (name == "%laneid") {
        value = lane;
      } else {
        throw Fault("the interpreter has no register " + name);
      }
    }
  }
  if (blocks_run_ > 1) return;  // the constants of the first block are still there
  for (const RegisterLayout::Constant& constant : kernel_.registers.constants()) {
    if (constant.bytes == 0) warp.Predicate(constant.place) = Lanes(constant.bits);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      std::memcpy(warp.registers + constant.place + lane * constant.bytes, &constant.bits, constant.bytes);
    }
  }
}

void Launch::RunBlock(uint32_t block) {
  block_ = block;
  ++blocks_run_;
  epochs_.block = epochs_.current = NextEpoch();
  std::fill(shared_.begin(), shared_.end(), kPoison);
  const uint32_t index[3] = {block % grid_.blocks[0], block / grid_.blocks[0] % grid_.blocks[1],
                             block / grid_.blocks[0] / grid_.blocks[1]};

  static std::vector<uint64_t> files[32];  // of registers, for up to 1024 threads; kept, because they are large
  const uint32_t num_warps = (grid_.threads + kLanes - 1) / kLanes;
  std::vector<std::unique_ptr<Warp>> warps;
  for (uint32_t w = 0; w < num_warps; ++w) {
    constexpr size_t kAlignment = 64;
    std::vector<uint64_t>& file = files[w];
    const size_t words = (kernel_.registers.size() + kAlignment) / sizeof(uint64_t);
    if (file.size() < words) file.resize(words);
    void* start = file.data();
    size_t space = file.size() * sizeof(uint64_t);
    std::align(kAlignment, kernel_.registers.size(), start, space);
    const uint32_t lanes = std::min<uint32_t>(kLanes, grid_.threads - w * kLanes);
    warps.push_back(std::make_unique<Warp>(*this, w, lanes, static_cast<uint8_t*>(start)));
    InitializeRegisters(*warps.back(), index);
  }

  std::vector<uint32_t> order(num_warps);
  std::iota(order.begin(), order.end(), 0);
  while (true) {
    for (uint32_t w = num_warps; w > 1; --w) std::swap(order[w - 1], order[Random() % w]);
    std::vector<const Warp*> waiting;
    for (const uint32_t w : order) {
      if (RunWarp(*warps[w])) waiting.push_back(warps[w].get());
    }
    if (waiting.empty()) return;
    const Warp& first = *waiting[0];
    const auto barrier_of = [&](const Warp& warp) -> const Instruction& { return kernel_.code[warp.groups[0].at - 1]; };
    if (waiting.size() < num_warps) {
      Fail(first, barrier_of(first), FirstLane(first.exist), "waits for threads of the block that have ended");
    }
    for (const Warp* warp : waiting) {
      if (&barrier_of(*warp) != &barrier_of(first)) {
        Fail(*warp, barrier_of(*warp), FirstLane(warp->exist),
             "waits while other warps wait at another barrier, PTX line " + std::to_string(barrier_of(first).ptx_line));
      }
    }
    epochs_.current = NextEpoch();
  }
}

// Some of `lanes`, all at a collective instruction, for which it is complete. If there are none, finds the absent ones.
Lanes Launch::ReadyLanes(Warp& warp, const Instruction& instruction, Lanes lanes, Lanes* absent) const {
  if (instruction.members < 0) {
    *absent = warp.exist & ~lanes;
    return *absent ? 0 : lanes;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const Lanes members = warp.At<Lanes>(Place(instruction.members))[lane];
    if (!Has(members, lane)) Fail(warp, instruction, lane, "is executed by a lane that its mask does not name");
    *absent = members & ~lanes;
    if (!*absent) return members;
  }
  return 0;
}

bool Launch::RunWarp(Warp& warp) {
  std::vector<Warp::Group>& groups = warp.groups;
  while (!groups.empty()) {
    std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    for (size_t i = 1; i < groups.size();) {
      if (groups[i].at != groups[i - 1].at) {
        ++i;
        continue;
      }
      groups[i - 1].lanes |= groups[i].lanes;
      groups.erase(groups.begin() + std::ptrdiff_t(i));
    }
    Lanes absent = 0;
    const auto can_run = [&](const Warp::Group& group) {
      const Instruction& instruction = kernel_.code[group.at];
      return instruction.control < Control::kBlockBarrier || ReadyLanes(warp, instruction, group.lanes, &absent);
    };
    const auto chosen = std::find_if(groups.begin(), groups.end(), can_run);
    if (chosen == groups.end()) {
      const Instruction& instruction = kernel_.code[groups[0].at];
      ReadyLanes(warp, instruction, groups[0].lanes, &absent);
      Fail(warp, instruction, FirstLane(groups[0].lanes),
           "waits for lanes " + Hex(absent) + " of its warp, which never come" +
               (absent & ~warp.alive ? " (of these, " + Hex(absent & ~warp.alive) + " have ended)" : ""));
    }
    const Warp::Group group = *chosen;
    const auto next = groups.erase(chosen);
    RunGroup(warp, group, next == groups.end() ? ~0u : next->at);
    if (std::exchange(warp.is_at_barrier, false)) return true;
  }
  return false;
}

void Launch::CheckCollective(Warp& warp, const Instruction& instruction, Lanes lanes) const {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const Lanes members = warp.At<Lanes>(Place(instruction.members))[lane];
    if (members != lanes) {
      Fail(warp, instruction, lane, "names lanes " + Hex(members) + ", others than its partners " + Hex(lanes));
    }
  }
}

// Runs a group of lanes until it reaches the instruction `limit`, where others are, or has to wait.
void Launch::RunGroup(Warp& warp, Warp::Group group, uint32_t limit) {
  while (group.at < limit) {
    const Instruction& instruction = kernel_.code[group.at];
    Lanes lanes = group.lanes;
    if (instruction.guard >= 0) {
      const Lanes guard = warp.Predicate(Place(instruction.guard));
      lanes &= instruction.is_negated ? ~guard : guard;
    }
    bool is_split = false;
    if (instruction.control >= Control::kBlockBarrier) {
      Lanes absent;
      const Lanes ready = ReadyLanes(warp, instruction, group.lanes, &absent);
      if (!ready) break;
      if (ready != group.lanes) {
        warp.groups.push_back({group.at, group.lanes & ~ready});
        group.lanes = ready;
        lanes &= ready;
        is_split = true;
      }
      if (lanes != group.lanes)
        Fail(warp, instruction, FirstLane(group.lanes & ~lanes), "is skipped by a lane's guard");
    }
    ++group.at;
    switch (instruction.control) {
      case Control::kNext:
        if (lanes) instruction.execute(warp, instruction, lanes);
        break;
      case Control::kBranch:
        if (lanes == group.lanes) {
          group.at = uint32_t(instruction.target);
        } else if (lanes) {
          warp.groups.push_back({uint32_t(instruction.target), lanes});
          group.lanes &= ~lanes;
          is_split = true;
        }
        break;
      case Control::kExit:
        warp.alive &= ~lanes;
        group.lanes &= ~lanes;
        if (!group.lanes) return;
        break;
      case Control::kCollective:
        CheckCollective(warp, instruction, lanes);
        instruction.execute(warp, instruction, lanes);
        break;
      case Control::kBlockBarrier:
        warp.is_at_barrier = true;
        warp.groups.push_back(group);
        return;
    }
    if (is_split) break;
  }
  warp.groups.push_back(group);
}

uint8_t* Launch::Memory(Space space) {
  return space == Space::kShared ? shared_.data() : space == Space::kParameter ? parameters_.data() : nullptr;
}

const char* Launch::CheckGlobal(Warp& warp, Access access, uint64_t address, uint32_t bytes, uint32_t used_bytes,
                                int lane) {
  if (!last_allocation_ || !last_allocation_->Contains(address, bytes)) {
    last_allocation_ = FindAllocation(address);
    if (!last_allocation_ || !last_allocation_->Contains(address, bytes)) return "is out of bounds: no buffer has";
  }
  Allocation& allocation = *last_allocation_;
  if (allocation.is_read_only) {
    return IsWrite(access) ? "writes an operand, at" : nullptr;
  }
  if (allocation.cells.empty()) return nullptr;
  const uint64_t first = (address - allocation.base) / kGranule;
  for (uint32_t i = 0; i < std::max(bytes / kGranule, 1u); ++i) {
    const bool is_used = used_bytes >> i * kGranule & ((1 << kGranule) - 1);
    const char* error =
        allocation.cells[first + i].Record(access, warp.AccessorOf(lane), epochs_, Cell::kHostEpoch, is_used);
    if (error) return error;
  }
  return nullptr;
}

void Launch::CheckAccess(Warp& warp, const Instruction& instruction, Lanes lanes, Space space, Access access,
                         const uint64_t (&addresses)[kLanes], uint32_t bytes) {
  const bool is_shared = space == Space::kShared;
  const Epochs block_epochs = {epochs_.block, epochs_.block, epochs_.current};  // no other block has this memory
  const size_t size = is_shared ? shared_.size() : parameters_.size();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const uint64_t address = addresses[lane];
    const auto fail = [&](const std::string& what) {
      Fail(warp, instruction, lane, what + " address " + std::to_string(int64_t(address)));
    };
    if (address % bytes) fail("is misaligned: it accesses " + std::to_string(bytes) + " bytes at");
    if (space == Space::kGlobal) {
      const char* error = CheckGlobal(warp, access, address, bytes, instruction.used_bytes, lane);
      if (error) fail(error);
      continue;
    }
    if (address + bytes > size || address + bytes < address) {
      fail(is_shared ? "is out of bounds of shared memory, at" : "is out of bounds of the parameters, at");
    }
    if (!is_shared) continue;
    for (uint32_t i = 0; i < std::max(bytes / kGranule, 1u); ++i) {
      const bool is_used = instruction.used_bytes >> i * kGranule & ((1 << kGranule) - 1);
      Cell& cell = shared_cells_[address / kGranule + i];
      const char* error = cell.Record(access, warp.AccessorOf(lane), block_epochs, epochs_.block, is_used);
      if (error) fail(std::string(error) + ", at shared");
    }
  }
}

}  // namespace ptx
