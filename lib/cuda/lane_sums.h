// Sums over the lanes of a warp.
#pragma once

#include "launch.h"

namespace dcn {

// Adds up kCount sums over kCount lanes, and returns the sum of number lane % kCount. In each step, a lane gives away
// half of its sums and keeps the other half.
template <typename A, int kCount>
__device__ A SumOverLanes(A (&sum)[kCount]) {
  if constexpr (kCount == 1) {
    return sum[0];
  } else {
    constexpr int kHalf = kCount / 2;
    const bool keeps_last = threadIdx.x / kHalf % 2;
    A kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const A given = keeps_last ? sum[i] : sum[i + kHalf];
      kept[i] = (keeps_last ? sum[i + kHalf] : sum[i]) + __shfl_xor_sync(kWholeWarp, given, kHalf);
    }
    return SumOverLanes(kept);
  }
}

}  // namespace dcn
