// From counts to places: the running sums of a counting sort.
#pragma once

#include <cstdint>

#include "launch.h"

namespace dcn {
namespace {

constexpr int kScanCells = 16;  // a thread's, in a row

// One block a bin. starts: [bins, cells + 1], of which starts[c + 1] is the count of cell c and becomes its start,
// still one place late; those of a bin begin at its number times `capacity`.
__global__ void ScanKernel(int64_t bins, int64_t cells, int64_t capacity, int32_t* starts) {
  __shared__ int32_t sums[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t bin = blockIdx.x; bin < bins; bin += gridDim.x) {
    int32_t* counts = starts + bin * (cells + 1) + 1;
    int32_t before = int32_t(bin * capacity);
    if (threadIdx.x == 0) counts[-1] = before;
    for (int64_t first = 0; first < cells; first += kThreads * kScanCells) {
      const int64_t own = first + threadIdx.x * kScanCells;
      int32_t count[kScanCells], sum = 0;
      for (int i = 0; i < kScanCells; ++i) {
        const int64_t cell = own + i;
        count[i] = cell < cells ? counts[cell] : 0;
        sum += count[i];
      }
      int32_t through = sum;  // from the warp's first lane on
      for (int reach = 1; reach < kWarp; reach *= 2) {
        const int32_t other = __shfl_up_sync(kWholeWarp, through, reach);
        if (lane >= reach) through += other;
      }
      if (lane == kWarp - 1) sums[warp] = through;
      __syncthreads();
      int32_t start = before + through - sum;
      for (int other = 0; other < kThreads / kWarp; ++other) {
        if (other < warp) start += sums[other];
        before += sums[other];
      }
      for (int i = 0; i < kScanCells && own + i < cells; ++i) {
        counts[own + i] = start;
        start += count[i];
      }
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace dcn
