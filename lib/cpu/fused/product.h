// Matrix products of panels in the caches. A and B consist of words of 32 bits: a float32, or two bfloat16 that are
// neighbours along K and that one instruction multiplies together.

// A word is one float32.
struct FloatWords {
  static constexpr int kValues = 1;
  static DCN_INLINE Floats MultiplyAdd(const float* a, Floats b, Floats sum) { return sum + *a * b; }
};

constexpr int kPanel = kTileVectors * kLanes;  // columns of a panel of B, and of a register tile

// Adds A[kRows, steps] · B[steps, kPanel] to C, or sets C where `is_first`. The element of A in row r at step k is at
// a[r · kRowStride + k · kStepStride].
template <typename Word, int kRows, int kRowStride, int kStepStride>
DCN_NOINLINE void MultiplyTile(const float* a, const float* b, int64_t steps, float* c, int64_t c_stride,
                               bool is_first) {
  Floats sum[kRows][kTileVectors] = {};
  if (!is_first) {
    DCN_UNROLL for (int r = 0; r < kRows; ++r) {
      DCN_UNROLL for (int v = 0; v < kTileVectors; ++v) sum[r][v] = Load(c + r * c_stride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < steps; ++k) {
    Floats b_step[kTileVectors];
    DCN_UNROLL for (int v = 0; v < kTileVectors; ++v) b_step[v] = Load(b + v * kLanes);
    DCN_UNROLL for (int r = 0; r < kRows; ++r) {
      DCN_UNROLL for (int v = 0; v < kTileVectors; ++v) {
        sum[r][v] = Word::MultiplyAdd(a + r * kRowStride, b_step[v], sum[r][v]);
      }
    }
    a += kStepStride;
    b += kPanel;
  }
  DCN_UNROLL for (int r = 0; r < kRows; ++r) {
    DCN_UNROLL for (int v = 0; v < kTileVectors; ++v) Store(sum[r][v], c + r * c_stride + v * kLanes);
  }
}

// The same for the last rows, fewer than kRows + 1.
template <typename Word, int kRows, int kRowStride, int kStepStride>
void MultiplyLastTile(int64_t rows, const float* a, const float* b, int64_t steps, float* c, int64_t c_stride,
                      bool is_first) {
  if (rows == kRows) {
    MultiplyTile<Word, kRows, kRowStride, kStepStride>(a, b, steps, c, c_stride, is_first);
  } else if constexpr (kRows > 1) {
    MultiplyLastTile<Word, kRows - 1, kRowStride, kStepStride>(rows, a, b, steps, c, c_stride, is_first);
  }
}

// Products by tiles of registers.
template <typename Word>
struct RegisterProduct {
  static constexpr int kValues = Word::kValues;

  static int64_t PaddedRows(int64_t rows) { return rows; }

  // Adds A[rows, steps] · B[steps, columns] to C[rows, c_stride], or sets C where `is_first`. B is packed in panels of
  // kPanel columns, each [steps, kPanel]; the columns of C are padded to whole panels.
  template <int kRowStride, int kStepStride>
  void Multiply(int64_t rows, int64_t columns, int64_t steps, const float* a, const float* b, float* c,
                int64_t c_stride, bool is_first) const {
    constexpr int64_t kLine = 16;  // floats in a cache line
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    const int64_t tile_lines = (steps * kPanel / kLine + tiles - 1) / tiles;
    for (int64_t column = 0; column < columns; column += kPanel, b += steps * kPanel) {
      const float* next = b + steps * kPanel;  // the next panel is fetched, a part with every tile
      for (int64_t row = 0; row < rows; row += kTileRows) {
        for (int64_t line = 0; column + kPanel < columns && line < tile_lines; ++line, next += kLine) {
          __builtin_prefetch(next, 0, 2);
        }
        const float* tile = a + row * kRowStride;
        float* out = c + row * c_stride + column;
        if (row + kTileRows <= rows) {
          MultiplyTile<Word, kTileRows, kRowStride, kStepStride>(tile, b, steps, out, c_stride, is_first);
        } else {
          MultiplyLastTile<Word, kTileRows - 1, kRowStride, kStepStride>(rows - row, tile, b, steps, out, c_stride,
                                                                         is_first);
        }
      }
    }
  }
};
