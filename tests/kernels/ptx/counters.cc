#include "counters.h"

#include <algorithm>

namespace ptx {
namespace {

constexpr int kBanks = 32, kBankBytes = 4, kWavefrontBytes = 128, kSectorBytes = 32;

int SortUnique(uint64_t* begin, int count) {
  std::sort(begin, begin + count);
  return int(std::unique(begin, begin + count) - begin);
}

// The hardware serves an access of 8 bytes per lane in two groups of lanes, and one of 16 bytes in four.
int LanesPerGroup(uint32_t bytes) { return std::min<int>(kLanes, kWavefrontBytes / int(bytes)); }

}  // namespace

bool L1Cache::Read(uint64_t sector) {
  const uint64_t number = sector / 4;
  const uint32_t bit = 1u << sector % 4;
  const auto found = lines_.find(number);
  if (found != lines_.end()) {
    by_recency_.splice(by_recency_.begin(), by_recency_, found->second.recency);
    const bool was_there = found->second.sectors & bit;
    found->second.sectors |= bit;
    return was_there;
  }
  by_recency_.push_front(number);
  lines_[number] = {by_recency_.begin(), bit};
  if (lines_.size() > max_lines_) {
    lines_.erase(by_recency_.back());
    by_recency_.pop_back();
  }
  return false;
}

void Counters::CountShared(Lanes lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, bool is_async) {
  const int group = LanesPerGroup(bytes);
  for (int first = 0; first < kLanes; first += group) {
    uint64_t words[kLanes];
    int count = 0;
    for (int lane = first; lane < first + group; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      for (uint32_t i = 0; i < std::max<uint32_t>(bytes / kBankBytes, 1); ++i) {
        words[count++] = addresses[lane] / kBankBytes + i;
      }
    }
    count = SortUnique(words, count);
    int in_bank[kBanks] = {}, wavefronts = 0;
    for (int i = 0; i < count; ++i) wavefronts = std::max(wavefronts, ++in_bank[words[i] % kBanks]);
    (is_async ? async_wavefronts : shared_wavefronts) += uint64_t(wavefronts);
    bank_conflicts += uint64_t(std::max(wavefronts - (count + kBanks - 1) / kBanks, 0));
  }
}

void Counters::CountGlobal(Lanes lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, bool is_async,
                           L1Cache* cache) {
  const int group = LanesPerGroup(bytes);
  for (int first = 0; first < kLanes; first += group) {
    uint64_t numbers[kLanes];
    int count = 0;
    for (int lane = first; lane < first + group; ++lane) {
      if (lanes >> lane & 1) numbers[count++] = addresses[lane] / kSectorBytes;
    }
    count = SortUnique(numbers, count);
    sectors += uint64_t(count);
    for (int i = 0; i < count; ++i) {
      if (!cache || !cache->Read(numbers[i])) l2_bytes += kSectorBytes;
    }
    if (is_async) continue;
    for (int i = 0; i < count; ++i) numbers[i] /= kWavefrontBytes / kSectorBytes;
    l1_wavefronts += uint64_t(SortUnique(numbers, count));
  }
}

}  // namespace ptx
