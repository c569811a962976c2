// The kernels of the fused convolution for one instruction set and type of x.
#pragma once

#include <atomic>
#include <cstdint>

#include "dtype.h"
#include "fused/call.h"

namespace dcn {

struct FusedKernels {
  struct Forward {
    // `pack` packs a part of the weight into the workspace. Both are null if the kernels read the weight as it is.
    int64_t (*packing_tasks)(const FusedCall&);
    void (*pack)(const FusedCall&, const FusedForwardArrays&, int64_t task);
    // Computes tiles of y, which it takes from `next` until there are no more.
    void (*compute)(const FusedCall&, const FusedForwardArrays&, const void* zeros, const Tiling&,
                    std::atomic<int64_t>& next);
  } forward;
  struct Cotangents {
    // Packs the weight of a tap and a slice: taps · slices tasks.
    void (*pack)(const FusedCall&, const CotangentPlan&, const FusedCotangentArrays&, int64_t task);
    // Computes tasks of the plan, which it takes from `next` until there are no more.
    void (*compute)(const FusedCall&, const CotangentPlan&, const FusedCotangentArrays&, const void* zeros,
                    const Tiling&, int64_t slot, FinishedTiles&, std::atomic<int64_t>& next);
    // Adds up the weight's cotangent of a tap and a slice: taps · slices tasks.
    void (*sum_weight)(const FusedCall&, const CotangentPlan&, const FusedCotangentArrays&, int64_t task);
  } cotangents;
};

// Each instruction set has a file of its own. The kernels of the first three multiply in float32.
const FusedKernels& PortableKernels(DType);
const FusedKernels& Avx2Kernels(DType);
const FusedKernels& Avx512Kernels(DType);
// The kernels of the other two multiply pairs of bfloat16. The channels of a feature group and of an offset group must
// be multiples of kPairChannels. For the cotangents, the features of a feature group must be, too.
const FusedKernels& Avx512Bf16Kernels();
const FusedKernels& AmxKernels();
constexpr int64_t kPairChannels = 32;

}  // namespace dcn
