// Executes the PTX of kernels, one block after another, by the PTX ISA's rules, and reports what a GPU would not: see
// Fault.
//
// The lanes of a warp execute together while they are at the same instruction; those that are furthest behind go first.
// A collective instruction waits for all lanes that it names.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.h"
#include "program.h"

namespace ptx {

// An access out of bounds or misaligned; a read of memory that was not written; a race; a barrier, or another
// collective instruction, that some of its lanes never reach.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr uint64_t kCudaVersion = 13010;  // CUDA 13.1: the DCN_CUDA_VERSION of executed_ptx.py

// Truth values are 0 or 1, so that all options have one type and can be set by name.
struct Options {
  uint64_t seed = 1;               // of the order of blocks and warps
  uint64_t max_grid_blocks = ~0u;  // the grid is cut to this many blocks, to test grid-stride loops
  uint64_t only_last_block = 0;    // of each launch runs, to test large arrays
  uint64_t sms = 132;
  uint64_t requires_loading = 0;  // of kernels, before they are launched
  // The machine. If there is no machine code for its compute capability, it needs PTX, and a driver of the runtime's
  // version.
  uint64_t driver_version = kCudaVersion, device = 0, compute_capability = 90;
  uint64_t has_machine_code = 1, has_ptx = 1;
  uint64_t has_memory = 1;  // to load kernels
};

struct GridShape {
  uint32_t blocks[3];
  uint32_t threads;  // per block, in one dimension
};

class Launch;

class Warp {
 public:
  // Lanes at the same instruction.
  struct Group {
    uint32_t at;
    Lanes lanes;
  };

  Warp(Launch& launch, uint32_t index, uint32_t lanes, uint8_t* registers);

  template <typename T>
  T* At(Place place) {
    return reinterpret_cast<T*>(registers + place);
  }

  // The lanes whose predicate is true.
  Lanes& Predicate(Place place) { return *At<Lanes>(place); }

  Accessor AccessorOf(int lane) const { return {index * kLanes + uint32_t(lane), barriers}; }

  Launch& launch;
  uint32_t index;  // in the block
  Lanes exist, alive;
  uint8_t* registers;
  std::vector<Group> groups;
  uint16_t barriers = 0;       // bar.warp.sync that all lanes passed
  bool is_at_barrier = false;  // of the block
};

// One launch of a kernel.
class Launch {
 public:
  Launch(Module& module, const Kernel& kernel, const GridShape& grid, void** arguments, const Options& options);

  // Runs all blocks. Throws Fault.
  void Run();

  const Kernel& kernel() const { return kernel_; }
  const GridShape& grid() const { return grid_; }

  // For the instructions. Checks an access of `lanes`, `bytes` each. Addresses are those of the process in global
  // memory, and offsets in the other spaces.
  void CheckAccess(Warp&, const Instruction&, Lanes, Space, Access, const uint64_t (&addresses)[kLanes],
                   uint32_t bytes);
  uint8_t* Memory(Space space);
  [[noreturn]] void Fail(const Warp&, const Instruction&, int lane, const std::string& what) const;

 private:
  uint64_t Random();
  void RunBlock(uint32_t block);
  void AddGuards();
  // Runs until the warp waits for the block's barrier; returns false if it has ended instead.
  bool RunWarp(Warp&);
  void RunGroup(Warp&, Warp::Group, uint32_t limit);
  Lanes ReadyLanes(Warp&, const Instruction&, Lanes, Lanes* absent) const;
  void CheckCollective(Warp&, const Instruction&, Lanes) const;
  void InitializeRegisters(Warp&, const uint32_t (&block)[3]);
  const char* CheckGlobal(Warp&, Access, uint64_t address, uint32_t bytes, uint32_t used_bytes, int lane);

  Module& module_;
  const Kernel& kernel_;
  GridShape grid_;
  Options options_;
  std::vector<uint8_t> parameters_, shared_;
  std::vector<Cell> shared_cells_;
  Epochs epochs_;
  uint32_t block_ = 0;
  uint64_t blocks_run_ = 0, random_;
  Allocation* last_allocation_ = nullptr;
};

}  // namespace ptx
