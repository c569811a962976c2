// Sampling in the fused kernels: from pixels of x in global memory to samples in shared memory.
#pragma once

#include <matrix.h>

#include <cstdint>

#include "positions.h"
#include "vector.h"

namespace dcn {

// The corners of a sample as CornerLoads reads them: a left and a right pixel in each of two rows. Where the image has
// only one of the two rows, or of the two columns, its pixels take the place of the missing ones too, and each of the
// two has half of the weight. So every pixel that is named here is a corner that is read, and no flags per corner are
// needed.
struct Corners {
  Vector<int32_t, 2> left;  // the left pixel of each row: its index in x, counted over all images
  Vector<float, 4> weight;  // times the mask
};

// Flags, in the sign bits of Corners::left.
constexpr int32_t kRightIsFar = INT32_MIN;  // of the first row, in both: the right pixels do not follow the left ones
constexpr int32_t kNotRead = -1;            // instead of the second row: no corner is read

// Distance from a left corner to its right corner where the two are not adjacent: 0 if they are the same pixel,
// 1 - width if the row wraps around.
inline int32_t FarRight(const Sizes& sizes) { return sizes.window.circular ? int32_t(1 - sizes.width) : 0; }

// The corners of samples in shared memory: 24 bytes each, in two arrays, so that the weights of a sample are aligned
// for one load.
template <int kSamples>
struct CornerTable {
  Vector<float, 4> weight[kSamples];
  Vector<int32_t, 2> left[kSamples];

  __device__ void Store(int i, const Corners& corners) {
    weight[i] = corners.weight;
    left[i] = corners.left;
  }
};

// The two pixels of an axis that are read, which are the same if the image has only one of them, and their weights.
struct PixelPair {
  int32_t first, second;
  float first_weight, second_weight;

  __device__ explicit PixelPair(const AxisLocation<float>& axis)
      : first(axis.pixel[0]), second(axis.pixel[1]), first_weight(axis.weight(0)), second_weight(axis.weight(1)) {
    if ((first < 0) == (second < 0)) return;
    const bool has_first = first >= 0;
    first_weight = second_weight = (has_first ? first_weight : second_weight) / 2;
    first = second = has_first ? first : second;
  }
};

// The left pixels, as Corners has them, of the corners of a sample in an image that starts at `first_row`.
__device__ inline Vector<int32_t, 2> LeftPixels(const PixelPair& y, const PixelPair& x, int64_t first_row,
                                                int64_t width) {
  if (y.first < 0 || x.first < 0) return {{0, kNotRead}};
  const int32_t top = int32_t((first_row + y.first) * width + x.first);
  const int32_t bottom = int32_t((first_row + y.second) * width + x.first);
  return {{x.second == x.first + 1 ? top : top | kRightIsFar, bottom}};
}

// No corner is read if `output_pixel` is -1.
__device__ inline Corners FindCorners(const Sizes& sizes, const Positions& positions, int64_t output_pixel,
                                      int64_t offset_group, int32_t tap) {
  Corners corners = {{{0, kNotRead}}, {{0, 0, 0, 0}}};
  if (output_pixel < 0) return corners;
  const int64_t sample_index = SampleIndex(sizes, output_pixel, offset_group, tap);
  const int64_t first_row = output_pixel / sizes.columns / sizes.rows * sizes.height;
  const BilinearCorners<float> sample = LocateSample<float>(sizes, positions, output_pixel, sample_index, tap);
  const float mask = Mask<float>(positions, sample_index);
  const PixelPair y(sample.y), x(sample.x);
  const float top = y.first_weight, bottom = y.second_weight, left = x.first_weight, right = x.second_weight;
  corners.weight = {{top * left * mask, top * right * mask, bottom * left * mask, bottom * right * mask}};
  corners.left = LeftPixels(y, x, first_row, sizes.width);
  return corners;
}

// The addresses of a sample's corners in x, which may point to any channel of its first pixel.
struct CornerAddresses {
  bool is_read;
  const void* address[4];  // only to be read from if is_read

  __device__ CornerAddresses(const Vector<int32_t, 2>& left, const void* x, int32_t pixel_bytes, int32_t far_right)
      : is_read(left.value[1] >= 0) {
    const int64_t right_bytes = int64_t{left.value[0] < 0 ? far_right : 1} * pixel_bytes;
    // Unsigned, as in CornerLoads.
    const uint32_t pixel[2] = {uint32_t(left.value[0] & ~kRightIsFar), uint32_t(left.value[1])};
    for (int row = 0; row < 2; ++row) {
      const uintptr_t first = uintptr_t(x) + uint64_t{pixel[row]} * uint32_t(pixel_bytes);
      address[2 * row] = reinterpret_cast<const void*>(first);
      address[2 * row + 1] = reinterpret_cast<const void*>(first + uint64_t(right_bytes));
    }
  }
};

// Loads 16 bytes of channels at each of the four corners of a sample into registers. The loads start in the
// constructor, so that they overlap with the instructions before Blend.
template <typename T>
class CornerLoads {
 public:
  template <int kSamples>
  __device__ CornerLoads(const CornerTable<kSamples>& corners, int i, const T* x, int32_t pixel_bytes,
                         int32_t far_right, bool is_valid)
      : weight_(corners.weight[i]) {
    const Vector<int32_t, 2> left = corners.left[i];
    const bool is_read = is_valid && left.value[1] >= 0;
    const int64_t right_bytes = int64_t{left.value[0] < 0 ? far_right : 1} * pixel_bytes;
    // Unsigned, because the compiler takes several instructions for a product of numbers of which it knows that only
    // one has no sign.
    const uint32_t pixel[2] = {uint32_t(left.value[0] & ~kRightIsFar), uint32_t(left.value[1])};
    for (int row = 0; row < 2; ++row) {
      const auto* first = reinterpret_cast<const void*>(uintptr_t(x) + uint64_t{pixel[row]} * uint32_t(pixel_bytes));
      words_[2 * row] = load_global_or_zeros(first, 0, is_read);
      words_[2 * row + 1] = load_global_or_zeros(first, right_bytes, is_read);
    }
  }

  // `zero_dependency` is an opaque 0 computed from the result of an mma: it keeps the compiler from scheduling the
  // blend, which waits for the loads, before that mma is issued.
  __device__ uint4 Blend(int zero_dependency) const {
    const Vector<float, 4> weight = AsVector<4>(weight_.value + zero_dependency);
    return {BlendWord(0, weight.value), BlendWord(1, weight.value), BlendWord(2, weight.value),
            BlendWord(3, weight.value)};
  }

 private:
  __device__ uint32_t BlendWord(int word, const float (&weight)[4]) const {
    float sum[kWordSize<T>], value[kWordSize<T>];
    for (int corner = 0; corner < 4; ++corner) {
      WordToFloats<T>(words_[corner].word[word], value);
      for (int i = 0; i < kWordSize<T>; ++i) {
        sum[i] = (corner == 0 ? 0 : sum[i]) + weight[corner] * value[i];
      }
    }
    return RoundToWord<T>(sum);
  }

  const Vector<float, 4>& weight_;  // in shared memory: Blend reads it late, so that it takes no registers meanwhile
  Words words_[4];
};

}  // namespace dcn
