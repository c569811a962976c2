// Where the samples of a tile lie.

// -1 if the row or the column is negative: outside the image.
DCN_INLINE int32_t PixelIndex(int32_t row, int32_t column, int32_t width) {
  return (row | column) < 0 ? -1 : int32_t(uint32_t(row) * uint32_t(width)) + column;
}

// Locates the samples of one tap, as many as fill whole vectors.
template <bool kIsCircular>
DCN_NOINLINE void LocateOnImage(int64_t count, int64_t height, int64_t width, float tap_y, float tap_x,
                                const float* start_y, const float* start_x, const float* offset_y,
                                const float* offset_x, const float* mask, float* __restrict weight0,
                                float* __restrict weight1, float* __restrict weight2, float* __restrict weight3,
                                int32_t* __restrict pixel0, int32_t* __restrict pixel1, int32_t* __restrict pixel2,
                                int32_t* __restrict pixel3) {
  const int32_t row_pixels = int32_t(width);
  for (int64_t i = 0; i < count; ++i) {
    const AxisLocation<float> y = LocateOnAxis(start_y[i] + tap_y + offset_y[i], height, kIsCircular);
    const AxisLocation<float> x = LocateOnAxis(start_x[i] + tap_x + offset_x[i], width, kIsCircular);
    const float scale = mask[i], top = y.weight(0) * scale, bottom = y.weight(1) * scale;
    weight0[i] = top * x.weight(0);
    weight1[i] = top * x.weight(1);
    weight2[i] = bottom * x.weight(0);
    weight3[i] = bottom * x.weight(1);
    pixel0[i] = PixelIndex(y.pixel[0], x.pixel[0], row_pixels);
    pixel1[i] = PixelIndex(y.pixel[0], x.pixel[1], row_pixels);
    pixel2[i] = PixelIndex(y.pixel[1], x.pixel[0], row_pixels);
    pixel3[i] = PixelIndex(y.pixel[1], x.pixel[1], row_pixels);
  }
}

// The samples of all taps and offset groups of a tile, as arrays over the pixels of the tile.
class Samples {
 public:
  static constexpr int kCorners = 4;

  Samples(const FusedCall& call, int64_t max_pixels)
      : call_(call),
        taps_(call.sizes.taps()),
        series_(call.sizes.offset_groups * taps_),
        stride_((max_pixels + kLanes - 1) / kLanes * kLanes),
        starts_(2 * stride_),
        floats_(kFloatArrays * series_ * stride_),
        pixels_(kCorners * series_ * stride_) {}

  void Locate(const OutputTile& tile) {
    ReadPositions(tile);
    for (int64_t s = 0; s < series_; ++s) {
      if (call_.sizes.window.circular) {
        LocateSeries<true>(s, tile.pixels());
      } else {
        LocateSeries<false>(s, tile.pixels());
      }
    }
  }

  // One series of samples: those of one tap and offset group.
  struct Series {
    const int32_t* pixel[kCorners];  // the index of each corner's pixel in the image, or -1 if it is not read
    const float* weight[kCorners];   // bilinear weights · mask
  };
  Series Of(int64_t group, int32_t tap) const {
    const int64_t s = group * taps_ + tap;
    Series series;
    for (int corner = 0; corner < kCorners; ++corner) {
      series.pixel[corner] = pixels_.data() + (corner * series_ + s) * stride_;
      series.weight[corner] = floats_.data() + ((kWeight + corner) * series_ + s) * stride_;
    }
    return series;
  }

 private:
  enum FloatArray { kY, kX, kMask, kWeight, kFloatArrays = kWeight + kCorners };

  float* Array(int array, int64_t s) { return floats_.data() + (array * series_ + s) * stride_; }

  void ReadPositions(const OutputTile& tile) {
    const Sizes& sizes = call_.sizes;
    const float* const offset = static_cast<const float*>(call_.positions.offset);
    const float* const mask = static_cast<const float*>(call_.positions.mask);
    int64_t p = 0;
    for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
      for (int64_t column = tile.column; column < tile.column + tile.columns; ++column, ++p) {
        starts_[p] = float(sizes.window.start(0, call_.positions.origin[1] + row));
        starts_[stride_ + p] = float(sizes.window.start(1, call_.positions.origin[2] + column));
        const int64_t sample = ((tile.image * sizes.rows + row) * sizes.columns + column) * series_;
        for (int64_t s = 0; s < series_; ++s) {
          Array(kY, s)[p] = offset[2 * (sample + s)];
          Array(kX, s)[p] = offset[2 * (sample + s) + 1];
          Array(kMask, s)[p] = mask ? mask[sample + s] : 1.0f;
        }
      }
    }
  }

  template <bool kIsCircular>
  void LocateSeries(int64_t s, int64_t pixels) {
    const int64_t stride = stride_, step = series_ * stride;
    float* const weights = Array(kWeight, s);
    int32_t* const indices = pixels_.data() + s * stride;
    LocateOnImage<kIsCircular>((pixels + kLanes - 1) / kLanes * kLanes, call_.sizes.height, call_.sizes.width,
                               float(call_.sizes.window.distance(0, int32_t(s % taps_))),
                               float(call_.sizes.window.distance(1, int32_t(s % taps_))), starts_.data(),
                               starts_.data() + stride, Array(kY, s), Array(kX, s), Array(kMask, s), weights,
                               weights + step, weights + 2 * step, weights + 3 * step, indices, indices + step,
                               indices + 2 * step, indices + 3 * step);
  }

  const FusedCall& call_;
  int64_t taps_, series_, stride_;
  AlignedVector<float> starts_, floats_;
  AlignedVector<int32_t> pixels_;
};
