// A deformable convolution and its cotangents as implicit GEMMs, on CPUs: the kernels sample x while they multiply, and
// never store the columns in memory. A call covers all images. The weight, y and their cotangents have x's type unless
// stated otherwise. x is not float64; offset, mask and bias are float32. An image has fewer than 2^31 pixels and
// channels.
#pragma once

#include <cstdint>

#include "deform_conv/deform_conv.h"

namespace dcn {

struct Product {
  int64_t features, groups;  // channels of the output; feature groups

  DCN_HOST_DEVICE int64_t group_features() const { return features / groups; }
};

// The convolution that a call computes. It may be an ordinary one, whose samples lie on the grid: it has neither offset
// nor mask, and one offset group.
struct Convolution {
  DType dtype;  // of x
  Sizes sizes;
  Positions positions;
  Product product;
  bool is_on_grid = false;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

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
