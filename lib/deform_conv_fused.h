// A deformable convolution and its cotangents, each in kernels that multiply what they gather: samples, or cotangents,
// go from registers to the matrix units, and no columns array is held. Implemented for CUDA alone.
//
// x is float16, bfloat16 or float32, multiplied as tf32; weight, y and their cotangents are of x's type except where
// said otherwise, a float weight of numbers that tf32 has. The calls cover all images. The pixels of x and of y are
// fewer than kMaxPixels, and the bytes of one can be counted in 31 bits.
#pragma once

#include <algorithm>

#include "deform_conv.h"

namespace dcn {

constexpr int64_t kMaxPixels = (int64_t{1} << 31) - 256;  // so that a tile behind the last can be counted

struct Product {
  int64_t features, groups;  // the output's channels; groups of the convolution

  DCN_HOST_DEVICE int64_t group_features() const { return features / groups; }
};

// How many neighbouring elements the kernels move at a time.
constexpr int64_t FusedVector(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }

// weight: [features, taps, channels / groups]; bias: float[features]; y: [images, rows, columns, features], float where
// `wide`. The channels of a group and those of an offset group are multiples of FusedVector, and a group's features are
// even. A block computes at most `tile_features` of a group's features: 64, 128 or 256.
const char* FusedForward(Device&, DType, const Sizes&, const Positions&, const Product&, int32_t tile_features,
                         bool wide, const void* x, const void* weight, const void* bias, void* y);

// For the cotangents, the features of a group are multiples of FusedVector too, and of the channels of a group and
// those of an offset group one divides the other: the smaller are a segment, within which both are the same.
inline int64_t SegmentChannels(const Sizes& sizes, const Product& product) {
  return std::min(sizes.channels / product.groups, sizes.group_channels());
}

// The sampling's transpose: which outputs touch a pixel of x by a tap, and with what weight, in the order of the
// outputs.
struct alignas(8) Contribution {
  int32_t output_pixel;  // of the output, through all images
  float weight;          // times the mask
};
struct ScatterLists {
  int32_t* row_start;  // [images, offset_groups, taps, height · width + 1], pixels strip by strip: where theirs start
  Contribution* contributions;  // [images, offset_groups, taps, 4 · rows · columns]
  int32_t* workspace;           // as many
};

// weight: [channels, taps, features / groups]; d_x: [images, height, width, channels].
const char* FusedInputCotangent(Device&, DType, const Sizes&, const Positions&, const Product&, const ScatterLists&,
                                const void* weight, const void* d_y, void* d_x);

// weight: as for the input's cotangent. d_offset and d_mask: as offset and mask; either may be null. A block takes
// `block_taps` taps of a tile of pixels.
const char* FusedOffsetCotangent(Device&, DType, const Sizes&, const Positions&, const Product&, int32_t block_taps,
                                 const void* x, const void* weight, const void* d_y, float* d_offset, float* d_mask);

// parts: float[splits, taps, channels / groups, features], of which the sum is the weight's cotangent: each is of as
// many pixels. Not for float32, which the matrix units cannot transpose.
const char* FusedWeightCotangent(Device&, DType, const Sizes&, const Positions&, const Product&, int64_t splits,
                                 const void* x, const void* d_y, float* parts);

}  // namespace dcn
