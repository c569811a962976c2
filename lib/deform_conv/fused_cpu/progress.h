// The progress of a call's tiles. Where several tiles add to the same result, they do so in a fixed order: a tile waits
// for the tiles before it. Threads take tiles in order, and allocate nothing after they have taken one. So a tile that
// others wait for has been taken and will be finished: every wait ends, even with a single thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace dcn {

template <typename Condition>
void WaitUntil(const Condition& is_true) {
  while (!is_true()) std::this_thread::yield();
}

// A rectangle of pixels of an image.
struct PixelBox {
  int32_t first_row = INT32_MAX, last_row = -1, first_column = INT32_MAX, last_column = -1;

  bool is_empty() const { return last_row < first_row || last_column < first_column; }
  int64_t rows() const { return int64_t{last_row} - first_row + 1; }
  int64_t columns() const { return int64_t{last_column} - first_column + 1; }
  bool Overlaps(const PixelBox& other) const {
    return first_row <= other.last_row && other.first_row <= last_row && first_column <= other.last_column &&
           other.first_column <= last_column;
  }
};

class TileProgress {
 public:
  // The steps of a tile, in their order.
  static constexpr int64_t kLocated = 1;
  static int64_t PositionsStored(int64_t tap) { return 2 + 2 * tap; }
  static int64_t WeightAdded(int64_t tap) { return 3 + 2 * tap; }
  static int64_t Finished(int64_t taps) { return 2 + 2 * taps; }

  void SetLocated(const PixelBox& box) {
    box_ = box;
    Set(kLocated);
  }
  void Set(int64_t step) { step_.store(step, std::memory_order_release); }
  bool Has(int64_t step) const { return step_.load(std::memory_order_acquire) >= step; }
  void WaitFor(int64_t step) const {
    WaitUntil([&] { return Has(step); });
  }
  // The pixels whose cotangents the tile adds to. The tile must be located.
  const PixelBox& box() const { return box_; }

 private:
  std::atomic<int64_t> step_{0};
  PixelBox box_;
};

// Counters that threads increment, and whose counts they wait for.
class Counters {
 public:
  explicit Counters(int64_t count) : counts_(count) {}

  void Increment(int64_t i) { counts_[i].fetch_add(1, std::memory_order_release); }
  void WaitFor(int64_t i, int64_t count) const {
    WaitUntil([&] { return counts_[i].load(std::memory_order_acquire) >= count; });
  }

 private:
  std::vector<std::atomic<int64_t>> counts_;
};

// The progress of all planes.
struct Progress {
  Progress(int64_t planes, int64_t tiles, int64_t phases)
      : tiles_of_plane(tiles), tiles(planes * tiles), finished_tiles(planes), prepared_bands(phases) {}

  TileProgress& Of(int64_t plane, int64_t tile) { return tiles[plane * tiles_of_plane + tile]; }

  int64_t tiles_of_plane;
  std::vector<TileProgress> tiles;
  Counters finished_tiles;  // of each plane
  Counters prepared_bands;  // of each phase
};

}  // namespace dcn
