// How elements of x, weight and y become words: the operands of products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aligned_vector.h"
#include "attributes.h"
#include "deform_conv/fused_cpu/product.h"
#include "element.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// A word has one element, as float32.
template <typename T>
struct Widened {
  using MatrixProduct = RegisterProduct<FloatWords>;
  static constexpr bool kPacksWeight = false;  // for the forward

  // The sums over a sample's corners of channels [0, count), as words at `out`. Whole vectors are written.
  template <int kCorners>
  static DCN_INLINE void Blend(const T* const (&corner)[kCorners], const float (&weight)[kCorners], int64_t count,
                               float* out) {
    count <= kNarrow ? BlendBy<kNarrow>(corner, weight, count, out) : BlendBy<kLanes>(corner, weight, count, out);
  }

  // How many channels are computed at a time with vectors of `lanes`.
  static constexpr int64_t VectorChannels(int64_t lanes) { return lanes; }

  // The channel of value `v` in a channel slice or a block of K.
  static DCN_INLINE int64_t Channel(int64_t v) { return v; }

  // The panels of a packed weight.
  static Panels<T> WeightPanels(const T* values, int64_t steps) { return PackedPanels(values, steps); }

  static DCN_INLINE void StoreRow(const T* from, int64_t count, float* words) {
    for (int64_t i = 0; i < count; i += kLanes) Store(Load(from + i, count - i), words + i);
  }
  // Rounds sums of channels that are in the order of `Channel`.
  static DCN_INLINE void Round(const float* sums, int64_t count, T* out) {
    for (int64_t i = 0; i < count; i += kLanes) Store(Load(sums + i), out + i, count - i);
  }

  // The columns of one tap of a tile and a channel slice, as the second operand of a product over the pixels.
  class Columns {
   public:
    Columns(int64_t max_pixels, int64_t max_channels) : words_((max_channels + kPanel) * max_pixels) {}

    void Begin(int64_t pixels) { steps_ = pixels; }
    void End(int64_t, int64_t) {}
    int64_t steps() const { return steps_; }
    Panels<float> panels() const { return PackedPanels(words_.data(), steps_); }

    // Channels [c, c + count).
    template <int kCount>
    DCN_INLINE void Put(int64_t pixel, int64_t c, const FloatsOf<kCount>& value, int64_t count = kCount) {
      if (c % kCount == 0 && count == kCount) {
        Store<kCount>(value, Word(pixel, c));
      } else {
        float lanes[kCount];
        Store<kCount>(value, lanes);
        PutLanes(pixel, c, lanes, count);
      }
    }

   private:
    DCN_NOINLINE void PutLanes(int64_t pixel, int64_t c, const float* lanes, int64_t count) {
      for (int64_t i = 0; i < count; ++i) *Word(pixel, c + i) = lanes[i];
    }

    DCN_INLINE float* Word(int64_t pixel, int64_t c) {
      return words_.data() + (c / kPanel * steps_ + pixel) * kPanel + c % kPanel;
    }

    AlignedVector<float> words_;
    int64_t steps_ = 0;
  };

  // The cotangent of y in a tile, as the first operand of both products: its rows are pixels or features.
  class OutputCotangent {
   public:
    OutputCotangent(int64_t max_pixels, int64_t features)
        : max_pixels_(max_pixels), words_(max_pixels * ((features + kBlockWords - 1) / kBlockWords) * kRowWords) {}

    // Element `feature` of the row of a pixel; a block of features is contiguous.
    float* Row(int64_t pixel, int64_t feature) {
      return words_.data() + (feature / kBlockWords * max_pixels_ + pixel) * kRowWords;
    }
    void End(int64_t, int64_t) {}

    void AddWeightSums(MatrixProduct& product, const Columns& columns, int64_t features, int64_t channels, float* sums,
                       int64_t stride, bool is_first) {
      for (int64_t f = 0; f < features; f += kBlockWords) {
        product.template Multiply<1, kRowWords>(std::min(kBlockWords, features - f), channels, columns.steps(),
                                                Row(0, f), columns.panels(), sums + f * stride, stride, is_first);
      }
    }

   private:
    int64_t max_pixels_;
    AlignedVector<float> words_;
  };

  // The lanes of the narrowest vectors that `Differentiate` is called with.
  static constexpr int kNarrowest = kNarrow;

  // Reads channels [c, c + count) of a sample's corners, and of the cotangent of its column, and computes what is
  // requested: adds to the sums of the cotangent of x and to the dot products, and stores the columns.
  template <bool kOfX, bool kOfPositions, bool kOfWeight, int kCount, int kCorners>
  static DCN_INLINE void Differentiate(const T* const (&corner)[kCorners], const float (&weight)[kCorners],
                                       const float* d_column, int64_t count, float* const (&sum)[kCorners],
                                       FloatsOf<kCount> (&dot)[kCorners], Columns& columns, int64_t pixel, int64_t c) {
    using Vector = FloatsOf<kCount>;
    const auto differentiate = [&](int64_t i, const auto... rest) DCN_INLINED {  // `rest`: how many lanes, if not all
      Vector d{}, value{};
      if constexpr (kOfX || kOfPositions) d = Load<kCount>(d_column + i, rest...);
      DCN_UNROLL for (int k = 0; k < kCorners; ++k) {
        if constexpr (kOfPositions || kOfWeight) {
          const Vector channels = Load<kCount>(corner[k] + i, rest...);
          if constexpr (kOfPositions) dot[k] += d * channels;
          if constexpr (kOfWeight) value += weight[k] * channels;
        }
        if constexpr (kOfX) Store<kCount>(Load<kCount>(sum[k] + i, rest...) + weight[k] * d, sum[k] + i, rest...);
      }
      if constexpr (kOfWeight) columns.template Put<kCount>(pixel, c + i, value, rest...);
    };
    int64_t i = 0;
    for (; i + kCount <= count; i += kCount) differentiate(i);
    if (i < count) differentiate(i, count - i);
  }

 private:
  template <int kCount, int kCorners>
  static DCN_INLINE void BlendBy(const T* const (&corner)[kCorners], const float (&weight)[kCorners], int64_t count,
                                 float* out) {
    const auto blend = [&](int64_t c, const auto... rest) DCN_INLINED {  // `rest`: how many lanes, if not all
      FloatsOf<kCount> sum = weight[0] * Load<kCount>(corner[0] + c, rest...);
      DCN_UNROLL for (int i = 1; i < kCorners; ++i) sum += weight[i] * Load<kCount>(corner[i] + c, rest...);
      Store<kCount>(sum, out + c);
    };
    int64_t c = 0;
    for (; c + kCount <= count; c += kCount) blend(c);
    if (c < count) blend(c, count - c);
  }
};

}  // namespace
DCN_END_TARGET
