// The pixels of one axis that a sample reads, without flags for those that are outside of the image.
#pragma once

#include <cstdint>

#include "bilinear.h"

namespace dcn {

// The two pixels of an axis that are read, which are the same if the image has only one of them, and their weights:
// that of the second as a fraction of both.
template <typename A>
struct PixelPair {
  int32_t first;
  bool is_far;  // the second pixel is not the next one
  A fraction, weight;

  __device__ explicit PixelPair(const AxisLocation<A>& axis)
      : first(axis.pixel[0]), is_far(axis.pixel[1] != axis.pixel[0] + 1), fraction(axis.fraction), weight(1) {
    if ((axis.pixel[0] < 0) == (axis.pixel[1] < 0)) return;
    const bool has_first = axis.pixel[0] >= 0;
    first = has_first ? axis.pixel[0] : axis.pixel[1];
    is_far = true;
    weight = axis.weight(has_first ? 0 : 1);
    fraction = A(0.5);
  }
};

// The weights of the pixels that a sample reads, times `factor`.
template <typename A>
__device__ void ComputeWeights(const PixelPair<A>& y, const PixelPair<A>& x, A factor, A (&weights)[4]) {
  for (int corner = 0; corner < 4; ++corner) {
    weights[corner] = CornerWeight(y.fraction, x.fraction, factor, corner / 2, corner % 2);
  }
}

}  // namespace dcn
