// Sampling in the fused kernels: from pixels of x in global memory to samples in shared memory.
#pragma once

#include <matrix.h>

#include <cstdint>

#include "positions.h"
#include "vector.h"

namespace dcn {

// The corners of a sample as the fused kernels keep them in shared memory.
struct alignas(16) Corners {
  int32_t pixel[4];  // pixel index in x, counted over all images; -1 for a corner that is not read
  float weight[4];   // times the mask
};

// No corner is read if `output_pixel` is -1. Callers assign the result to a local variable before they store it in
// shared memory, because ThreadSanitizer misses writes made through return-value elision.
__device__ inline Corners FindCorners(const Sizes& sizes, const Positions& positions, int64_t output_pixel,
                                      int64_t offset_group, int32_t tap) {
  if (output_pixel < 0) return {{-1, -1, -1, -1}, {0, 0, 0, 0}};
  const int64_t sample_index = SampleIndex(sizes, output_pixel, offset_group, tap);
  const int64_t image = output_pixel / sizes.columns / sizes.rows;
  const BilinearCorners<float> sample = LocateSample<float>(sizes, positions, output_pixel, sample_index, tap);
  const float mask = Mask<float>(positions, sample_index);
  Corners corners;
  for (int corner = 0; corner < 4; ++corner) {
    const int64_t pixel = sample.pixel(corner, image * sizes.height, sizes.width);
    corners.pixel[corner] = sample.is_read(corner) ? int32_t(pixel) : -1;
    corners.weight[corner] = sample.weight(corner) * mask;
  }
  return corners;
}

// Loads 16 bytes of channels at each of the four corners of a sample into registers. The loads start in the
// constructor, so that they overlap with the instructions before Blend.
template <typename T>
class CornerLoads {
 public:
  __device__ CornerLoads(const Corners& corners, const T* x, int32_t pixel_bytes, bool is_valid) : corners_(corners) {
    for (int corner = 0; corner < 4; ++corner) {
      const int32_t pixel = corners.pixel[corner];
      words_[corner] = load_global_or_zeros(x, int64_t{pixel} * pixel_bytes, is_valid && pixel >= 0);
    }
  }

  // `zero_dependency` is an opaque 0 computed from the result of an mma: it keeps the compiler from scheduling the
  // blend, which waits for the loads, before that mma is issued.
  __device__ uint4 Blend(int zero_dependency) const {
    const Vector<float, 4> weight = AsVector<4>(corners_.weight + zero_dependency);
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

  const Corners& corners_;  // in shared memory: Blend reads the weights late, so that they take no registers meanwhile
  Words words_[4];
};

}  // namespace dcn
