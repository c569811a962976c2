// A deformable convolution and its cotangents on a CPU, which multiply samples while they are in the caches and never
// store the columns in memory. x is float32 or bfloat16, offset, mask and bias are float32. A call covers all
// images of x, and an image has fewer than 2^31 pixels.
#pragma once

#include <cstdint>

#include "deform_conv_fused.h"

namespace dcn {

// The features of a group, and the channels of a slice in the cotangents, are padded to its multiples, which are whole
// panels of every instruction set.
constexpr int64_t kFeaturePadding = 64;

// The name of the instruction set of the kernels: lib/cpu/fused/instruction_set.h says how it is chosen.
const char* FusedInstructions();

struct FusedForwardArrays {
  const void* x;       // [images, height, width, channels]
  const void* weight;  // [taps, channels / groups, features], of x's type
  const float* bias;   // [features]
  bool is_y_float;     // otherwise y has x's type
  void* y;             // [images, rows, columns, features]
  float* workspace;    // FusedForwardWorkspace elements
};

int64_t FusedForwardWorkspace(const Sizes&, const Product&);
const char* FusedForward(Device&, DType, const Sizes&, const Positions&, const Product&, const FusedForwardArrays&);

struct FusedCotangentArrays {
  const void *x, *weight;  // as for the forward
  const void* d_y;         // of x's type
  // The results, null where they are not requested.
  void* d_x;                 // of x's type
  float *d_offset, *d_mask;  // as offset and mask
  float* d_weight;           // as weight
  float* workspace;          // FusedCotangentsWorkspace elements
};

// How many tasks of the cotangents may run at a time.
int64_t FusedCotangentsTasks(DType, const Sizes&, const Product&, bool of_x, bool of_positions, bool of_weight);
int64_t FusedCotangentsWorkspace(DType, const Sizes&, const Product&, bool of_x, bool of_positions, bool of_weight);
const char* FusedCotangents(Device&, DType, const Sizes&, const Positions&, const Product&,
                            const FusedCotangentArrays&);

}  // namespace dcn
