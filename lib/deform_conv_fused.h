// The forward of a deformable convolution in one kernel: samples go from registers to the matrix units, and no columns
// array is held. Implemented for CUDA alone.
#pragma once

#include "deform_conv.h"

namespace dcn {

struct Product {
  int64_t features, groups;  // the output's channels; groups of the convolution
  int32_t tile_features;     // at most so many of a group's features a block computes: 64, 128 or 256
  bool wide;                 // whether y is float where x is not

  DCN_HOST_DEVICE int64_t group_features() const { return features / groups; }
};

// How many neighbouring elements the kernel moves at a time.
constexpr int64_t FusedVector(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }

// x is float16, bfloat16 or float32, multiplied as tf32. The channels of a group and those of an offset group are
// multiples of FusedVector, and a group's features are even; all pixels of x can be counted in 31 bits,
// and the bytes of one.
// weight: x's type, [features, taps, channels / groups]; bias: float[features]; y: [images, rows, columns, features].
// positions.origin is not read: the call covers the whole output of all images.
const char* FusedForward(Device&, DType, const Sizes&, const Positions&, const Product&, const void* x,
                         const void* weight, const void* bias, void* y);

}  // namespace dcn
