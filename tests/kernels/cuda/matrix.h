// lib/cuda/matrix.h for the CPU. The layout of fragments in the lanes follows the PTX ISA: "Matrix Fragments for
// mma.m16n8k16 with floating point type" and "mma.m16n8k8" (tf32); "ldmatrix" (.trans); "cp.async".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../execution.h"

// An mma only accesses registers, so that ThreadSanitizer would find nothing in it and only slow it down.
#define DCN_ONLY_REGISTERS __attribute__((no_sanitize_thread, always_inline)) inline

namespace dcn {

using SharedAddress = char*;
inline SharedAddress AddressInShared(void* shared) { return static_cast<char*>(shared); }
inline void store_shared(SharedAddress address, const uint4& words) { *reinterpret_cast<uint4*>(address) = words; }

// The layout of a matrix in the lanes: row and column of the i-th element of lane 4 · group + member.
template <typename T>
struct FragmentLayout;

template <typename T>
struct FragmentLayout16 {
  static constexpr int kK = 16;
  DCN_ONLY_REGISTERS static int RowOfA(int group, int, int i) { return i < 2 || (i >= 4 && i < 6) ? group : group + 8; }
  DCN_ONLY_REGISTERS static int ColumnOfA(int, int member, int i) { return member * 2 + (i & 1) + (i < 4 ? 0 : 8); }
  DCN_ONLY_REGISTERS static int RowOfB(int, int member, int i) { return member * 2 + (i & 1) + (i < 2 ? 0 : 8); }
  DCN_ONLY_REGISTERS static float Element(const uint32_t* words, int i) {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(words) + i * sizeof value, sizeof value);
    return float(value);
  }
};
template <>
struct FragmentLayout<__half> : FragmentLayout16<__half> {};
template <>
struct FragmentLayout<__nv_bfloat16> : FragmentLayout16<__nv_bfloat16> {};
template <>
struct FragmentLayout<float> {
  static constexpr int kK = 8;
  DCN_ONLY_REGISTERS static int RowOfA(int group, int, int i) { return i % 2 == 0 ? group : group + 8; }
  DCN_ONLY_REGISTERS static int ColumnOfA(int, int member, int i) { return i < 2 ? member : member + 4; }
  DCN_ONLY_REGISTERS static int RowOfB(int, int member, int i) { return i == 0 ? member : member + 4; }
  DCN_ONLY_REGISTERS static float Element(const uint32_t* words, int i) {
    const uint32_t tf32 = words[i] & ~uint32_t{0x1fff};  // tensor cores ignore the other bits
    float value;
    std::memcpy(&value, &tf32, sizeof value);
    return value;
  }
};

// The eight rows of each of four matrices, whose addresses the lanes pass.
inline const execution::LaneRegisters* RowsOfWarp(const void* row, execution::SourceLocation location) {
  const uint4 mine = *static_cast<const uint4*>(row);
  execution::LaneRegisters registers = {};
  std::memcpy(registers.words, &mine, sizeof mine);
  return execution::AllGatherWarp(registers, location);
}

inline void load_matrix_fragments(uint32_t (&words)[4], const void* row, const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
  const execution::LaneRegisters* rows = RowsOfWarp(row, {file, line});
  const int lane = execution::Lane();
  for (int matrix = 0; matrix < 4; ++matrix) words[matrix] = rows[matrix * 8 + lane / 4].words[lane % 4];
}

inline void load_matrix_fragments_transposed(uint32_t (&words)[4], const void* row, const char* file = __builtin_FILE(),
                                             int line = __builtin_LINE()) {
  const execution::LaneRegisters* rows = RowsOfWarp(row, {file, line});
  const int lane = execution::Lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      const auto* elements = reinterpret_cast<const char*>(rows[matrix * 8 + lane % 4 * 2 + i].words);
      std::memcpy(reinterpret_cast<char*>(&words[matrix]) + 2 * i, elements + lane / 4 * 2, 2);
    }
  }
}

template <typename T>
__attribute__((no_sanitize_thread)) void mma(float (&accumulator)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  using Layout = FragmentLayout<T>;
  constexpr int kK = Layout::kK;
  execution::LaneRegisters registers;
  std::memcpy(registers.words, a, sizeof a);
  std::memcpy(registers.words + 4, b, sizeof b);
  const execution::LaneRegisters* of_lane = execution::AllGatherWarp(registers, {file, line});
  const int mine = execution::Lane();
  float rows[2][kK], columns[2][kK];  // of a and b, for the accumulators of this lane
  for (int lane = 0; lane < execution::kWarp; ++lane) {
    const int group = lane / 4, member = lane % 4;
    const uint32_t* words = of_lane[lane].words;
    for (int i = 0; i < kK / 2 && group == mine / 4; ++i) {
      rows[Layout::RowOfA(group, member, i) / 8][Layout::ColumnOfA(group, member, i)] = Layout::Element(words, i);
    }
    for (int i = 0; i < kK / 4 && group / 2 == mine % 4; ++i) {
      columns[group % 2][Layout::RowOfB(group, member, i)] = Layout::Element(words + 4, i);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < kK; ++k) accumulator[i] += rows[i / 2][k] * columns[i % 2][k];
  }
}

struct alignas(16) Words {
  uint32_t word[4];
};

inline void load_global_if(bool is_valid, Words& words, const void* address) {
  if (is_valid) words = *static_cast<const Words*>(address);
}

inline void load_global_if(bool is_valid, uint32_t (&words)[2], const void* address) {
  if (is_valid) std::memcpy(words, address, sizeof words);
}

inline Words load_global_or_zeros(bool is_valid, const void* address) {
  Words words = {};
  load_global_if(is_valid, words, address);
  return words;
}

inline void load_vector_if(bool is_valid, Words& words, const void* vectors, uint32_t index) {
  if (is_valid) words = static_cast<const Words*>(vectors)[index];
}

template <typename T>
constexpr int kWordSize = 4 / sizeof(T);

template <typename T>
void WordToFloats(uint32_t word, float* values) {
  T elements[kWordSize<T>];
  std::memcpy(elements, &word, sizeof word);
  for (int i = 0; i < kWordSize<T>; ++i) values[i] = float(elements[i]);
}

template <typename T>
uint32_t RoundToWord(const float* values) {
  const T rounded[2] = {T(values[0]), T(values[1])};
  uint32_t word;
  std::memcpy(&word, rounded, sizeof word);
  return word;
}
// To the nearest tf32, ties away from zero.
template <>
inline uint32_t RoundToWord<float>(const float* values) {
  uint32_t word;
  std::memcpy(&word, values, sizeof word);
  const bool finite = (word & 0x7f800000) != 0x7f800000;
  return finite ? (word + 0x1000) & ~uint32_t{0x1fff} : word;
}

// Until the thread waits for the copy, its target contains NaN.
inline void copy_async(void* shared, const void* global, bool zeros) {
  std::memset(shared, 0xff, sizeof(uint4));
  execution::EnqueueCopy({shared, zeros ? nullptr : global});
}

inline void wait_async_copies() {
  for (execution::Copy copy; execution::PopPendingCopy(&copy);) {
    *static_cast<uint4*>(copy.to) = copy.from ? *static_cast<const uint4*>(copy.from) : uint4{};
  }
}

}  // namespace dcn
