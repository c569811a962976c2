// The instructions of AMX, for processors that have AVX512-BF16 but lack AMX. Included before a file that uses them.
//
// Three differences do not matter to the tests, whose sums are exact: sums of pairs are added one by one, subnormal
// operands and results of products are not zero, and the compiler knows what memory a tile is loaded from.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace dcn_emulated {

static inline float Half(uint32_t word, int half) {
  const uint32_t bits = half ? word & 0xffff0000 : word << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Tile {
  uint32_t words[16][16];
};
inline thread_local Tile tiles[8];
inline thread_local uint8_t tile_rows[8];
inline thread_local uint16_t tile_bytes[8];

static inline void LoadConfiguration(const void* configuration) {
  std::memcpy(tile_bytes, static_cast<const char*>(configuration) + 16, sizeof tile_bytes);
  std::memcpy(tile_rows, static_cast<const char*>(configuration) + 48, sizeof tile_rows);
}
static inline void Release() {
  std::memset(tile_rows, 0, sizeof tile_rows);
  std::memset(tiles, 0, sizeof tiles);
}
static inline void Zero(int tile) { std::memset(&tiles[tile], 0, sizeof tiles[tile]); }
static inline void LoadTile(int tile, const void* from, int64_t stride) {
  Zero(tile);
  for (int row = 0; row < tile_rows[tile]; ++row) {
    std::memcpy(tiles[tile].words[row], static_cast<const char*>(from) + row * stride, tile_bytes[tile]);
  }
}
static inline void Store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < tile_rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile].words[row], tile_bytes[tile]);
  }
}
static inline void MultiplyAddTiles(int sum, int a, int b) {
  for (int row = 0; row < tile_rows[sum]; ++row) {
    for (int k = 0; k < tile_rows[b]; ++k) {
      for (int column = 0; column < tile_bytes[sum] / 4; ++column) {
        float value;
        std::memcpy(&value, &tiles[sum].words[row][column], sizeof value);
        for (int half = 0; half < 2; ++half) {
          value += Half(tiles[a].words[row][k], half) * Half(tiles[b].words[k][column], half);
        }
        std::memcpy(&tiles[sum].words[row][column], &value, sizeof value);
      }
    }
  }
}

}  // namespace dcn_emulated

// Some of these are macros, depending on the compiler.
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig dcn_emulated::LoadConfiguration
#define _tile_release dcn_emulated::Release
#define _tile_zero dcn_emulated::Zero
#define _tile_loadd dcn_emulated::LoadTile
#define _tile_stored dcn_emulated::Store
#define _tile_dpbf16ps dcn_emulated::MultiplyAddTiles
