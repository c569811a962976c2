// A deformable convolution and its cotangents as implicit GEMMs: the kernels sample x while they multiply, and never
// store the columns in memory. The functions of CUDA and of CPUs differ: they need other arrays, and CUDA has kernels
// for the forward and the weight's cotangent only. A call covers all images. The weight, y and their cotangents have
// x's type unless stated otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

#include "deform_conv/deform_conv.h"

namespace dcn {

struct Product {
  int64_t features, groups;  // channels of the output; feature groups

  DCN_HOST_DEVICE int64_t group_features() const { return features / groups; }
};

// The convolution that a call computes. The functions of CUDA and of CPUs take one, with their own arrays. Those of
// CPUs also take an ordinary convolution, whose samples lie on the grid: it has neither offset nor mask, and one offset
// group.
struct Convolution {
  DType dtype;  // of x
  Sizes sizes;
  Positions positions;
  Product product;
  bool is_on_grid = false;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

// The functions of CUDA: x is float16, bfloat16 or float32, which is multiplied as tf32. The values of a float32 weight
// must be tf32 already. x and, for the cotangents, y must have fewer than kMaxPixels pixels, and a pixel fewer than
// 2^31 bytes.

// The limit leaves room for the pixels of one more tile in int32.
constexpr int64_t kMaxPixels = (int64_t{1} << 31) - 256;

// Limits and tile sizes of the fused kernels. The module exports them to Python, which chooses tiles by them.
struct FusedLimits {
  static constexpr int64_t kVectorBytes = 16;                 // per vector load or store; pixels consist of vectors
  static constexpr int64_t kTilePixels = 128;                 // output pixels per thread block
  static constexpr int64_t kTileFeatures[] = {64, 128, 256};  // output features per thread block of the forward
  static constexpr int64_t kWeightTile = 128;                 // channels per thread block of the weight's cotangent
  static constexpr int64_t kWeightTileFeatures[] = {64, 128};
};

// The block tile of a call, which the caller chooses for the GPU. Blocks of 4 warps are made for two and more resident
// blocks per SM, and those of 8 warps for one.
struct FusedTile {
  int32_t features;  // of a group, at most
  int32_t warps;     // of a thread block
};

// The forward has tiles of 64 and 128 features with 4 or 8 warps, and of 256 with 8.
constexpr bool IsForwardTile(FusedTile tile) {
  return (tile.warps == 8 && tile.features == 256) ||
         ((tile.warps == 4 || tile.warps == 8) && (tile.features == 64 || tile.features == 128));
}

// The weight's cotangent has tiles of 64 features with 8 warps, and of 128 with 4 or 8.
constexpr bool IsWeightTile(FusedTile tile) {
  return (tile.warps == 8 && tile.features == 64) || ((tile.warps == 4 || tile.warps == 8) && tile.features == 128);
}

// The most samples of a pixel in a tile of the weight's cotangent, of which a tile has one where channel segments
// consist of whole tiles: as many as shared memory has room for in two resident blocks of an A100.
constexpr int32_t MaxWeightTileSamples(int64_t features) { return features == 64 ? 16 : 8; }

// The number of elements in a vector, which the kernels load and store at once.
constexpr int64_t FusedVector(DType dtype) { return FusedLimits::kVectorBytes / BytesOf(dtype); }

// weight: [features, taps, channels / groups]; bias: float[features]; y: [images, rows, columns, features], float if
// `is_y_float`. The channels of a feature group and of an offset group are multiples of FusedVector, and the features
// of a group are even.
const char* FusedForward(Device&, const Convolution&, FusedTile, bool is_y_float, const void* x, const void* weight,
                         const void* bias, void* y);

// A channel segment is the run of channels that share one feature group and one offset group, where one of the two
// group sizes divides the other. It is as long as the smaller group.
inline int64_t SegmentChannels(const Convolution& convolution) {
  return std::min(convolution.group_channels(), convolution.sizes.group_channels());
}

// Split-K over the pixels. partial_sums: float[num_splits, taps, channels / groups, features], whose sum over the
// splits is the weight's cotangent. A tile has one sample of each pixel, or at most MaxWeightTileSamples. The features
// of a group are multiples of FusedVector, and channels have segments. Not for float32, which ldmatrix cannot
// transpose.
const char* FusedWeightCotangent(Device&, const Convolution&, FusedTile, bool has_one_sample, int64_t num_splits,
                                 const void* x, const void* d_y, float* partial_sums);

// The functions of CPUs: x is not float64; offset, mask and bias are float32. An image has fewer than 2^31 pixels
// and channels.

// The features of a group, and the channels of a channel slice in the cotangents, are padded to its multiples, which
// are whole panels of every instruction set.
constexpr int64_t kFeaturePadding = 64;

// The name of the instruction set of the kernels: lib/cpu/instruction_sets.h says how it is chosen.
const char* FusedInstructions();

struct FusedForwardArrays {
  const void* x;       // [images, height, width, channels]
  const void* weight;  // [taps, channels / groups, features]
  const float* bias;   // [features]
  bool is_y_float;     // otherwise it has x's type
  void* y;             // [images, rows, columns, features]
  float* workspace;    // FusedForwardWorkspace elements: the packed weight, where pairs of bfloat16 are multiplied
};

int64_t FusedForwardWorkspace(const Convolution&);
const char* FusedForward(Device&, const Convolution&, const FusedForwardArrays&);

struct RequestedCotangents {
  bool x, positions, weight;

  bool any() const { return x || positions || weight; }
};

struct FusedCotangentArrays {
  const void *x, *weight;  // as for the forward
  const void* d_y;
  RequestedCotangents requested;
  // The results; those that are not requested are not written. Of d_offset and d_mask, one may be null.
  void* d_x;
  float *d_offset, *d_mask;  // as offset and mask
  float* d_weight;           // as weight
  float* workspace;          // FusedCotangentsWorkspace elements
};

// How the cotangents of a call are divided. The workspace depends on it.
struct CotangentDivision {
  int64_t num_splits;  // partial sums of the weight's cotangent, whose bits depend on them
  int64_t num_planes;  // channel slices of images whose cotangent of x adds up at a time, if that has 16 bits
};

// What the handlers accept; ChooseCotangentDivision stays below.
constexpr int64_t kMaxWeightSplits = 64, kMaxResidentPlanes = 128;

// The division that occupies 64 threads, if the workspace has room for it.
CotangentDivision ChooseCotangentDivision(const Convolution&, RequestedCotangents);

// How many tasks the cotangents have with this processor's instruction set: tiles of each channel slice.
int64_t CotangentTasks(const Convolution&);
int64_t FusedCotangentsWorkspace(const Convolution&, RequestedCotangents, CotangentDivision);
const char* FusedCotangents(Device&, const Convolution&, CotangentDivision, const FusedCotangentArrays&);

}  // namespace dcn
