// The sizes and types that the fused kernels support. The handlers reject all others. The Python layer selects the
// fused path by the same rules, so it never makes such a call. A test compares both.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "deform_conv_fused.h"
#include "ffi/checks.h"

namespace dcn {

// The conditions of the forward, which the cotangents have too. Messages call x `name`.
inline void CheckFused(Checks& checks, std::string_view name, DType dtype, const Sizes& sizes, const Product& product) {
  checks.Require(dtype != DType::kF64, std::string(name) + " must not be float64");
  const int64_t vector = FusedVector(dtype), group_channels = sizes.channels / product.groups;
  checks.FitsInt32("the number of features", product.features);
  checks.FitsInt32("the number of bytes of a pixel", sizes.channels / vector * FusedLimits::kVectorBytes);
  checks.Require(SaturatingMultiply(SaturatingMultiply(sizes.images_of_x, sizes.height), sizes.width) < kMaxPixels,
                 "has too many pixels");
  checks.Require(product.features % product.groups == 0 && sizes.channels % product.groups == 0,
                 "feature_group_count must divide the channels and the features");
  checks.Require(group_channels % vector == 0 && sizes.group_channels() % vector == 0,
                 "the channels of a group and of an offset group must be multiples of 16 bytes");
  checks.Require(product.group_features() % 2 == 0, "the features of a group must be even");
}

// The further conditions of all cotangents.
inline void CheckFusedCotangent(Checks& checks, DType dtype, const Sizes& sizes, const Product& product) {
  checks.Require(sizes.channels > 0 && product.features > 0, "there must be channels and features");
  if (!checks.ok()) return;
  const int64_t vector = FusedVector(dtype), outputs = SaturatingMultiply(sizes.rows, sizes.columns);
  checks.FitsInt32("the number of bytes of a pixel of y", product.features / vector * FusedLimits::kVectorBytes);
  checks.Require(outputs < kMaxPixels && SaturatingMultiply(sizes.images, outputs) < kMaxPixels,
                 "has too many outputs");
  checks.Require(product.group_features() % vector == 0, "the features of a group must be multiples of 16 bytes");
  checks.FitsInt32("the K dimension of the GEMM, in vectors,",
                   SaturatingMultiply(sizes.taps(), product.group_features() / vector + FusedLimits::kMarginVectors));
  checks.Require(
      std::max(sizes.channels / product.groups, sizes.group_channels()) % SegmentChannels(sizes, product) == 0,
      "the channels per group and per offset group: one number must divide the other");
}

// Of the input cotangent, which computes so many images at a time.
inline void CheckScatterLists(Checks& checks, DType dtype, const Sizes& sizes, const Product& product, int64_t images) {
  const int64_t lists = SaturatingMultiply(SaturatingMultiply(images, sizes.offset_groups), sizes.taps());
  const int64_t outputs = SaturatingMultiply(sizes.rows, sizes.columns);
  checks.FitsInt32("the number of contributions", SaturatingMultiply(lists, SaturatingMultiply(4, outputs)));
  const int64_t vectors =
      SaturatingMultiply(SaturatingMultiply(images, outputs), product.features / FusedVector(dtype));
  checks.Require(vectors <= FusedLimits::kMaxVectors, "the images of row_start have " + std::to_string(vectors) +
                                                          " vectors of 16 bytes of d_y, must be at most " +
                                                          std::to_string(FusedLimits::kMaxVectors));
  checks.FitsInt32("the number of their lists",
                   SaturatingMultiply(lists, SaturatingMultiply(sizes.height, sizes.width) + 1));
}

inline void CheckFusedOffsetCotangent(Checks& checks, DType dtype, const Sizes& sizes, const Product& product) {
  const int64_t vector = FusedVector(dtype);
  const int64_t slices = product.group_features() / vector / FusedLimits::kSliceVectors + 1;
  checks.FitsInt32("the number of iterations of a thread block's main loop",
                   SaturatingMultiply(SaturatingMultiply(sizes.taps(), sizes.group_channels() / vector), slices));
}

inline void CheckFusedWeightCotangent(Checks& checks, DType dtype) {
  checks.Require(dtype != DType::kF32, "x must be of 16 bits");
}

enum class FusedKernel { kForward, kInputCotangent, kOffsetCotangent, kWeightCotangent };

// All conditions of a kernel, except for CheckScatterLists. Messages call x `name`. Channels must be divisible by their
// groups.
inline void CheckFusedKernel(Checks& checks, FusedKernel kernel, std::string_view name, DType dtype, const Sizes& sizes,
                             const Product& product) {
  CheckFused(checks, name, dtype, sizes, product);
  if (!checks.ok() || kernel == FusedKernel::kForward) return;
  CheckFusedCotangent(checks, dtype, sizes, product);
  if (!checks.ok()) return;
  if (kernel == FusedKernel::kOffsetCotangent) CheckFusedOffsetCotangent(checks, dtype, sizes, product);
  if (kernel == FusedKernel::kWeightCotangent) CheckFusedWeightCotangent(checks, dtype);
}

}  // namespace dcn
