// Sampling in the fused kernels: from pixels of x in global memory to samples in shared memory.
#pragma once

#include <cstdint>

#include "deform_conv/cuda_pixel_strips.h"
#include "deform_conv/cuda_samples.h"
#include "matrix.h"
#include "pixel_pair.h"
#include "vector.h"

namespace dcn {

// The corners of a sample as CornerLoads reads them. Where the image has only one of the two rows, or of the two
// columns, its pixels take the place of the missing ones too, and each of the two has half of the weight. So all four
// pixels are read, or none, and no flags per corner are needed. The weight of a corner is a product of two numbers, so
// that the record has 16 bytes and is read at once.
struct alignas(16) Corners {
  uint32_t top_left;  // index of the pixel in x, counted over all images; or kNotRead
  float right;        // weight of the right pixels, from 0 to 1; that of the left ones is the rest
  float top, bottom;  // weights of the two rows, times the mask
};

constexpr uint32_t kNotRead = UINT32_MAX;  // instead of a pixel: no corner is read
// The sign bits of `top_left` and `right` are flags: the bottom row does not follow the top row, and the right pixels
// do not follow the left ones. (See CornerDistances.)
constexpr uint32_t kIsFar = uint32_t{1} << 31;

// The distances between the corners of a sample, in pixels. Where two corners are not adjacent, they are the same
// pixel, or circular padding wraps around.
struct CornerDistances {
  int32_t pixel_bytes;
  int32_t far_right, down, far_down;

  CornerDistances() = default;
  CornerDistances(const Sizes& sizes, int64_t pixel_bytes)
      : pixel_bytes(int32_t(pixel_bytes)),
        far_right(sizes.window.circular ? int32_t(1 - sizes.width) : 0),
        down(int32_t(sizes.width)),
        far_down(sizes.window.circular ? int32_t((1 - sizes.height) * sizes.width) : 0) {}
};

// What the samples of an output pixel have in common.
struct SampledPixel {
  FirstTap first_tap;
  int32_t image;  // the first pixel of the image in x

  SampledPixel() = default;
  template <typename Index>
  __device__ SampledPixel(const Sizes& sizes, const Positions& positions, const OutputPixel<Index>& pixel)
      : first_tap(sizes, positions, pixel.row, pixel.column),
        image(int32_t(pixel.image) * int32_t(sizes.height * sizes.width)) {}
};

// Reads nothing.
__device__ inline Corners NoCorners() { return {kNotRead, 0, 0, 0}; }

// `image` is the first pixel of the sample's image in x.
__device__ inline Corners CornersToRead(const Sizes& sizes, const BilinearCorners<float>& sample, float mask,
                                        int32_t image) {
  Corners corners = NoCorners();
  const PixelPair y(sample.y), x(sample.x);
  const float weight = y.weight * x.weight * mask;
  corners.right = x.fraction;
  corners.top = (1 - y.fraction) * weight;
  corners.bottom = y.fraction * weight;
  if (y.first < 0 || x.first < 0) return corners;
  corners.top_left = uint32_t(image + y.first * int32_t(sizes.width) + x.first) | (y.is_far ? kIsFar : 0);
  if (x.is_far) corners.right = -corners.right;
  return corners;
}

// The corners of the sample at a tap, or at a distance from the first tap.
template <typename TapOrDistance>
__device__ Corners FindCorners(const Sizes& sizes, const SampledPixel& pixel, const SampleOperands<float>& operands,
                               const TapOrDistance& tap_or_distance) {
  return CornersToRead(sizes, LocateSample<float>(sizes, pixel.first_tap, operands.offset, tap_or_distance),
                       operands.mask, pixel.image);
}

// The addresses of a sample's corners in x, which may point to any channel of its first pixel. They may be read only if
// `is_read`.
struct CornerAddresses {
  bool is_read;
  const char* address[4];

  __device__ CornerAddresses(const Corners& corners, const void* x, const CornerDistances& distances)
      : is_read(corners.top_left != kNotRead) {
    const int32_t right = __float_as_int(corners.right) < 0 ? distances.far_right : 1;
    const int32_t down = corners.top_left & kIsFar ? distances.far_down : distances.down;
    // Unsigned, because the compiler takes several instructions for a product of numbers of which it knows that only
    // one has no sign.
    address[0] = static_cast<const char*>(x) + uint64_t{corners.top_left & ~kIsFar} * uint32_t(distances.pixel_bytes);
    address[2] = address[0] + int64_t{down} * distances.pixel_bytes;
    address[1] = address[0] + int64_t{right} * distances.pixel_bytes;
    address[3] = address[2] + int64_t{right} * distances.pixel_bytes;
  }
};

// Loads kVectors × 16 bytes of channels at each of the four corners of a sample into registers. The vectors are
// kVectorStride bytes apart. The loads start in the constructor, so that they overlap with the instructions before
// Blend.
template <typename T, int kVectors = 1, int kVectorStride = 0>
class CornerLoads {
 public:
  __device__ CornerLoads(const Corners& corners, const T* x, const CornerDistances& distances, bool is_valid)
      : right_(corners.right), top_(corners.top), bottom_(corners.bottom) {
    const CornerAddresses addresses(corners, x, distances);
    for (int corner = 0; corner < 4; ++corner) {
      for (int k = 0; k < kVectors; ++k) {
        words_[k][corner] =
            load_global_or_zeros(is_valid && addresses.is_read, addresses.address[corner] + k * kVectorStride);
      }
    }
  }

  // `zero_dependency` is an opaque 0 computed from the result of an mma: it keeps the compiler from scheduling the
  // blend, which waits for the loads, before that mma is issued.
  __device__ uint4 Blend(int zero_dependency, int vector = 0) const {
    const float right = fabsf(__int_as_float(__float_as_int(right_) | zero_dependency)), left = 1 - right;
    const float weight[4] = {top_ * left, top_ * right, bottom_ * left, bottom_ * right};
    const Vector<uint32_t, 4>(&corners)[4] = words_[vector];
    return {BlendWord(0, corners, weight), BlendWord(1, corners, weight), BlendWord(2, corners, weight),
            BlendWord(3, corners, weight)};
  }

 private:
  __device__ static uint32_t BlendWord(int word, const Vector<uint32_t, 4> (&corners)[4], const float (&weight)[4]) {
    float sum[kWordSize<T>], value[kWordSize<T>];
    for (int corner = 0; corner < 4; ++corner) {
      WordToFloats<T>(corners[corner].value[word], value);
      for (int i = 0; i < kWordSize<T>; ++i) {
        sum[i] = (corner == 0 ? 0 : sum[i]) + weight[corner] * value[i];
      }
    }
    return RoundToWord<T>(sum);
  }

  float right_, top_, bottom_;  // see Corners
  Vector<uint32_t, 4> words_[kVectors][4];
};

}  // namespace dcn
