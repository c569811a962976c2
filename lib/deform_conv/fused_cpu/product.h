// Matrix products of panels in the caches. A and B consist of words of 32 bits: a float32, or two bfloat16 that are
// neighbours along K and that one instruction multiplies together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "aligned_vector.h"
#include "attributes.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

#if DCN_HAS_NEON_KERNELS
// A vector for instructions that multiply by its first element. The empty statement hides where the element comes from:
// GCC would broadcast some elements by an instruction that occupies an arithmetic pipeline.
DCN_INLINE float32x2_t FirstElement(const float* a) {
  float32x2_t vector = {*a, 0};
  __asm__("" : "+w"(vector));
  return vector;
}
#endif

// A word is one float32.
struct FloatWords {
  static constexpr int kValues = 1;
  static DCN_INLINE Floats MultiplyAdd(const float* a, Floats b, Floats sum) {
#if DCN_HAS_NEON_KERNELS
    return (Floats)vfmaq_lane_f32((float32x4_t)sum, (float32x4_t)b, FirstElement(a), 0);
#else
    return sum + *a * b;
#endif
  }
};

// The micro kernel keeps a block of sums in registers: kMicroRows rows of two vectors, beside two vectors of B. x86 has
// 16 registers, or 32 of 64 bytes. Without fused multiply-add, a product needs a register, too. aarch64 has 32
// registers, of which elements of A need some; 16 sums hide the latency of four multiply-adds at a time.
constexpr int kMicroRows = DCN_HAS_NEON_KERNELS ? 8 : kVectorBytes == 64 ? 14 : kVectorBytes == 32 ? 6 : 5;
constexpr int kMicroVectors = 2;
constexpr int kPanel = kMicroVectors * kLanes;  // columns of a panel of B, and of the micro kernel's block
constexpr int64_t kBlockWords = 256;            // of K, that are multiplied at once
// A row of a buffer, with room for a vector at its end. Rows of an odd number of cache lines spread over the sets of a
// cache.
constexpr int kRowWords = kBlockWords + kLineFloats;

// The micro kernel: adds A[kRows, steps] · B[steps, kPanel] to C, or sets C where `is_first`. The element of A in row r
// at step k is at a[r · kRowStride + k · kStepStride].
template <typename Word, int kRows, int kRowStride, int kStepStride>
DCN_NOINLINE void MicroKernel(const float* a, const float* b, int64_t steps, float* c, int64_t c_stride,
                              bool is_first) {
  Floats sum[kRows][kMicroVectors] = {};
  if (!is_first) {
    DCN_UNROLL for (int r = 0; r < kRows; ++r) {
      DCN_UNROLL for (int v = 0; v < kMicroVectors; ++v) sum[r][v] = Load(c + r * c_stride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < steps; ++k) {
    Floats b_step[kMicroVectors];
    DCN_UNROLL for (int v = 0; v < kMicroVectors; ++v) b_step[v] = Load(b + v * kLanes);
    DCN_UNROLL for (int r = 0; r < kRows; ++r) {
      DCN_UNROLL for (int v = 0; v < kMicroVectors; ++v) {
        sum[r][v] = Word::MultiplyAdd(a + r * kRowStride, b_step[v], sum[r][v]);
      }
    }
    a += kStepStride;
    b += kPanel;
  }
  DCN_UNROLL for (int r = 0; r < kRows; ++r) {
    DCN_UNROLL for (int v = 0; v < kMicroVectors; ++v) Store(sum[r][v], c + r * c_stride + v * kLanes);
  }
}

// MicroKernel for the last rows of A, of which there are at most kRows.
template <typename Word, int kRows, int kRowStride, int kStepStride>
void LastMicroKernel(int64_t rows, const float* a, const float* b, int64_t steps, float* c, int64_t c_stride,
                     bool is_first) {
  if (rows == kRows) {
    MicroKernel<Word, kRows, kRowStride, kStepStride>(a, b, steps, c, c_stride, is_first);
  } else if constexpr (kRows > 1) {
    LastMicroKernel<Word, kRows - 1, kRowStride, kStepStride>(rows, a, b, steps, c, c_stride, is_first);
  }
}

// B of a product: panels of kPanel columns. Only `columns` columns are read, but prefetches, which cannot fault, may
// lie beyond the end. Strides are in elements.
template <typename T>
struct Panels {
  const T* first;
  int64_t row_stride, panel_stride, columns;
};

// Panels that are packed one after the other, each [steps, kPanel].
template <typename T>
Panels<T> PackedPanels(const T* first, int64_t steps) {
  return {first, kPanel, steps * kPanel, INT64_MAX};
}

// Products by the micro kernel.
template <typename Word>
class RegisterProduct {
 public:
  static constexpr int kValues = Word::kValues;

  RegisterProduct() : panel_(kBlockWords * kPanel) {}

  static int64_t PaddedRows(int64_t rows) { return rows; }

  // Adds A[rows, steps] · B[steps, columns] to C[rows, c_stride], or sets C where `is_first`. The columns of C are
  // padded to whole panels. If B is not packed, or does not consist of words, it has at most kBlockWords steps.
  template <int kRowStride, int kStepStride, typename T>
  void Multiply(int64_t rows, int64_t columns, int64_t steps, const float* a, Panels<T> b, float* c, int64_t c_stride,
                bool is_first) {
    const int64_t row_blocks = (rows + kMicroRows - 1) / kMicroRows;
    const int64_t prefetched = (steps + row_blocks - 1) / row_blocks;  // steps
    for (int64_t column = 0; column < columns; column += kPanel, b.first += b.panel_stride, b.columns -= kPanel) {
      const float* const words = PackedPanel(b, steps);
      const T* next = b.first + b.panel_stride;  // the next panel is prefetched, some steps with every block of rows
      for (int64_t row = 0; row < rows; row += kMicroRows) {
        for (int64_t k = 0; column + kPanel < columns && k < prefetched; ++k, next += b.row_stride) Prefetch(next);
        const float* const a_rows = a + row * kRowStride;
        float* out = c + row * c_stride + column;
        if (row + kMicroRows <= rows) {
          MicroKernel<Word, kMicroRows, kRowStride, kStepStride>(a_rows, words, steps, out, c_stride, is_first);
        } else {
          LastMicroKernel<Word, kMicroRows - 1, kRowStride, kStepStride>(rows - row, a_rows, words, steps, out,
                                                                         c_stride, is_first);
        }
      }
    }
  }

 private:
  template <typename T>
  static DCN_INLINE void Prefetch(const T* row) {
    constexpr int kLine = 64 / sizeof(T);
    DCN_UNROLL for (int i = 0; i < kPanel; i += kLine) __builtin_prefetch(row + i, 0, 2);
  }

  // The first panel of B, packed in words. B is not copied if it is packed already.
  template <typename T>
  const float* PackedPanel(const Panels<T>& b, int64_t steps) {
    if constexpr (std::is_same_v<T, float>) {
      if (b.row_stride == kPanel && b.columns >= kPanel) return b.first;
    }
    for (int64_t k = 0; k < steps; ++k) {
      const T* const from = b.first + k * b.row_stride;
      float* const to = panel_.data() + k * kPanel;
      for (int64_t i = 0; i < kPanel; i += kLanes) {
        Store(i < b.columns ? Load(from + i, b.columns - i) : Floats{}, to + i);
      }
    }
    return panel_.data();
  }

  AlignedVector<float> panel_;
};

}  // namespace
DCN_END_TARGET
