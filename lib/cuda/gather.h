// Samples on their way from x to shared memory.
#pragma once

#include <matrix.h>

#include <cmath>
#include <cstdint>

#include "positions.h"
#include "vector.h"

namespace dcn {

// What a sample reads: pixels of x, -1 for none, and their weights times the mask.
struct alignas(16) Corners {
  int32_t pixel[4];
  float weight[4];
};

// None of a pixel `p` of -1. To be kept in shared memory by a statement of its own: what a function writes to its
// result directly, ThreadSanitizer does not see.
__device__ inline Corners FindCorners(const Sizes& sizes, const Positions& positions, int64_t p, int64_t g, int32_t k) {
  if (p < 0) return {{-1, -1, -1, -1}, {0, 0, 0, 0}};
  const int64_t position = Position(sizes, p, g, k), image = p / sizes.columns / sizes.rows;
  const Sample<float> sample = LocateSample<float>(sizes, positions, p, position, k);
  const float mask = Mask<float>(positions, position);
  const float nothing = sample.nan() ? NAN : 0;
  Corners corners;
  for (int corner = 0; corner < 4; ++corner) {
    const int i = corner / 2, j = corner % 2;
    const int64_t pixel = (image * sizes.height + sample.y.pixel[i]) * sizes.width + sample.x.pixel[j];
    corners.pixel[corner] = sample.inside() && sample.touches(i, j) ? int32_t(pixel) : -1;
    corners.weight[corner] = (sample.inside() ? sample.weight(i, j) : nothing) * mask;
  }
  return corners;
}

// 16 bytes of channels of a sample, on their way to shared memory.
template <typename T>
class CornerLoads {
 public:
  __device__ CornerLoads(const Corners& corners, const T* x, int32_t pixel_bytes, bool there) : corners_(corners) {
    for (int corner = 0; corner < 4; ++corner) {
      const int32_t pixel = corners.pixel[corner];
      pixel_[corner] = load_global_or_zeros(x, int64_t{pixel} * pixel_bytes, there && pixel >= 0);
    }
  }

  // `later` is zero, of a product that is to be on its way before anything waits for the pixels.
  __device__ uint4 Blend(int later) const {
    const Vector<float, 4> weight = AsVector<4>(corners_.weight + later);
    return {BlendWord(0, weight.value), BlendWord(1, weight.value), BlendWord(2, weight.value),
            BlendWord(3, weight.value)};
  }

 private:
  __device__ uint32_t BlendWord(int word, const float (&weight)[4]) const {
    float sum[kWordSize<T>], value[kWordSize<T>];
    for (int corner = 0; corner < 4; ++corner) {
      WordToFloats<T>(pixel_[corner].word[word], value);
      for (int i = 0; i < kWordSize<T>; ++i) {
        sum[i] = (corner == 0 ? 0 : sum[i]) + weight[corner] * value[i];
      }
    }
    return RoundToWord<T>(sum);
  }

  const Corners& corners_;
  Words pixel_[4];
};

}  // namespace dcn
