// AVX-512, AVX512-BF16 and AMX in terms of AVX2, for processors that lack them. Included before a file that uses them.
// The compiler splits operations on vectors of 64 bytes; the instructions that files name are functions of this one.
//
// Three differences do not matter to the tests, whose sums are exact: sums of pairs are added one by one, subnormal
// operands and results of products are not zero, and the compiler knows what memory a tile is loaded from. A fourth one
// hides mistakes: vectors of 64 bytes may be aligned to 32.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifdef DCN_INSTRUCTION_SET
#include "instruction_sets.h"
#else  // the file names its set
#include "instruction_sets.h"
#undef DCN_INSTRUCTION_SET
#endif

// What the compiler may use for the kernels of any set.
#define DCN_EMULATING "avx2,fma,f16c"
#undef DCN_TARGET
#define DCN_TARGET DCN_EMULATING
#define DCN_EMULATED static inline __attribute__((target(DCN_EMULATING)))

namespace dcn_emulated {

template <typename Lane>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(Lane);
  Lane at[kCount];
};

template <typename Lane, typename Vector>
DCN_EMULATED Lanes<Lane> LanesOf(Vector vector) {
  static_assert(sizeof vector == 64, "");
  Lanes<Lane> lanes;
  std::memcpy(&lanes, &vector, sizeof lanes);
  return lanes;
}
template <typename Vector, typename Lane>
DCN_EMULATED Vector VectorOf(const Lanes<Lane>& lanes) {
  static_assert(sizeof(Vector) == 64, "");
  Vector vector;
  std::memcpy(&vector, &lanes, sizeof vector);
  return vector;
}

DCN_EMULATED __m512i Load(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 64) __builtin_trap();
  __m512i vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

DCN_EMULATED __m512i Widen(__m256i halves) {
  uint16_t from[16];
  std::memcpy(from, &halves, sizeof from);
  Lanes<uint32_t> words;
  for (int i = 0; i < 16; ++i) words.at[i] = from[i];
  return VectorOf<__m512i>(words);
}
DCN_EMULATED __m512i ShiftLeft(__m512i vector, int bits) {
  auto words = LanesOf<uint32_t>(vector);
  for (uint32_t& word : words.at) word <<= bits;
  return VectorOf<__m512i>(words);
}

DCN_EMULATED __m512 FloatsOfHalves(__m256i halves) {
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  Lanes<float> lanes;
  std::memcpy(lanes.at, &low, sizeof low);
  std::memcpy(lanes.at + 8, &high, sizeof high);
  return VectorOf<__m512>(lanes);
}
template <int kRounding>
DCN_EMULATED __m256i HalvesOfFloats(__m512 floats) {
  static_assert(kRounding == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), "");
  __m256 low, high;
  std::memcpy(&low, &floats, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char*>(&floats) + sizeof low, sizeof high);
  return _mm256_setr_m128i(_mm256_cvtps_ph(low, 0), _mm256_cvtps_ph(high, 0));
}

DCN_EMULATED __m512i Broadcast(int16_t value) {
  Lanes<int16_t> lanes;
  for (int16_t& lane : lanes.at) lane = value;
  return VectorOf<__m512i>(lanes);
}
DCN_EMULATED __m512i Add(__m512i a, __m512i b) {
  auto lanes = LanesOf<uint16_t>(a);
  const auto others = LanesOf<uint16_t>(b);
  for (int i = 0; i < lanes.kCount; ++i) lanes.at[i] = uint16_t(lanes.at[i] + others.at[i]);
  return VectorOf<__m512i>(lanes);
}
DCN_EMULATED __m512i PermuteTwo(__m512i a, __m512i order, __m512i b) {
  const auto low = LanesOf<uint16_t>(a), high = LanesOf<uint16_t>(b);
  auto lanes = LanesOf<uint16_t>(order);
  for (uint16_t& lane : lanes.at) lane = (lane & 32 ? high : low).at[lane & 31];
  return VectorOf<__m512i>(lanes);
}
DCN_EMULATED __m512i Permute(__m512i order, __m512i a) { return PermuteTwo(a, order, a); }

// Lane by lane of 16 bytes: the elements of their low or high halves take turns.
template <typename Lane, int kHigh>
DCN_EMULATED __m512i Unpack(__m512i a, __m512i b) {
  constexpr int kCount = 16 / sizeof(Lane);
  const auto first = LanesOf<Lane>(a), second = LanesOf<Lane>(b);
  Lanes<Lane> lanes;
  for (int i = 0; i < lanes.kCount; ++i) {
    const int from = i / kCount * kCount + kHigh * kCount / 2 + i % kCount / 2;
    lanes.at[i] = (i % 2 ? second : first).at[from];
  }
  return VectorOf<__m512i>(lanes);
}

struct Part {
  uint64_t halves[2];
};
DCN_EMULATED __m512i ShuffleParts(__m512i a, __m512i b, int parts) {
  const auto low = LanesOf<Part>(a), high = LanesOf<Part>(b);
  Lanes<Part> lanes;
  for (int i = 0; i < 4; ++i) lanes.at[i] = (i < 2 ? low : high).at[parts >> 2 * i & 3];
  return VectorOf<__m512i>(lanes);
}

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
DCN_EMULATED void LoadTile(int tile, const void* from, int64_t stride) {
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
#undef _mm512_load_si512
#undef _mm512_cvtepu16_epi32
#undef _mm512_slli_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_set1_epi16
#undef _mm512_add_epi16
#undef _mm512_permutex2var_epi16
#undef _mm512_permutexvar_epi16
#undef _mm512_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#undef _mm512_unpacklo_epi64
#undef _mm512_unpackhi_epi64
#undef _mm512_shuffle_i32x4
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _mm512_load_si512 dcn_emulated::Load
#define _mm512_cvtepu16_epi32 dcn_emulated::Widen
#define _mm512_slli_epi32 dcn_emulated::ShiftLeft
#define _mm512_cvtph_ps dcn_emulated::FloatsOfHalves
#define _mm512_cvtps_ph(floats, rounding) dcn_emulated::HalvesOfFloats<rounding>(floats)
#define _mm512_set1_epi16 dcn_emulated::Broadcast
#define _mm512_add_epi16 dcn_emulated::Add
#define _mm512_permutex2var_epi16 dcn_emulated::PermuteTwo
#define _mm512_permutexvar_epi16 dcn_emulated::Permute
#define _mm512_unpacklo_epi32 (dcn_emulated::Unpack<uint32_t, 0>)
#define _mm512_unpackhi_epi32 (dcn_emulated::Unpack<uint32_t, 1>)
#define _mm512_unpacklo_epi64 (dcn_emulated::Unpack<uint64_t, 0>)
#define _mm512_unpackhi_epi64 (dcn_emulated::Unpack<uint64_t, 1>)
#define _mm512_shuffle_i32x4 dcn_emulated::ShuffleParts
#define _mm512_cvtne2ps_pbh dcn_emulated::RoundPairs
#define _mm512_dpbf16_ps dcn_emulated::MultiplyAddPairs
#define _tile_loadconfig dcn_emulated::LoadConfiguration
#define _tile_release dcn_emulated::Release
#define _tile_zero dcn_emulated::Zero
#define _tile_loadd dcn_emulated::LoadTile
#define _tile_stored dcn_emulated::Store
#define _tile_dpbf16ps dcn_emulated::MultiplyAddTiles
