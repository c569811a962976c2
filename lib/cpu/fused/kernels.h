// The kernels of the fused convolution for one instruction set and type of x.
#pragma once

#include <atomic>
#include <cstdint>

#include "dtype.h"
#include "fused/call.h"
#include "instruction_sets.h"

namespace dcn {

struct FusedKernels {
  struct Forward {
    // `pack` packs a part of the weight into the workspace. Both are null if the kernels read the weight as it is.
    int64_t (*packing_tasks)(const ConvolutionCall&);
    void (*pack)(const ConvolutionCall&, const FusedForwardArrays&, int64_t task);
    // Computes tiles of y, which it takes from `next` until there are no more.
    void (*compute)(const ConvolutionCall&, const FusedForwardArrays&, const void* zeros, const Tiling&,
                    std::atomic<int64_t>& next);
  } forward;
  struct Cotangents {
    // Packs the weight of a tap and a slice: taps · slices tasks.
    void (*pack)(const ConvolutionCall&, const CotangentPlan&, const FusedCotangentArrays&, int64_t task);
    // Computes tasks of the plan, which it takes from `next` until there are no more.
    void (*compute)(const ConvolutionCall&, const CotangentPlan&, const FusedCotangentArrays&, const void* zeros,
                    const Tiling&, int64_t slot, FinishedTiles&, std::atomic<int64_t>& next);
    // Adds up the weight's cotangent of a tap and a slice: taps · slices tasks.
    void (*sum_weight)(const ConvolutionCall&, const CotangentPlan&, const FusedCotangentArrays&, int64_t task);
  } cotangents;
};

// The kernels of each instruction set. Those of avx512_bf16 and amx multiply pairs of bfloat16, and are for no other
// type. The channels of a feature group and of an offset group must be multiples of kPairChannels. For the cotangents,
// the features of a feature group must be, too.
#define DCN_DECLARE(set)                      \
  namespace set {                             \
  const FusedKernels& FusedKernelsFor(DType); \
  }
DCN_INSTRUCTION_SETS(DCN_DECLARE)
constexpr int64_t kPairChannels = 32;

}  // namespace dcn
