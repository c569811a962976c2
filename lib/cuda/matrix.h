// The warp's matrix units, of sm_80 and later, and the copies that feed them. Kernels include this by the include
// path, where the tests have a twin of it for the CPU.
//
// All 32 lanes call load_matrix_fragments, load_matrix_fragments_transposed and mma together. Depth goes by words of 4
// bytes, two numbers of 16 bits or one float, and a fragment lies alike in the lanes for all types. (PTX ISA, "Matrix
// Fragments for mma.m16n8k16" and "mma.m16n8k8".)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace dcn {

// A number of the multiprocessor's shared memory, as its instructions take it.
__device__ inline uint32_t SharedAddress(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }

// Four matrices of 8 rows of 16 bytes. Lanes 8i to 8i + 7 give the rows of matrix i; lane 4r + c gets word c of row r
// of each.
__device__ inline void load_matrix_fragments(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(SharedAddress(row)));
}

// The same of 16-bit numbers, transposed: lane 4r + c gets numbers r of rows 2c and 2c + 1.
__device__ inline void load_matrix_fragments_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(SharedAddress(row)));
}

// sum[16, 8] += a[16, 32 bytes] · b[8, 32 bytes]ᵀ
template <typename T>
__device__ void mma(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#define DCN_MULTIPLY_ADD(T, INSTRUCTION)                                                                            \
  template <>                                                                                                       \
  __device__ inline void mma<T>(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {                  \
    asm volatile("mma.sync.aligned." INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
  }
DCN_MULTIPLY_ADD(__half, "m16n8k16.row.col.f32.f16.f16.f32")
DCN_MULTIPLY_ADD(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
DCN_MULTIPLY_ADD(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef DCN_MULTIPLY_ADD

struct alignas(16) Words {
  uint32_t word[4];
};

// 16 bytes of global memory that no one writes, so many bytes behind `base`, or zeros. Volatile, so that it stays where
// it is put: loads are to be on their way while matrices are multiplied, and no more of them than there are registers
// for.
__device__ inline Words load_global_or_zeros(const void* base, int64_t bytes, bool there) {
  Words words;
  asm volatile(
      "{\n"
      "  .reg .pred there;\n"
      "  setp.ne.u32 there, %5, 0;\n"
      "  mov.u32 %0, 0;\n"
      "  mov.u32 %1, 0;\n"
      "  mov.u32 %2, 0;\n"
      "  mov.u32 %3, 0;\n"
      "  @there ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(words.word[0]), "=&r"(words.word[1]), "=&r"(words.word[2]), "=&r"(words.word[3])
      : "l"(static_cast<const char*>(base) + bytes), "r"(uint32_t{there}));
  return words;
}

// A word of neighbouring numbers as floats, kWordSize<T> of them.
template <typename T>
constexpr int kWordSize = 4 / sizeof(T);

template <typename T>
__device__ void WordToFloats(uint32_t word, float* values);

template <>
__device__ inline void WordToFloats<__half>(uint32_t word, float* values) {
  const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
  values[0] = pair.x;
  values[1] = pair.y;
}
template <>
__device__ inline void WordToFloats<__nv_bfloat16>(uint32_t word, float* values) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000);
}
template <>
__device__ inline void WordToFloats<float>(uint32_t word, float* values) {
  values[0] = __uint_as_float(word);
}

// The other way, rounded to what products take: T, or tf32 where T is float.
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

// 16 bytes from global to shared memory, or zeros, which are there once this thread has waited for its copies.
__device__ inline void copy_async(void* shared, const void* global, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(zeros ? 0 : 16)
               : "memory");
}

__device__ inline void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace dcn
