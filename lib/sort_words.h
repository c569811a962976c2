// What the CUDA kernels sort, in 32-bit elements. The modules export these numbers to Python, which computes workspaces
// from sizes that may be symbolic.
#pragma once

#include <cstdint>

namespace dcn {

// A record of a sample has four numbers of the type of sums (cuda/cells.h), and that of a tap has two
// (sampling/cuda_x_cotangent.cu).
constexpr int64_t SortedSampleWords(int64_t number_bytes) { return 4 * number_bytes / int64_t{sizeof(int32_t)}; }
constexpr int64_t SortedTapWords(int64_t number_bytes) { return 2 * number_bytes / int64_t{sizeof(int32_t)}; }

}  // namespace dcn
