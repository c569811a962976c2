// Where the samples of a tile lie.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "aligned_vector.h"
#include "attributes.h"
#include "bilinear.h"
#include "fused/plan.h"
#include "fused/progress.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// The samples of one tap and offset group, as arrays over the pixels of a tile. Their sizes are constants, so that one
// register addresses all of them.
struct SampleArrays {
  static constexpr int kSize = kMaxTilePixels + kLineFloats;  // an odd number of cache lines
  static_assert(kMaxTilePixels % kLanes == 0, "the last vector would not fit");

  float mask[kSize];
  float fraction_y[kSize], fraction_x[kSize];  // of the location, as AxisLocation has them
  float weight[4][kSize];                      // bilinear weight · mask, of each corner
  int32_t pixel[4][kSize];                     // each corner's pixel in the image, or -1 if it is not read

  // Whether any corner is read.
  DCN_INLINE bool is_inside(int64_t i) const { return (pixel[0][i] & pixel[1][i] & pixel[2][i] & pixel[3][i]) >= 0; }
};

// -1 if the row or the column is negative: outside the image.
DCN_INLINE int32_t PixelIndex(int32_t row, int32_t column, int32_t width) {
  return (row | column) < 0 ? -1 : int32_t(uint32_t(row) * uint32_t(width)) + column;
}

// What locates the samples of a tap on one axis: the first tap of each pixel of a tile, and the offsets of the tap.
// Whole numbers are added as double, which is exact, and rounded once; vectors of 64-bit integers need AVX-512.
struct AxisOperands {
  double start[SampleArrays::kSize] = {};
  float offset[SampleArrays::kSize] = {};

  DCN_INLINE float Location(int64_t i, double distance) const { return float(start[i] + distance) + offset[i]; }
};

// Returns the pixels that may be read, if kHasBox; a sample that is outside on one axis only counts, too. `a` overlaps
// none of the other arrays, so no iteration reads what another one writes.
template <bool kIsCircular, bool kHasBox>
DCN_NOINLINE PixelBox LocateSamples(int64_t count, int64_t height, int64_t width, double tap_y, double tap_x,
                                    const AxisOperands& vertical, const AxisOperands& horizontal, SampleArrays& a) {
  const int32_t row_pixels = int32_t(width);
  // As unsigned numbers, pixels outside are larger than all others.
  uint32_t first_row = INT32_MAX, first_column = INT32_MAX;
  int32_t last_row = -1, last_column = -1;
  DCN_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) {
    const AxisLocation<float> y = LocateOnAxis(vertical.Location(i, tap_y), height, kIsCircular);
    const AxisLocation<float> x = LocateOnAxis(horizontal.Location(i, tap_x), width, kIsCircular);
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
    if constexpr (!kHasBox) continue;
    DCN_UNROLL for (int k = 0; k < 2; ++k) {
      first_row = std::min(first_row, uint32_t(y.pixel[k]));
      first_column = std::min(first_column, uint32_t(x.pixel[k]));
      last_row = std::max(last_row, y.pixel[k]);
      last_column = std::max(last_column, x.pixel[k]);
    }
  }
  return {int32_t(first_row), last_row, int32_t(first_column), last_column};
}

static_assert(sizeof(SampleArrays) == kSampleBytes * SampleArrays::kSize, "plan.cc would choose other tiles");

// The samples of a tile, of all taps and some offset groups.
template <bool kHasBox>
class Samples {
 public:
  Samples(const Convolution& convolution, int64_t max_offset_groups)
      : convolution_(convolution),
        taps_(convolution.sizes.taps()),
        arrays_(max_offset_groups * taps_),
        outputs_(SampleArrays::kSize) {}

  // Locates the samples of offset groups `first` to `last`, inclusive.
  void Locate(const OutputTile& tile, int64_t first, int64_t last) {
    const Sizes& sizes = convolution_.sizes;
    for (int64_t p = 0; p < tile.pixels(); ++p) {
      const int64_t row = tile.row + p / tile.columns, column = tile.column + p % tile.columns;
      outputs_[p] = (tile.image * sizes.rows + row) * sizes.columns + column;
      vertical_.start[p] = double(sizes.window.start(0, convolution_.positions.origin[1] + row));
      horizontal_.start[p] = double(sizes.window.start(1, convolution_.positions.origin[2] + column));
    }
    first_ = first;
    box_ = {};
    // The pixels that fill the last vector lie outside.
    const int64_t count = (tile.pixels() + kLanes - 1) / kLanes * kLanes;
    for (int64_t p = tile.pixels(); p < count; ++p) vertical_.start[p] = horizontal_.start[p] = -INFINITY;
    const auto locate = sizes.window.circular ? LocateSamples<true, kHasBox> : LocateSamples<false, kHasBox>;
    for (int64_t s = first * taps_; s < (last + 1) * taps_; ++s) {
      const int32_t tap = int32_t(s % taps_);
      SampleArrays& arrays = arrays_[s - first * taps_];
      ReadOperands(tile.pixels(), s, arrays);
      box_.Include(locate(count, sizes.height, sizes.width, double(sizes.window.distance(0, tap)),
                          double(sizes.window.distance(1, tap)), vertical_, horizontal_, arrays));
    }
  }

  // The output pixel that pixel `p` of the tile is, counted through all images.
  DCN_INLINE int64_t output(int64_t p) const { return outputs_[p]; }
  // The pixels that the located samples may read, if kHasBox.
  const PixelBox& box() const { return box_; }
  const SampleArrays& Of(int64_t offset_group, int32_t tap) const {
    return arrays_[(offset_group - first_) * taps_ + tap];
  }

 private:
  void ReadOperands(int64_t pixels, int64_t s, SampleArrays& arrays) {
    const float* const offset = static_cast<const float*>(convolution_.positions.offset);
    const float* const mask = static_cast<const float*>(convolution_.positions.mask);
    const int64_t pixel_samples = convolution_.sizes.pixel_samples();
    for (int64_t p = 0; p < pixels; ++p) {
      const int64_t sample = outputs_[p] * pixel_samples + s;
      vertical_.offset[p] = offset[2 * sample];
      horizontal_.offset[p] = offset[2 * sample + 1];
      arrays.mask[p] = mask ? mask[sample] : 1.0f;
    }
  }

  const Convolution& convolution_;
  int64_t taps_, first_ = 0;
  AlignedVector<SampleArrays> arrays_;
  AlignedVector<int64_t> outputs_;
  AxisOperands vertical_, horizontal_;
  PixelBox box_;
};

}  // namespace
DCN_END_TARGET
