// What a launch asks of a multiprocessor, counted.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "program.h"

namespace ptx {

// An L1 cache of 128-byte lines, each of four sectors of 32 bytes, with the least recently used line replaced first.
class L1Cache {
 public:
  explicit L1Cache(size_t bytes) : max_lines_(bytes / 128) {}

  bool Read(uint64_t sector);  // the sector's number; returns whether it was there, and brings it in

 private:
  struct Line {
    std::list<uint64_t>::iterator recency;
    uint32_t sectors;
  };

  size_t max_lines_;
  std::list<uint64_t> by_recency_;
  std::unordered_map<uint64_t, Line> lines_;
};

// The unit of all counts of instructions and barriers is a warp. A wavefront is a cycle of the L1 and shared memory
// pipeline, which moves up to 128 bytes.
struct Counters {
  uint64_t warp_instructions = 0, divergent_branches = 0, barriers = 0;
  uint64_t shared_wavefronts = 0;  // of loads and stores
  uint64_t bank_conflicts = 0;     // wavefronts beyond those that the same accesses need without conflicts
  uint64_t async_wavefronts = 0;   // that asynchronous copies write to shared memory
  uint64_t l1_wavefronts = 0;      // of global loads, stores and atomics: a 128-byte line each
  uint64_t sectors = 0;            // of 32 bytes, of the same and of asynchronous copies
  uint64_t l2_bytes = 0;           // that miss L1 (loads) or pass it (all others)
  uint64_t by_class[kClasses] = {};
  std::unordered_map<std::string, uint64_t> mma;  // by type
  std::vector<uint64_t> executions, wavefronts;   // of each instruction of the kernel

  uint64_t all_wavefronts() const { return shared_wavefronts + async_wavefronts + l1_wavefronts; }
  void CountShared(Lanes lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, bool is_async);
  // `cache` is null for accesses that bypass it.
  void CountGlobal(Lanes lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, bool is_async, L1Cache* cache);
};

}  // namespace ptx
