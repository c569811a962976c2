// AVX512-BF16 and AMX in terms of AVX-512, for processors that lack them. Included before a file that uses them.
//
// Three differences do not matter to the tests, whose sums are exact: sums of pairs are added one by one, subnormal
// operands and results of products are not zero, and the compiler knows what memory a tile is loaded from.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define DCN_EMULATED static inline __attribute__((target("avx512f,avx512bw")))

namespace dcn_emulated {

// Rounds to nearest, ties to even; a subnormal number becomes zero.
DCN_EMULATED uint16_t Rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  if ((bits & 0x7f800000) == 0) return uint16_t(bits >> 16 & 0x8000);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DCN_EMULATED __m512bh RoundPairs(__m512 high, __m512 low) {
  float values[32];
  std::memcpy(values, &low, sizeof low);
  std::memcpy(values + 16, &high, sizeof high);
  uint16_t halves[32];
  for (int i = 0; i < 32; ++i) halves[i] = Rounded(values[i]);
  __m512bh result;
  std::memcpy(&result, halves, sizeof result);
  return result;
}

DCN_EMULATED float Half(uint32_t word, int half) {
  const uint32_t bits = half ? word & 0xffff0000 : word << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

DCN_EMULATED __m512 MultiplyAddPairs(__m512 sum, __m512bh a, __m512bh b) {
  float sums[16];
  uint32_t a_words[16], b_words[16];
  std::memcpy(sums, &sum, sizeof sums);
  std::memcpy(a_words, &a, sizeof a_words);
  std::memcpy(b_words, &b, sizeof b_words);
  for (int i = 0; i < 16; ++i) {
    for (int half = 1; half >= 0; --half) sums[i] += Half(a_words[i], half) * Half(b_words[i], half);
  }
  std::memcpy(&sum, sums, sizeof sums);
  return sum;
}

struct Tile {
  uint32_t words[16][16];
};
inline thread_local Tile tiles[8];
inline thread_local uint8_t tile_rows[8];
inline thread_local uint16_t tile_bytes[8];

DCN_EMULATED void LoadConfiguration(const void* configuration) {
  std::memcpy(tile_bytes, static_cast<const char*>(configuration) + 16, sizeof tile_bytes);
  std::memcpy(tile_rows, static_cast<const char*>(configuration) + 48, sizeof tile_rows);
}
DCN_EMULATED void Release() {
  std::memset(tile_rows, 0, sizeof tile_rows);
  std::memset(tiles, 0, sizeof tiles);
}
DCN_EMULATED void Zero(int tile) { std::memset(&tiles[tile], 0, sizeof tiles[tile]); }
DCN_EMULATED void Load(int tile, const void* from, int64_t stride) {
  Zero(tile);
  for (int row = 0; row < tile_rows[tile]; ++row) {
    std::memcpy(tiles[tile].words[row], static_cast<const char*>(from) + row * stride, tile_bytes[tile]);
  }
}
DCN_EMULATED void Store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < tile_rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile].words[row], tile_bytes[tile]);
  }
}
DCN_EMULATED void MultiplyAddTiles(int sum, int a, int b) {
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
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _mm512_cvtne2ps_pbh dcn_emulated::RoundPairs
#define _mm512_dpbf16_ps dcn_emulated::MultiplyAddPairs
#define _tile_loadconfig dcn_emulated::LoadConfiguration
#define _tile_release dcn_emulated::Release
#define _tile_zero dcn_emulated::Zero
#define _tile_loadd dcn_emulated::Load
#define _tile_stored dcn_emulated::Store
#define _tile_dpbf16ps dcn_emulated::MultiplyAddTiles
