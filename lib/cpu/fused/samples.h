// Where the samples of a tile lie.

// The samples of one tap and offset group, as arrays over the pixels of a tile.
struct SampleArrays {
  float *offset_y, *offset_x, *mask;
  float *fraction_y, *fraction_x;  // of the location, as AxisLocation has them
  float* weight[4];                // bilinear weight · mask, of each corner
  int32_t* pixel[4];               // each corner's pixel in the image, or -1 if it is not read

  static constexpr int kFloats = 9, kIntegers = 4;  // arrays of each type

  // Whether any corner is read.
  DCN_INLINE bool is_inside(int64_t i) const { return (pixel[0][i] & pixel[1][i] & pixel[2][i] & pixel[3][i]) >= 0; }
};

// -1 if the row or the column is negative: outside the image.
DCN_INLINE int32_t PixelIndex(int32_t row, int32_t column, int32_t width) {
  return (row | column) < 0 ? -1 : int32_t(uint32_t(row) * uint32_t(width)) + column;
}

// The arrays do not overlap. The first tap of each pixel lies at (start_y, start_x).
template <bool kIsCircular>
DCN_NOINLINE void LocateSamples(int64_t count, int64_t height, int64_t width, float tap_y, float tap_x,
                                const float* start_y, const float* start_x, const SampleArrays& arrays) {
  const SampleArrays a = arrays;
  const int32_t row_pixels = int32_t(width);
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    const AxisLocation<float> y = LocateOnAxis(start_y[i] + tap_y + a.offset_y[i], height, kIsCircular);
    const AxisLocation<float> x = LocateOnAxis(start_x[i] + tap_x + a.offset_x[i], width, kIsCircular);
    a.fraction_y[i] = y.fraction;
    a.fraction_x[i] = x.fraction;
    const float mask = a.mask[i], top = y.weight(0) * mask, bottom = y.weight(1) * mask;
    a.weight[0][i] = top * x.weight(0);
    a.weight[1][i] = top * x.weight(1);
    a.weight[2][i] = bottom * x.weight(0);
    a.weight[3][i] = bottom * x.weight(1);
    a.pixel[0][i] = PixelIndex(y.pixel[0], x.pixel[0], row_pixels);
    a.pixel[1][i] = PixelIndex(y.pixel[0], x.pixel[1], row_pixels);
    a.pixel[2][i] = PixelIndex(y.pixel[1], x.pixel[0], row_pixels);
    a.pixel[3][i] = PixelIndex(y.pixel[1], x.pixel[1], row_pixels);
  }
}

// The samples of all taps and offset groups of a tile.
class Samples {
 public:
  Samples(const FusedCall& call, int64_t max_pixels)
      : call_(call),
        taps_(call.sizes.taps()),
        series_(call.sizes.offset_groups * taps_),
        stride_((max_pixels + kLanes - 1) / kLanes * kLanes),
        outputs_(max_pixels),
        starts_(2 * stride_),
        floats_(SampleArrays::kFloats * series_ * stride_),
        integers_(SampleArrays::kIntegers * series_ * stride_) {}

  // Those of offset groups [first, last].
  void Locate(const OutputTile& tile, int64_t first, int64_t last) {
    const Sizes& sizes = call_.sizes;
    for (int64_t p = 0; p < tile.pixels(); ++p) {
      const int64_t row = tile.row + p / tile.columns, column = tile.column + p % tile.columns;
      outputs_[p] = (tile.image * sizes.rows + row) * sizes.columns + column;
      starts_[p] = float(sizes.window.start(0, call_.positions.origin[1] + row));
      starts_[stride_ + p] = float(sizes.window.start(1, call_.positions.origin[2] + column));
    }
    // What is computed for the pixels that fill the last vector is not used.
    const int64_t count = (tile.pixels() + kLanes - 1) / kLanes * kLanes;
    const auto locate = sizes.window.circular ? LocateSamples<true> : LocateSamples<false>;
    for (int64_t s = first * taps_; s < (last + 1) * taps_; ++s) {
      const int32_t tap = int32_t(s % taps_);
      ReadPositions(tile.pixels(), s);
      locate(count, sizes.height, sizes.width, float(sizes.window.distance(0, tap)),
             float(sizes.window.distance(1, tap)), starts_.data(), starts_.data() + stride_, Arrays(s));
    }
  }

  // The output pixel that pixel `p` of the tile is, counted through all images.
  DCN_INLINE int64_t output(int64_t p) const { return outputs_[p]; }
  SampleArrays Of(int64_t offset_group, int32_t tap) { return Arrays(offset_group * taps_ + tap); }

 private:
  SampleArrays Arrays(int64_t s) {
    float* const floats = floats_.data() + SampleArrays::kFloats * s * stride_;
    int32_t* const integers = integers_.data() + SampleArrays::kIntegers * s * stride_;
    const auto array = [&](int i) { return floats + i * stride_; };
    return {array(0),
            array(1),
            array(2),
            array(3),
            array(4),
            {array(5), array(6), array(7), array(8)},
            {integers, integers + stride_, integers + 2 * stride_, integers + 3 * stride_}};
  }

  void ReadPositions(int64_t pixels, int64_t s) {
    const float* const offset = static_cast<const float*>(call_.positions.offset);
    const float* const mask = static_cast<const float*>(call_.positions.mask);
    const SampleArrays arrays = Arrays(s);
    for (int64_t p = 0; p < pixels; ++p) {
      const int64_t sample = outputs_[p] * series_ + s;
      arrays.offset_y[p] = offset[2 * sample];
      arrays.offset_x[p] = offset[2 * sample + 1];
      arrays.mask[p] = mask ? mask[sample] : 1.0f;
    }
  }

  const FusedCall& call_;
  int64_t taps_, series_, stride_;
  AlignedVector<int64_t> outputs_;
  AlignedVector<float> starts_, floats_;
  AlignedVector<int32_t> integers_;
};
