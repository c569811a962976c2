// Pairs of bfloat16, each in a word.
//
// A vector of kPairChannels channels has the even ones in the low halves of its words, and the odd ones in the high
// halves. Sums and products have first the even ones, then the odd ones: this order needs no shuffles. The weight is
// packed in this order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aligned_vector.h"
#include "attributes.h"
#include "deform_conv/fused_cpu/halves.h"
#include "deform_conv/fused_cpu/plan.h"
#include "deform_conv/fused_cpu/product.h"
#include "element.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

constexpr int64_t kPairChannels = PairChannels(kVectorBytes);

template <typename PairProduct>
struct Pairs {
  using MatrixProduct = PairProduct;
  static constexpr bool kPacksWeight = true;  // for the forward

  static DCN_INLINE Words LoadWords(const BF16* from) {
    return *reinterpret_cast<const VectorOf<uint32_t, kLanes>::Unaligned*>(from);
  }
  static DCN_INLINE Floats Even(Words words) { return (Floats)(words << 16); }
  static DCN_INLINE Floats Odd(Words words) { return (Floats)(words & 0xffff0000); }

  template <int kCorners>
  static DCN_INLINE void Blend(const BF16* const (&corner)[kCorners], const float (&weight)[kCorners], int64_t count,
                               float* out) {
    for (int64_t c = 0; c < count; c += kPairChannels, out += kLanes) {
      Floats even{}, odd{};
      DCN_UNROLL for (int i = 0; i < kCorners; ++i) {
        const Words words = LoadWords(corner[i] + c);
        even += weight[i] * Even(words);
        odd += weight[i] * Odd(words);
      }
      Store((Floats)RoundedHalves(even, odd), out);
    }
  }

  static constexpr int64_t VectorChannels(int64_t) { return kPairChannels; }

  static DCN_INLINE int64_t Channel(int64_t v) {
    const int64_t i = v % kPairChannels;
    return v - i + (i < kLanes ? 2 * i : 2 * (i - kLanes) + 1);
  }

  static Panels<float> WeightPanels(const BF16* values, int64_t steps) {
    return PackedPanels(reinterpret_cast<const float*>(values), steps);
  }

  // A vector of a row of pixels, or zeros in place of one after the last row.
  static DCN_INLINE Words RowOrZeros(const float* row, bool is_present) {
    return is_present ? (Words)Load(row) : Words{};
  }

  // A row of a panel, whose elements from `count` on are zero.
  static DCN_INLINE void StorePairs(const BF16* const (&rows)[2], int64_t count, BF16* values) {
    float* const words = reinterpret_cast<float*>(values);
    static_assert(kPanel == kPairChannels, "a row of a panel is one pair of vectors");
    float padded[2][kLanes] = {};
    for (int v = 0; v < 2; ++v) std::memcpy(padded[v], rows[v], std::min<int64_t>(count, kPanel) * sizeof(BF16));
    const Interleaved pairs((Words)Load(padded[0]), (Words)Load(padded[1]));
    Store((Floats)pairs.low, words);
    Store((Floats)pairs.high, words + kLanes);
  }

  static DCN_INLINE void StoreRow(const BF16* from, int64_t count, float* words) {
    for (int64_t i = 0; i < count; i += kPairChannels) Store((Floats)LoadWords(from + i), words + i / 2);
  }
  static DCN_INLINE void Round(const float* sums, int64_t count, BF16* out) {
    for (int64_t i = 0; i < count; i += kPairChannels) {
      const Words halves = RoundedHalves(Load(sums + i), Load(sums + i + kLanes));
      Store((Floats)InterleavedHalves(halves), reinterpret_cast<float*>(out + i));
    }
  }

  class Columns {
   public:
    Columns(int64_t max_pixels, int64_t max_channels)
        : rows_(max_pixels * kRowWords), words_(max_channels * MatrixProduct::Steps(max_pixels)) {}

    void Begin(int64_t pixels) { steps_ = MatrixProduct::Steps(pixels); }
    int64_t steps() const { return steps_; }
    Panels<float> panels() const { return PackedPanels(words_.data(), steps_); }

    DCN_INLINE void Put(int64_t pixel, int64_t c, Floats value) {
      Store(value, rows_.data() + pixel * kRowWords + c / 2);
    }

    // Pairs the pixels.
    void End(int64_t pixels, int64_t channels) {
      static_assert(kPanel == kPairChannels, "a panel is one pair of vectors");
      for (int64_t c = 0; c < channels; c += kPanel) {
        float* out = words_.data() + c * steps_;
        const float* row = rows_.data() + c / 2;
        for (int64_t p = 0; p < 2 * steps_; p += 2, row += 2 * kRowWords, out += kPanel) {
          const Interleaved pair(RowOrZeros(row, p < pixels), RowOrZeros(row + kRowWords, p + 1 < pixels));
          Store((Floats)pair.low, out);
          Store((Floats)pair.high, out + kLanes);
        }
      }
    }

   private:
    AlignedVector<float> rows_, words_;
    int64_t steps_ = 0;
  };

  class OutputCotangent {
   public:
    OutputCotangent(int64_t max_pixels, int64_t features)
        : max_pixels_(MatrixProduct::PaddedRows(max_pixels)),
          rows_(max_pixels_ * ((features / 2 + kBlockWords - 1) / kBlockWords) * kRowWords),
          pairs_(MatrixProduct::PairsSize(max_pixels, features)) {}

    float* Row(int64_t pixel, int64_t feature) {
      return rows_.data() + (feature / (2 * kBlockWords) * max_pixels_ + pixel) * kRowWords;
    }

    // Pairs the pixels.
    void End(int64_t pixels, int64_t features) {
      const int64_t steps = MatrixProduct::Steps(pixels);
      for (int64_t f = 0; f < features; f += kPairChannels) {
        const float* row = Row(0, f) + f % (2 * kBlockWords) / 2;
        for (int64_t first = 0; first < steps; first += kLanes) {
          Words low[kLanes], high[kLanes];
          for (int i = 0; i < kLanes; ++i, row += 2 * kRowWords) {
            const int64_t p = 2 * (first + i);
            const Interleaved pair(RowOrZeros(row, p < pixels), RowOrZeros(row + kRowWords, p + 1 < pixels));
            low[i] = pair.low;
            high[i] = pair.high;
          }
          MatrixProduct::StorePairs(low, first, f, steps, pairs_.data());
          MatrixProduct::StorePairs(high, first, f + kLanes, steps, pairs_.data());
        }
      }
    }

    void AddWeightSums(MatrixProduct& product, const Columns& columns, int64_t features, int64_t channels, float* sums,
                       int64_t stride, bool is_first) {
      product.MultiplyPairs(features, channels, columns.steps(), pairs_.data(), columns.panels(), sums, stride,
                            is_first);
    }

   private:
    int64_t max_pixels_;
    AlignedVector<float> rows_, pairs_;
  };

  static constexpr int kNarrowest = kLanes;

  template <bool kOfX, bool kOfPositions, bool kOfWeight, int, int kCorners>
  static DCN_INLINE void Differentiate(const BF16* const (&corner)[kCorners], const float (&weight)[kCorners],
                                       const float* d_column, int64_t count, float* const (&sum)[kCorners],
                                       Floats (&dot)[kCorners], Columns& columns, int64_t pixel, int64_t c) {
    for (int64_t i = 0; i < count; i += kPairChannels) {
      Floats d_even{}, d_odd{}, even{}, odd{};
      if constexpr (kOfX || kOfPositions) {
        d_even = Load(d_column + i);
        d_odd = Load(d_column + i + kLanes);
      }
      DCN_UNROLL for (int k = 0; k < kCorners; ++k) {
        if constexpr (kOfPositions || kOfWeight) {
          const Words words = LoadWords(corner[k] + i);
          if constexpr (kOfPositions) dot[k] += d_even * Even(words) + d_odd * Odd(words);
          if constexpr (kOfWeight) {
            even += weight[k] * Even(words);
            odd += weight[k] * Odd(words);
          }
        }
        if constexpr (kOfX) {
          Store(Load(sum[k] + i) + weight[k] * d_even, sum[k] + i);
          Store(Load(sum[k] + i + kLanes) + weight[k] * d_odd, sum[k] + i + kLanes);
        }
      }
      if constexpr (kOfWeight) columns.Put(pixel, c + i, (Floats)RoundedHalves(even, odd));
    }
  }
};

}  // namespace
DCN_END_TARGET
