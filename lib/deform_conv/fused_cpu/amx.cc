#define DCN_INSTRUCTION_SET amx
#include "instruction_sets.h"

#if DCN_HAS_X86_KERNELS
#include "deform_conv/fused_cpu/kernels.h"
#include "deform_conv/fused_cpu/pairs.h"

DCN_BEGIN_TARGET
namespace {

// Products by the tile registers of AMX, each 16 rows of 16 words. An object configures them for its thread.
class AmxProduct {
 public:
  static constexpr int kValues = 2;

  static int64_t PaddedRows(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows * kBlockRows; }

  static int64_t Steps(int64_t pixels) { return ((pixels + 1) / 2 + kWords - 1) / kWords * kWords; }

  AmxProduct() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = kWords * sizeof(float);
      configuration.rows[i] = kWords;
    }
    Barrier(&configuration);
    _tile_loadconfig(&configuration);
  }
  ~AmxProduct() { _tile_release(); }
  AmxProduct(const AmxProduct&) = delete;
  AmxProduct& operator=(const AmxProduct&) = delete;

  // As RegisterProduct::Multiply. A and C have room for PaddedRows(rows); the steps are a multiple of kWords.
  template <int kRowStride, int kStepStride>
  void Multiply(int64_t rows, int64_t columns, int64_t steps, const float* a, Panels<float> b, float* c,
                int64_t c_stride, bool is_first) const {
    static_assert(kStepStride == 1 && kPanel == 2 * kWords, "a block of C has 2 x 2 registers");
    constexpr int64_t kRowBytes = kRowStride * sizeof(float);
    const int64_t b_bytes = b.row_stride * sizeof(float), c_bytes = c_stride * sizeof(float);
    Barrier(a);
    for (int64_t column = 0; column < columns; column += kPanel, b.first += b.panel_stride) {
      for (int64_t row = 0; row < rows; row += kBlockRows) {
        const float* const a_rows = a + row * kRowStride;
        float* const out = c + row * c_stride + column;
        if (is_first) {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        } else {
          _tile_loadd(0, out, c_bytes);
          _tile_loadd(1, out + kWords, c_bytes);
          _tile_loadd(2, out + kWords * c_stride, c_bytes);
          _tile_loadd(3, out + kWords * c_stride + kWords, c_bytes);
        }
        for (int64_t k = 0; k < steps; k += kWords) {
          _tile_loadd(4, a_rows + k, kRowBytes);
          _tile_loadd(5, a_rows + kWords * kRowStride + k, kRowBytes);
          _tile_loadd(6, b.first + k * b.row_stride, b_bytes);
          _tile_loadd(7, b.first + k * b.row_stride + kWords, b_bytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out, c_bytes);
        _tile_stored(1, out + kWords, c_bytes);
        _tile_stored(2, out + kWords * c_stride, c_bytes);
        _tile_stored(3, out + kWords * c_stride + kWords, c_bytes);
      }
    }
  }

  // Pairs of pixels as the first operand of a product over the pixels: a row for each feature.
  static int64_t PairsSize(int64_t, int64_t features) { return features * kPairsStride; }
  static void StorePairs(const Words (&pairs)[kLanes], int64_t first, int64_t feature, int64_t, float* out) {
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = (__m512i)pairs[i];
    Transpose(rows);
    for (int i = 0; i < kLanes; ++i) Store((Floats)rows[i], out + (feature + i) * kPairsStride + first);
  }
  void MultiplyPairs(int64_t features, int64_t channels, int64_t steps, const float* pairs, Panels<float> columns,
                     float* sums, int64_t stride, bool is_first) const {
    Multiply<kPairsStride, 1>(features, channels, steps, pairs, columns, sums, stride, is_first);
  }

 private:
  static constexpr int kWords = 16, kBlockRows = 2 * kWords;
  static constexpr int kPairsStride = kMaxCotangentTilePixels / 2 + kWords;  // an odd number of cache lines

  // GCC's intrinsics do not say what memory they read, so pending stores must be forced out first.
  static DCN_INLINE void Barrier(const void* address) { __asm__ volatile("" : : "r"(address) : "memory"); }

  // Transposes 16 rows of 16 words.
  static DCN_INLINE void Transpose(__m512i (&rows)[16]) {
    __m512i pairs[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // Row 4 i + j now has, in its four lanes of 128 bits, rows 4 i to 4 i + 3 of columns j, 4 + j, 8 + j and 12 + j.
    constexpr int kEven = 0x88, kOdd = 0xdd;  // lanes of two vectors
    for (int j = 0; j < 4; ++j) {
      const __m512i even0 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], kEven);
      const __m512i even1 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], kEven);
      const __m512i odd0 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], kOdd);
      const __m512i odd1 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], kOdd);
      rows[j] = _mm512_shuffle_i32x4(even0, even1, kEven);
      rows[4 + j] = _mm512_shuffle_i32x4(odd0, odd1, kEven);
      rows[8 + j] = _mm512_shuffle_i32x4(even0, even1, kOdd);
      rows[12 + j] = _mm512_shuffle_i32x4(odd0, odd1, kOdd);
    }
  }
};

}  // namespace

const FusedKernels& FusedKernelsFor(DType, bool is_on_grid) { return KernelsOf<Pairs<AmxProduct>, BF16>(is_on_grid); }

DCN_END_TARGET
#endif
