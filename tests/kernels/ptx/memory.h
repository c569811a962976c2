// Global memory as the interpreter knows it, and the accesses to global and shared memory that are races.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ptx {

constexpr uint32_t kGranule = 2;  // bytes that a cell describes

enum class Access : uint8_t {
  kRead,
  kConstantRead,  // ld.global.nc, whose memory must not change during the launch
  kWrite,
  kAtomic  // a read and a write, for which no order among other atomic accesses is needed
};

inline bool IsWrite(Access access) { return access == Access::kWrite || access == Access::kAtomic; }

// Time, as far as it orders accesses. All epochs are unique: a block barrier, a block and a launch each begin a new
// one.
struct Epochs {
  uint32_t launch = 0, block = 0, current = 0;
};

// A thread of a block at some moment: accesses of a warp's lanes are ordered if a warp barrier is between them.
struct Accessor {
  uint32_t thread;
  uint16_t warp_barriers;  // that the warp has passed
};

// The last accesses to kGranule bytes.
class Cell {
 public:
  static constexpr uint32_t kHostEpoch = 1, kFirstEpoch = 2;

  // Records an access. Returns what is wrong with it, or null. `since` is the epoch from which on a write counts as
  // initialization.
  const char* Record(Access access, Accessor accessor, const Epochs& epochs, uint32_t since, bool is_used);
  void RecordHostWrite(bool is_written) { *this = Cell(is_written ? kHostEpoch : 0); }
  static Cell Guard();  // of memory that no access may touch

  Cell() = default;

 private:
  static constexpr uint32_t kThread = 0xffff, kWarpSize = 32;
  // Others that also read it or, if they are all atomic, wrote it.
  static constexpr uint32_t kOtherLanes = 1 << 16, kOtherWarps = 1 << 17, kOtherBlocks = 1 << 18;
  static constexpr uint32_t kIsGuard = 1 << 19;  // there is no writer
  // The last write was atomic; since the last barrier of the block, a store that was not came before it.
  static constexpr uint32_t kIsAtomic = 1 << 20, kFollowsStore = 1 << 21;

  explicit Cell(uint32_t write_epoch) : write_epoch_(write_epoch) {}

  static bool IsOrdered(uint32_t earlier, uint16_t warp_barriers, Accessor accessor);
  bool IsAfterWrites(Accessor accessor) const;
  bool IsOfSameWarp(Accessor accessor) const;
  const char* CheckRead(bool is_constant, Accessor accessor, const Epochs& epochs) const;
  void RecordRead(Accessor accessor, const Epochs& epochs);
  const char* CheckWrite(bool is_atomic, Accessor accessor, const Epochs& epochs) const;
  void RecordWrite(bool is_atomic, Accessor accessor, const Epochs& epochs);

  uint32_t write_epoch_ = 0, writer_ = 0;  // epoch 0: not written
  uint32_t read_epoch_ = 0, reader_ = 0;
  uint16_t write_warp_barriers_ = 0, read_warp_barriers_ = 0;
};

struct Allocation {
  uint64_t base, bytes;
  bool is_read_only;
  std::vector<Cell> cells;  // none if accesses are not recorded

  bool Contains(uint64_t address, uint64_t count) const {
    return address - base < bytes && address - base + count <= bytes;
  }
};

// The memory that kernels may access. Ranges must not overlap.
// is_recorded: whether accesses are, unless it is read-only. That takes ten times the memory.
void AddAllocation(const void* base, size_t bytes, bool is_read_only, bool is_recorded = true);
bool RemoveAllocation(const void* base);
Allocation* FindAllocation(uint64_t address);  // or null
void RecordHostWrite(const void* base, size_t bytes, bool is_written);

}  // namespace ptx
