#include "fused/includes.h"

#ifdef __x86_64__
#include <immintrin.h>

DCN_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")

namespace dcn {
namespace {

constexpr int kLanes = 16, kTileRows = 1, kTileVectors = 2;
#include "fused/all.h"
#include "fused/pairs.h"

// Products by the tile registers of AMX, each 16 rows of 16 words. An object configures them for its thread.
class TileProduct {
 public:
  static constexpr int kValues = 2;

  static int64_t PaddedRows(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows * kBlockRows; }

  TileProduct() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;
    for (int tile = 0; tile < 8; ++tile) {
      configuration.row_bytes[tile] = kWords * sizeof(float);
      configuration.rows[tile] = kWords;
    }
    _tile_loadconfig(&configuration);
  }
  ~TileProduct() { _tile_release(); }
  TileProduct(const TileProduct&) = delete;
  TileProduct& operator=(const TileProduct&) = delete;

  // As RegisterProduct::Multiply. A and C have room for PaddedRows(rows); the depth is a multiple of kWords.
  template <int kRowStride, int kStepStride>
  void Multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, const float* b, float* c,
                int64_t c_stride, bool is_first) const {
    static_assert(kStepStride == 1 && kPanel == 2 * kWords, "a block of C is 2 x 2 tiles");
    constexpr int64_t kRowBytes = kRowStride * sizeof(float), kPanelBytes = kPanel * sizeof(float);
    const int64_t c_bytes = c_stride * sizeof(float);
    for (int64_t column = 0; column < columns; column += kPanel, b += depth * kPanel) {
      for (int64_t row = 0; row < rows; row += kBlockRows) {
        const float* const tile = a + row * kRowStride;
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
        for (int64_t k = 0; k < depth; k += kWords) {
          _tile_loadd(4, tile + k, kRowBytes);
          _tile_loadd(5, tile + kWords * kRowStride + k, kRowBytes);
          _tile_loadd(6, b + k * kPanel, kPanelBytes);
          _tile_loadd(7, b + k * kPanel + kWords, kPanelBytes);
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

 private:
  static constexpr int kWords = 16, kBlockRows = 2 * kWords;
};

constexpr FusedKernels kTiles = Kernels<Pairs<TileProduct>, BF16>();

}  // namespace

const FusedKernels& AmxKernels() { return kTiles; }

}  // namespace dcn

DCN_END_TARGET
#endif
