// How elements of x, weight and y become words: the operands of products.

constexpr int64_t kBlockWords = 256;  // of K, in a product
constexpr int kRowWords =
    kBlockWords + 16;  // of a row of a buffer: an odd number of cache lines, and room for a vector

// A word has one element, as float32.
template <typename T>
struct Widened {
  using Product = RegisterProduct<FloatWords>;

  // The sums over a sample's corners of channels [0, count), as words at `out`. Whole vectors are written.
  static DCN_INLINE void Blend(const T* const (&corner)[4], const Floats (&weight)[4], int64_t count, float* out) {
    for (int64_t c = 0; c < count; c += kLanes) {
      const int64_t rest = count - c;
      Floats sum = weight[0] * Load(corner[0] + c, rest);
      DCN_UNROLL for (int i = 1; i < 4; ++i) sum += weight[i] * Load(corner[i] + c, rest);
      Store(sum, out + c);
    }
  }

  // The channel that value `v` of a run of channels has.
  static DCN_INLINE int64_t Channel(int64_t v) { return v; }
  static DCN_INLINE void StoreValue(T value, int64_t, float* word) { *word = float(value); }

  static DCN_INLINE void StoreRow(const T* from, int64_t count, float* words) {
    for (int64_t i = 0; i < count; i += kLanes) Store(Load(from + i, count - i), words + i);
  }
  // Rounds sums of channels that are in the order of `Channel`.
  static DCN_INLINE void Round(const float* sums, int64_t count, T* out) {
    for (int64_t i = 0; i < count; i += kLanes) Store(Load(sums + i), out + i, count - i);
  }

  // The columns of one tap of a tile and a slice of channels, as the second operand of a product over the pixels.
  class Columns {
   public:
    Columns(int64_t max_pixels, int64_t max_channels) : words_((max_channels + kPanel) * max_pixels) {}

    void Begin(int64_t pixels) { depth_ = pixels; }
    void End(int64_t, int64_t) {}
    int64_t depth() const { return depth_; }
    const float* words() const { return words_.data(); }

    // Channels [c, c + kLanes), or the first `count` of them.
    DCN_INLINE void Put(int64_t pixel, int64_t c, int64_t count, Floats value) {
      if (c % kLanes == 0 && count >= kLanes) {
        Store(value, Word(pixel, c));
      } else {
        for (int64_t i = 0; i < std::min<int64_t>(kLanes, count); ++i) *Word(pixel, c + i) = value[i];
      }
    }

   private:
    DCN_INLINE float* Word(int64_t pixel, int64_t c) {
      return words_.data() + (c / kPanel * depth_ + pixel) * kPanel + c % kPanel;
    }

    AlignedVector<float> words_;
    int64_t depth_ = 0;
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

    void AddWeightSums(const Product& product, const Columns& columns, int64_t features, int64_t channels, float* sums,
                       int64_t stride, bool is_first) {
      for (int64_t f = 0; f < features; f += kBlockWords) {
        product.template Multiply<1, kRowWords>(std::min(kBlockWords, features - f), channels, columns.depth(),
                                                Row(0, f), columns.words(), sums + f * stride, stride, is_first);
      }
    }

   private:
    int64_t max_pixels_;
    AlignedVector<float> words_;
  };

  // Reads channels [c, c + count) of a sample's corners, and of the cotangent of its column, and computes what is
  // requested: adds to the sums of the cotangent of x and to the dot products, and stores the columns.
  template <bool kOfX, bool kOfPositions, bool kOfWeight>
  static DCN_INLINE void Differentiate(const T* const (&corner)[4], const Floats (&weight)[4], const float* d_column,
                                       int64_t count, float* const (&sum)[4], Floats (&dot)[4], Columns& columns,
                                       int64_t pixel, int64_t c) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t rest = count - i;
      Floats d{}, value{};
      if constexpr (kOfX || kOfPositions) d = Load(d_column + i, rest);
      DCN_UNROLL for (int k = 0; k < 4; ++k) {
        if constexpr (kOfPositions || kOfWeight) {
          const Floats channels = Load(corner[k] + i, rest);
          if constexpr (kOfPositions) dot[k] += d * channels;
          if constexpr (kOfWeight) value += weight[k] * channels;
        }
        if constexpr (kOfX) Store(Load(sum[k] + i, rest) + weight[k] * d, sum[k] + i, rest);
      }
      if constexpr (kOfWeight) columns.Put(pixel, c + i, rest, value);
    }
  }
};
