// The workspaces of the fused convolution. Sizes saturate, so that the handlers refuse a call whose workspace would
// have 2^63 elements or more.
#include <algorithm>

#include "ffi/saturating.h"
#include "fused/call.h"

namespace dcn {
namespace {

constexpr int64_t kSliceChannels = 64;
constexpr int64_t kTasks = 8;                  // of the cotangents at a time, if the shapes allow it
constexpr int64_t kImageSumBytes = 16 << 20;   // of the float32 sums of a cotangent of x of 16 bits
constexpr int64_t kWeightSumBytes = 16 << 20;  // of the weight's sums, unless there is only one part

int64_t RoundUp(int64_t size, int64_t multiple) {
  return SaturatingMultiply(size / multiple + (size % multiple != 0), multiple);
}

}  // namespace

CotangentPlan::CotangentPlan(DType dtype, const Sizes& sizes, const Product& product, bool of_x, bool of_positions,
                             bool of_weight)
    : of_x(of_x), of_positions(of_positions), of_weight(of_weight) {
  const int64_t group_channels = sizes.channels / product.groups, features = product.group_features();
  slice_channels = std::min(kSliceChannels, group_channels);
  group_slices = 1 + (group_channels - 1) / slice_channels;
  slices = group_slices * product.groups;
  padded_channels = RoundUp(slice_channels, kFeaturePadding);
  parts = std::min(std::max<int64_t>(1, sizes.images), 1 + (kTasks - 1) / slices);
  const int64_t weight_size = SaturatingProduct({sizes.taps(), slices, padded_channels, features});
  const int64_t weight_bytes = std::max<int64_t>(1, SaturatingMultiply(sizeof(float), weight_size));
  if (of_weight) parts = std::clamp(kWeightSumBytes / weight_bytes, int64_t{1}, parts);
  slots = slices * parts;
  packed_weight = 0;
  weight_sums = SaturatingAdd(packed_weight, of_x || of_positions ? weight_size : 0);
  image_sums = SaturatingAdd(weight_sums, of_weight ? SaturatingMultiply(parts, weight_size) : 0);
  size = image_sums;
  if (of_x && dtype != DType::kF32) {
    const int64_t image = SaturatingProduct({sizes.height, sizes.width, padded_channels});
    const int64_t image_bytes = std::max<int64_t>(1, SaturatingMultiply(sizeof(float), image));
    slots = std::clamp(kImageSumBytes / image_bytes, int64_t{1}, slots);
    size = SaturatingAdd(size, SaturatingMultiply(slots, image));
  }
}

int64_t FusedForwardWorkspace(const Sizes& sizes, const Product& product) {
  return SaturatingProduct({sizes.taps(), sizes.channels, RoundUp(product.group_features(), kFeaturePadding)});
}

int64_t FusedCotangentsTasks(DType dtype, const Sizes& sizes, const Product& product, bool of_x, bool of_positions,
                             bool of_weight) {
  return CotangentPlan(dtype, sizes, product, of_x, of_positions, of_weight).slots;
}

int64_t FusedCotangentsWorkspace(DType dtype, const Sizes& sizes, const Product& product, bool of_x, bool of_positions,
                                 bool of_weight) {
  return CotangentPlan(dtype, sizes, product, of_x, of_positions, of_weight).size;
}

}  // namespace dcn
