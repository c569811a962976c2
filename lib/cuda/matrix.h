// Warp-level instructions of the tensor cores (sm_80 and later), and the loads and copies that feed them.
//
// All 32 lanes of a warp call load_matrix_fragments, load_matrix_fragments_transposed and mma together. Fragments
// consist of words of 4 bytes along K, each two 16-bit elements or one float, so that their layout in the lanes is the
// same for all types. (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8".)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "vector.h"

namespace dcn {

// An address in the shared state space, which st.shared, ldmatrix and cp.async take.
using SharedAddress = uint32_t;
__device__ inline SharedAddress AddressInShared(const void* shared) {
  return uint32_t(__cvta_generic_to_shared(shared));
}

// Loads four matrices of 8 rows of 16 bytes. Lanes 8i to 8i + 7 pass the addresses of the rows of matrix i; lane 4r + c
// receives word c of row r of each matrix.
__device__ inline void load_matrix_fragments(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(AddressInShared(row))
               : "memory");
}

// Loads four matrices of 16-bit elements, transposed: lane 4r + c receives elements r of rows 2c and 2c + 1.
__device__ inline void load_matrix_fragments_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(AddressInShared(row))
               : "memory");
}

// accumulator[16, 8] += a[16, 32 bytes] · b[8, 32 bytes]ᵀ
template <typename T>
__device__ void mma(float (&accumulator)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#define DCN_DEFINE_MMA(T, INSTRUCTION)                                                                              \
  template <>                                                                                                       \
  __device__ inline void mma<T>(float (&accumulator)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {          \
    asm volatile("mma.sync.aligned." INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3])           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
  }
DCN_DEFINE_MMA(__half, "m16n8k16.row.col.f32.f16.f16.f32")
DCN_DEFINE_MMA(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
DCN_DEFINE_MMA(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef DCN_DEFINE_MMA

// Loads 16 bytes of read-only global memory, or returns zeros if not `is_valid`. The load is predicated, so that lanes
// do not take different branches. The asm is volatile to keep the compiler from moving the load: it must be issued
// before the mma instructions that hide its latency, but not so early that more loads are in flight than there are
// registers for.
__device__ inline Vector<uint32_t, 4> load_global_or_zeros(bool is_valid, const void* address) {
  Vector<uint32_t, 4> words = {};
  asm volatile(
      "{\n"
      "  .reg .pred valid;\n"
      "  setp.ne.u32 valid, %5, 0;\n"
      "  @valid ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(words.value[0]), "+r"(words.value[1]), "+r"(words.value[2]), "+r"(words.value[3])
      : "l"(address), "r"(uint32_t{is_valid}));
  return words;
}

// Rounds to the type that mma takes, which is T, or tf32 if T is float, and packs a word.
template <typename T>
__device__ uint32_t RoundToWord(const float* values);

template <>
__device__ inline uint32_t RoundToWord<__half>(const float* values) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  return word;
}
template <>
__device__ inline uint32_t RoundToWord<__nv_bfloat16>(const float* values) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  return word;
}
template <>
__device__ inline uint32_t RoundToWord<float>(const float* values) {
  uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(values[0]));
  return word;
}

// Starts an asynchronous copy of 16 bytes from global to shared memory, or stores zeros there. The bytes are valid
// after the calling thread has called wait_async_copies.
__device__ inline void copy_async(void* shared, const void* global, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(AddressInShared(shared)), "l"(global),
               "r"(zeros ? 0 : 16)
               : "memory");
}

__device__ inline void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace dcn
