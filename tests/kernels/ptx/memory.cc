#include "memory.h"

#include <algorithm>
#include <map>

namespace ptx {
namespace {

std::map<uint64_t, Allocation> allocations;  // by their ends

}  // namespace

// Whether all accesses of `earlier` are ordered before one of `accessor` in the same epoch of the same block.
bool Cell::IsOrdered(uint32_t earlier, uint16_t warp_barriers, Accessor accessor) {
  const uint32_t thread = earlier & kThread;
  if (earlier & kOtherWarps) return false;
  if (thread == accessor.thread && !(earlier & kOtherLanes)) return true;
  return thread / kWarpSize == accessor.thread / kWarpSize && warp_barriers != accessor.warp_barriers;
}

bool Cell::IsAfterWrites(Accessor accessor) const { return IsOrdered(writer_, write_warp_barriers_, accessor); }

// As the last writer.
bool Cell::IsOfSameWarp(Accessor accessor) const {
  return (writer_ & kThread) / kWarpSize == accessor.thread / kWarpSize;
}

const char* Cell::CheckRead(bool is_constant, Accessor accessor, const Epochs& epochs) const {
  if (write_epoch_ < epochs.launch) return nullptr;
  if (is_constant) return "reads through ld.global.nc what the kernel writes";
  if (write_epoch_ < epochs.block) return "is a race: it reads what another block writes";
  if (write_epoch_ == epochs.current && !IsAfterWrites(accessor)) {
    return "is a race: it reads what another thread writes, with no barrier between them";
  }
  return nullptr;
}

void Cell::RecordRead(Accessor accessor, const Epochs& epochs) {
  const uint32_t before = reader_;
  if (read_epoch_ < epochs.launch) {
    reader_ = accessor.thread;
  } else if (read_epoch_ < epochs.block) {
    reader_ = accessor.thread | kOtherBlocks;
  } else if (read_epoch_ < epochs.current) {
    reader_ = accessor.thread | (before & kOtherBlocks);
  } else if ((before & kThread) / kWarpSize != accessor.thread / kWarpSize) {
    reader_ |= kOtherWarps;
  } else if (read_warp_barriers_ != accessor.warp_barriers) {
    reader_ = accessor.thread | (before & (kOtherBlocks | kOtherWarps));
  } else if ((before & kThread) != accessor.thread) {
    reader_ |= kOtherLanes;
  }
  read_epoch_ = epochs.current;
  read_warp_barriers_ = accessor.warp_barriers;
}

const char* Cell::CheckWrite(bool is_atomic, Accessor accessor, const Epochs& epochs) const {
  if (write_epoch_ >= epochs.launch) {
    if (write_epoch_ < epochs.block) return "is a race: it writes what another block writes";
    const bool is_store_ordered = !(writer_ & kFollowsStore) || IsOfSameWarp(accessor);
    const bool are_atomic = is_atomic && writer_ & kIsAtomic && is_store_ordered;
    if (write_epoch_ == epochs.current && !are_atomic && !IsAfterWrites(accessor)) {
      return "is a race: it writes what another thread writes, with no barrier between them";
    }
  }
  if (read_epoch_ < epochs.launch) return nullptr;
  if (read_epoch_ < epochs.block || reader_ & kOtherBlocks) return "is a race: it writes what another block reads";
  if (read_epoch_ < epochs.current) return nullptr;
  if (!IsOrdered(reader_, read_warp_barriers_, accessor)) {
    return "is a race: it writes what another thread reads, with no barrier between them";
  }
  return nullptr;
}

void Cell::RecordWrite(bool is_atomic, Accessor accessor, const Epochs& epochs) {
  uint32_t flags = is_atomic ? kIsAtomic : 0;
  if (is_atomic && write_epoch_ == epochs.current) {
    flags |= writer_ & kFollowsStore;
    if (!(writer_ & kIsAtomic)) {
      // An addition right after a store counts as a store, which other lanes may not add to without a barrier either.
      flags = write_warp_barriers_ == accessor.warp_barriers ? 0 : kIsAtomic | kFollowsStore;
    } else if (!IsAfterWrites(accessor)) {
      flags |= (writer_ & (kOtherLanes | kOtherWarps)) | (IsOfSameWarp(accessor) ? kOtherLanes : kOtherWarps);
    }
  }
  write_epoch_ = epochs.current;
  write_warp_barriers_ = accessor.warp_barriers;
  writer_ = accessor.thread | flags;
}

const char* Cell::Record(Access access, Accessor accessor, const Epochs& epochs, uint32_t since, bool is_used) {
  if (writer_ & kIsGuard) return "is out of bounds of its variable";
  const bool is_atomic = access == Access::kAtomic;
  if (access != Access::kWrite && write_epoch_ < since && is_used) return "reads memory that was not written";
  if (IsWrite(access)) {
    const char* error = CheckWrite(is_atomic, accessor, epochs);
    if (!error) RecordWrite(is_atomic, accessor, epochs);
    return error;
  }
  const char* error = CheckRead(access == Access::kConstantRead, accessor, epochs);
  if (!error) RecordRead(accessor, epochs);
  return error;
}

Cell Cell::Guard() {
  Cell cell(~uint32_t{0});
  cell.writer_ = kIsGuard;
  return cell;
}

void AddAllocation(const void* base, size_t bytes, bool is_read_only, bool is_recorded) {
  const uint64_t address = reinterpret_cast<uint64_t>(base);
  Allocation& allocation = allocations[address + bytes];
  allocation = {address, bytes, is_read_only, {}};
  if (is_recorded && !is_read_only) allocation.cells.resize(bytes / kGranule + 1);
}

bool RemoveAllocation(const void* base) {
  const Allocation* found = FindAllocation(reinterpret_cast<uint64_t>(base));
  return found && allocations.erase(found->base + found->bytes);
}

Allocation* FindAllocation(uint64_t address) {
  const auto found = allocations.upper_bound(address);
  return found != allocations.end() && address >= found->second.base ? &found->second : nullptr;
}

void RecordHostWrite(const void* base, size_t bytes, bool is_written) {
  const uint64_t address = reinterpret_cast<uint64_t>(base);
  Allocation* allocation = FindAllocation(address);
  if (!allocation || allocation->cells.empty()) return;
  const size_t first = (address - allocation->base) / kGranule, count = (bytes + kGranule - 1) / kGranule;
  for (size_t i = first; i < std::min(first + count, allocation->cells.size()); ++i) {
    allocation->cells[i].RecordHostWrite(is_written);
  }
}

}  // namespace ptx
