// A deformable convolution and its cotangents as implicit GEMMs: the kernels sample x, or gather cotangents, while they
// multiply, and never store the columns in memory. The functions of CUDA and of CPUs differ, since they need other
// arrays. A call covers all images. The weight, y and their cotangents have x's type unless stated otherwise.
#pragma once

#include <algorithm>
#include <cstdint>

#include "deform_conv.h"

namespace dcn {

struct Product {
  int64_t features, groups;  // channels of the output; feature groups

  DCN_HOST_DEVICE int64_t group_features() const { return features / groups; }
};

// The convolution that a call computes. The functions of CUDA and of CPUs take one, with their own arrays.
struct Convolution {
  DType dtype;  // of x
  Sizes sizes;
  Positions positions;
  Product product;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

// The functions of CUDA: x is float16, bfloat16 or float32, which is multiplied as tf32. The values of a float32 weight
// must be tf32 already. x and, for the cotangents, y must have fewer than kMaxPixels pixels, and a pixel fewer than
// 2^31 bytes.

// The limit leaves room for the pixels of one more tile in int32.
constexpr int64_t kMaxPixels = (int64_t{1} << 31) - 256;

// Limits and tile sizes of the fused kernels. The module exports them to Python, which selects kernels by them.
struct FusedLimits {
  static constexpr int64_t kVectorBytes = 16;                 // per vector load or store; pixels consist of vectors
  static constexpr int64_t kTilePixels = 128;                 // output pixels per thread block
  static constexpr int64_t kTileFeatures[] = {64, 128, 256};  // output features per thread block of the forward
  static constexpr int64_t kWeightTile = 128;      // channels, and features, per thread block of the weight's gradient
  static constexpr int64_t kMinSplitPixels = 512;  // output pixels per partial sum of the weight's gradient
  static constexpr int64_t kSliceVectors = 8;      // vectors of a pixel per K slice
  static constexpr int64_t kMaxVectors = UINT32_MAX;  // of d_y for the images of a chunk: their indices are uint32
  static constexpr int64_t kMarginVectors = 16;  // added to the vectors of each tap, so that K indices fit in int32
  static constexpr int64_t kMaxListBytes = 128 << 20;  // of the scatter lists of one image
};

// A thread block of a fused kernel, by which tests and cost models compute the occupancy of an SM.
struct FusedBlock {
  int64_t tile_columns;  // N of the block tile
  int64_t warps;
  int64_t shared_bytes;  // dynamic

  constexpr bool operator==(const FusedBlock& other) const {
    return tile_columns == other.tile_columns && warps == other.warps && shared_bytes == other.shared_bytes;
  }
};

// The thread blocks of all fused kernels. Each kernel's file checks its own, and the module exports them to Python.
struct FusedBlocks {
  static constexpr FusedBlock kForward[] = {
      {64, 4, 63520}, {64, 8, 63520}, {128, 4, 79904}, {128, 8, 79904}, {256, 8, 120864}};
  static constexpr FusedBlock kInputCotangent[] = {{64, 8, 66080}, {128, 4, 82464}, {128, 8, 82464}};
  static constexpr FusedBlock kOffsetCotangent[] = {{64, 8, 52752}, {128, 4, 71184}, {128, 8, 71184}};
  static constexpr FusedBlock kWeightCotangent[] = {{64, 8, 55232},  {64, 8, 67904},  {128, 4, 71616},
                                                    {128, 4, 76032}, {128, 8, 71616}, {128, 8, 76032}};

  template <size_t kSize>
  static constexpr bool Contain(const FusedBlock (&blocks)[kSize], FusedBlock block) {
    for (const FusedBlock& listed : blocks) {
      if (listed == block) return true;
    }
    return false;
  }
};

// The number of elements in a vector, which the kernels load and store at once.
constexpr int64_t FusedVector(DType dtype) { return FusedLimits::kVectorBytes / BytesOf(dtype); }

// weight: [features, taps, channels / groups]; bias: float[features]; y: [images, rows, columns, features], float if
// `is_y_float`. The channels of a feature group and of an offset group are multiples of FusedVector, and the features
// of a group are even. A block computes at most `tile_features` features of a group: 64, 128 or 256.
const char* FusedForward(Device&, const Convolution&, int32_t tile_features, bool is_y_float, const void* x,
                         const void* weight, const void* bias, void* y);

// The cotangents have two more conditions: the features of a group are multiples of FusedVector, and one of the two
// group sizes, in channels, divides the other. A channel segment is then the run of channels that share one feature
// group and one offset group, and as long as the smaller group.
inline int64_t SegmentChannels(const Convolution& convolution) {
  return std::min(convolution.group_channels(), convolution.sizes.group_channels());
}

// The transpose of the sampling as lists in CSR form: for each pixel of x and tap, the output pixels that sample it and
// their weights, in the order of the output pixels.
struct alignas(8) Contribution {
  uint32_t vector;  // index in d_y of the output pixel's first 16 bytes
  float weight;     // bilinear weight × mask
};
struct ScatterLists {
  int32_t* row_start;           // [images, offset_groups, taps, height · width + 1], pixels in strip order
  Contribution* contributions;  // [images, offset_groups, taps, 4 · rows · columns]
  int32_t* workspace;           // of the same shape
};

// weight: [channels, taps, features / groups]; d_x: [images, height, width, channels].
const char* FusedInputCotangent(Device&, const Convolution&, const ScatterLists&, const void* weight, const void* d_y,
                                void* d_x);

// weight: as for the input's cotangent. d_offset and d_mask have the shapes of offset and mask; either may be null. A
// block takes `block_taps` taps of a tile of pixels.
const char* FusedOffsetCotangent(Device&, const Convolution&, int32_t block_taps, const void* x, const void* weight,
                                 const void* d_y, float* d_offset, float* d_mask);

// Split-K over the pixels. partial_sums: float[num_splits, taps, channels / groups, features], whose sum over the
// splits is the weight's cotangent. Not for float32, which ldmatrix cannot transpose.
const char* FusedWeightCotangent(Device&, const Convolution&, int64_t num_splits, const void* x, const void* d_y,
                                 float* partial_sums);

// The functions of CPUs: x is not float64; offset, mask and bias are float32. An image has fewer than 2^31 pixels
// and channels.

// The features of a group, and the channels of a slice in the cotangents, are padded to its multiples, which are whole
// panels of every instruction set.
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
  int64_t num_planes;  // slices of channels of images whose cotangent of x adds up at a time, if that has 16 bits
};

// What the handlers accept; ChooseCotangentDivision stays below.
constexpr int64_t kMaxWeightSplits = 64, kMaxResidentPlanes = 128;

// The division that occupies 64 threads, if the workspace has room for it.
CotangentDivision ChooseCotangentDivision(const Convolution&, RequestedCotangents);

// How many tasks the cotangents have with this processor's instruction set: tiles of each slice of channels.
int64_t CotangentTasks(const Convolution&);
int64_t FusedCotangentsWorkspace(const Convolution&, RequestedCotangents, CotangentDivision);
const char* FusedCotangents(Device&, const Convolution&, CotangentDivision, const FusedCotangentArrays&);

}  // namespace dcn
