// What the fused kernels share: tiles of pixels, and their products on the matrix units from stages in shared memory.
#pragma once

#include <matrix.h>

#include <cstdint>
#include <type_traits>

#include "dtype.h"
#include "launch.h"
#include "vector.h"

extern __shared__ uint4 dynamic_shared[];

namespace dcn {

constexpr int kPixels = 128;        // of a tile
constexpr int kDepth = 8;           // of a stage, in vectors of 16 bytes
constexpr int kSteps = kDepth / 2;  // the matrix units take two at a time
constexpr int kStrip = 8;           // rows of an image whose pixels are counted column by column

// Vector `vector` of row `row` in shared memory. Eight rows have the same vector, and a row eight vectors, in different
// banks.
template <int kVectors = kDepth>
__device__ int swizzled_index(int row, int vector) {
  return row * kVectors + (vector ^ row % 8);
}

// The number of the pixel that is the i-th strip by strip, column by column, through all images: neighbours in both
// directions follow each other, so that what they read meets in the cache, and no tile of pixels is ragged but the
// last.
__device__ inline int64_t PixelInStrips(int64_t rows, int64_t columns, int64_t i) {
  const int64_t image = i / (rows * columns), within = i % (rows * columns);
  const int64_t strip = within / (kStrip * columns), rest = within % (kStrip * columns);
  const int64_t left = rows - strip * kStrip, height = left < kStrip ? left : kStrip;
  return (image * rows + strip * kStrip + rest % height) * columns + rest / height;
}

// The inverse, in one image.
__device__ inline int64_t PlaceInStrips(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  const int64_t first = row / kStrip * kStrip, left = rows - first, height = left < kStrip ? left : kStrip;
  return first * columns + column * height + row % kStrip;
}

// Calls f with a value of the type that the matrix units take for `dtype`.
template <typename F>
const char* DispatchMatrix(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF16:
      return f(__half());
    case DType::kBF16:
      return f(__nv_bfloat16());
    case DType::kF32:
      return f(float());
    case DType::kF64:
      break;
  }
  return "the tensor cores take no float64";
}

template <typename T>
__device__ void StorePair(void* out, int64_t index, bool wide, float first, float second) {
  if (wide) {
    AsVector<2>(static_cast<float*>(out) + index) = {{first, second}};
  } else {
    AsVector<2>(static_cast<T*>(out) + index) = {{T(first), T(second)}};
  }
}

// The sums of a block of 8 warps, four by two: 128 rows by kColumns, of a warp 32 rows by half the columns. A lane
// holds, of 16 rows by 8 columns, rows lane / 4 and 8 further on, columns lane % 4 · 2 and the next.
template <typename T, int kColumns>
class BlockProduct {
 public:
  static constexpr int kThreads = 8 * kWarp, kRows = 128;
  static constexpr int kRowTiles = 2, kColumnTiles = kColumns / 16;

  __device__ static int lane() { return int(threadIdx.x) % kWarp; }
  __device__ static int first_row() { return int(threadIdx.x) / kWarp / 2 * kRowTiles * 16; }
  __device__ static int first_column() { return int(threadIdx.x) / kWarp % 2 * kColumnTiles * 8; }

  __device__ void Clear() {
    for (auto& tiles : sum) {
      for (auto& tile : tiles) {
        for (float& number : tile) number = 0;
      }
    }
  }

  // A stage whose rows and columns both lie along the depth: rows[kRows · kDepth], columns[kColumns · kDepth]. Rows of
  // float need not be rounded to tf32, columns are.
  __device__ void Add(const uint4* rows, const uint4* columns) {
    const int row_at = swizzled_index(first_row() + lane() % 16, lane() / 16);
    const int column_at = swizzled_index(first_column() + lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kRowTiles][4];
      for (int i = 0; i < kRowTiles; ++i) {
        load_matrix_fragments(a[i], &rows[(row_at ^ 2 * step) + i * 16 * kDepth]);
        if constexpr (std::is_same_v<T, float>) {
          for (uint32_t& word : a[i]) {
            const float number = __uint_as_float(word);
            word = RoundToWord<float>(&number);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t b[4];
        load_matrix_fragments(b, &columns[(column_at ^ 2 * step) + j * 8 * kDepth]);
        Multiply(j, a, b);
      }
    }
  }

  // A stage of 64 numbers of depth, along which the rows and the columns lie side by side: rows[64 · kRows / 8],
  // columns[64 · kColumns / 8], of 16-bit numbers.
  __device__ void AddAcross(const uint4* rows, const uint4* columns) {
    const int row_at = swizzled_index<kRows / 8>(lane() / 16 * 8 + lane() % 8, first_row() / 8 + lane() / 8 % 2);
    const int column_at =
        swizzled_index<kColumns / 8>(lane() / 8 % 2 * 8 + lane() % 8, first_column() / 8 + lane() / 16);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kRowTiles][4];
      for (int i = 0; i < kRowTiles; ++i)
        load_matrix_fragments_transposed(a[i], &rows[(row_at ^ 2 * i) + step * 16 * kRows / 8]);
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t b[4];
        load_matrix_fragments_transposed(b, &columns[(column_at ^ j) + step * 16 * kColumns / 8]);
        Multiply(j, a, b);
      }
    }
  }

  // f(row, column, first, second) for every pair of neighbouring columns, row by row, counted from `column` on.
  template <typename F>
  __device__ void ForEachPair(int32_t column, const F& f) const {
    column += first_column() + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRowTiles * 2; ++i) {
      const int row = first_row() + i * 8 + lane() / 4;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const float (&pairs)[4] = sum[i / 2][j];
        f(row, column + j * 8, pairs[i % 2 * 2], pairs[i % 2 * 2 + 1]);
      }
    }
  }

  float sum[kRowTiles][kColumnTiles][4] = {};

 private:
  // Column tiles j and j + 1.
  __device__ void Multiply(int j, const uint32_t (&a)[kRowTiles][4], const uint32_t (&b)[4]) {
    for (int i = 0; i < kRowTiles; ++i) {
      mma<T>(sum[i][j], a[i], {b[0], b[1]});
      mma<T>(sum[i][j + 1], a[i], {b[2], b[3]});
    }
  }
};

}  // namespace dcn
