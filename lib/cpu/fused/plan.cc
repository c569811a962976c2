// The tiles and the workspaces of the fused convolution. The sizes of workspaces saturate, so that the handlers refuse
// a call whose workspace would have 2^63 elements or more.
#include <algorithm>
#include <limits>

#include "fused/plan.h"
#include "saturating.h"

namespace dcn {
namespace {

#define DCN_CHECK_TILE(set) \
  static_assert(RowOf(InstructionSet::set).tile_pixels <= kMaxCotangentTilePixels, "buffers would be too small");
DCN_INSTRUCTION_SETS(DCN_CHECK_TILE)

// Every tile reads the weight, group by group. If a group's does not fit in the caches, larger tiles read it less
// often.
constexpr int64_t kLargeWeightBytes = 4 << 20;

// With many offset groups, smaller tiles keep the arrays of the samples in the L2 cache. The product needs some rows.
constexpr int64_t kMaxSampleBytes = 256 << 10, kMinSampledPixels = 84;

// A small output has at least kMinTiles tiles, so that several threads have work, unless they would be too small.
constexpr int64_t kMinTiles = 8, kMinTilePixels = 28;

constexpr int64_t kSliceChannels = 64;  // of the cotangents

// Limits of the cotangents' workspace, in floats. A call uses more than kWorkspaceFloats only if fewer than
// kMinConcurrentTasks tasks could run at a time otherwise, or if one part of the images needs more. Beside a large
// weight, the sums of images may take kMinImageSums, so that its slices run at the same time.
constexpr int64_t kWorkspaceFloats = 3 << 20, kMaxWorkspaceFloats = 4 << 20, kMinImageSums = 1 << 20;

int64_t RoundUp(int64_t size, int64_t multiple) {
  return SaturatingMultiply(size / multiple + (size % multiple != 0), multiple);
}

// Whether fewer parts would have as many images in the largest one.
bool HasSpareParts(int64_t images, int64_t parts) {
  if (parts == 1) return false;
  const int64_t largest = 1 + (images - 1) / parts;
  return (parts - 1) * largest >= images;
}

// The elements of a weight whose features are padded.
int64_t PackedSize(const Convolution& convolution) {
  const int64_t features = RoundUp(convolution.product.group_features(), kFeaturePadding);
  return SaturatingProduct({convolution.sizes.taps(), convolution.sizes.channels, features});
}

// How many floats have room for so many elements, which are even or saturated.
int64_t PackedFloats(DType dtype, int64_t elements) {
  const bool is_halved = BytesOf(dtype) == 2 && elements < std::numeric_limits<int64_t>::max();
  return is_halved ? elements / 2 : elements;
}

// The fewest parts that allow kMaxFusedTasks tasks, if the workspace has room for their sums. They do not depend on
// what is requested, so the bits of a cotangent do not depend on which others are.
int64_t ChooseParts(const Sizes& sizes, const Slices& slices) {
  int64_t room = kWorkspaceFloats - slices.packed_size;
  if (slices.image_size > 0) {
    // The sums of images may take half of the workspace, or those of a few images if there is room for as many tasks.
    const int64_t few_images = SaturatingMultiply(kMinConcurrentTasks, slices.image_size);
    const int64_t few_parts = 1 + (kMinConcurrentTasks - 1) / slices.count;
    const int64_t beside_few = kMaxWorkspaceFloats - SaturatingAdd(slices.packed_size, few_images);
    const bool is_enough = beside_few >= SaturatingMultiply(few_parts, slices.weight_size);
    room = std::min(kWorkspaceFloats / 2, is_enough ? beside_few : kWorkspaceFloats);
  }
  int64_t parts = std::min(1 + (kMaxFusedTasks - 1) / slices.count, room / std::max<int64_t>(1, slices.weight_size));
  parts = std::clamp(parts, int64_t{1}, std::max<int64_t>(1, sizes.images));
  while (HasSpareParts(sizes.images, parts)) --parts;
  return parts;
}

}  // namespace

Slices::Slices(const Convolution& convolution) {
  const auto& [dtype, sizes, positions, product] = convolution;
  const int64_t group_channels = convolution.group_channels();
  channels = std::min(kSliceChannels, group_channels);
  in_group = 1 + (group_channels - 1) / channels;
  count = in_group * product.groups;
  padded_channels = RoundUp(channels, kFeaturePadding);
  weight_size = SaturatingProduct({sizes.taps(), count, padded_channels, product.group_features()});
  packed_size = PackedFloats(dtype, weight_size);
  image_size = dtype == DType::kF32 ? 0 : SaturatingProduct({sizes.height, sizes.width, padded_channels});
}

int64_t Slices::BeforeImages(RequestedCotangents requested, int64_t parts) const {
  return SaturatingAdd(PackedWeight(requested), requested.weight ? SaturatingMultiply(parts, weight_size) : 0);
}

InstructionSet InstructionSetFor(InstructionSet best, const Convolution& convolution, bool is_forward) {
  const int64_t pair = PairChannels(RowOf(best).vector_bytes);
  const bool has_pairs = convolution.dtype == DType::kBF16 && convolution.group_channels() % pair == 0 &&
                         convolution.sizes.group_channels() % pair == 0 &&
                         (is_forward || convolution.product.group_features() % pair == 0);
  return has_pairs ? best : RowOf(best).operators;
}

Tiling ForwardTiling(InstructionSet set, const Convolution& convolution) {
  const Sizes& sizes = convolution.sizes;
  const int64_t weight_bytes = PackedSize(convolution) / convolution.product.groups * BytesOf(convolution.dtype);
  const int64_t sampled = std::max(kMaxSampleBytes / (sizes.pixel_samples() * kSampleBytes), kMinSampledPixels);
  const int64_t most = std::min(sampled, weight_bytes > kLargeWeightBytes ? kMaxTilePixels : RowOf(set).tile_pixels);
  return {sizes, std::clamp(sizes.pixels() / kMinTiles, kMinTilePixels, most)};
}

Tiling CotangentTiling(InstructionSet set, const Sizes& sizes) { return {sizes, RowOf(set).tile_pixels}; }

FusedTasks ChooseFusedTasks(const Convolution& convolution, RequestedCotangents requested) {
  const Slices slices(convolution);
  const int64_t parts = ChooseParts(convolution.sizes, slices), tasks = std::min(slices.count * parts, kMaxFusedTasks);
  if (!requested.x || slices.image_size == 0) return {parts, tasks};
  const int64_t before = slices.BeforeImages(requested, parts);
  const int64_t few_images = SaturatingMultiply(kMinConcurrentTasks, slices.image_size);
  const int64_t rest = std::max(kWorkspaceFloats - before, kMinImageSums);
  const int64_t images = std::max(rest, std::min(few_images, kMaxWorkspaceFloats - before)) / slices.image_size;
  return {parts, std::clamp(images, int64_t{1}, tasks)};
}

int64_t FusedTaskCount(const Convolution& convolution, int64_t parts) {
  return SaturatingMultiply(Slices(convolution).count, parts);
}

int64_t FusedForwardWorkspace(const Convolution& convolution) {
  return convolution.dtype == DType::kBF16 ? PackedFloats(convolution.dtype, PackedSize(convolution)) : 0;
}

int64_t FusedCotangentsWorkspace(const Convolution& convolution, RequestedCotangents requested, FusedTasks tasks) {
  const Slices slices(convolution);
  const int64_t images = requested.x ? SaturatingMultiply(tasks.concurrent, slices.image_size) : 0;
  return SaturatingAdd(slices.BeforeImages(requested, tasks.parts), images);
}

}  // namespace dcn
