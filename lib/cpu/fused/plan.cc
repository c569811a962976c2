// The tiles and the workspaces of the fused convolution. The sizes of workspaces saturate, so that the handlers refuse
// a call whose workspace would have 2^63 elements or more.
#include <algorithm>

#include "ffi/saturating.h"
#include "fused/call.h"
#include "fused/kernels.h"

namespace dcn {
namespace {

// The operands of a product fit in the caches: a panel of the weight in the L1, the samples of a tile in the L2 cache.
constexpr int64_t kTilePixels = 210;
constexpr int64_t kTilePixelsOfAmx = 252;  // nearly whole blocks of 32 rows
static_assert(std::max(kTilePixels, kTilePixelsOfAmx) <= kMaxCotangentTilePixels, "buffers would be too small");

// Every tile reads the weight, group by group. If a group's does not fit in the caches, larger tiles read it less
// often.
constexpr int64_t kLargeWeightBytes = 4 << 20;

// With many offset groups, smaller tiles keep the arrays of the samples in the L2 cache. The product needs some rows.
constexpr int64_t kMaxSampleBytes = 256 << 10, kMinSampledPixels = 84;

constexpr int64_t kMinTilePixels = 28;  // of small outputs, so that several threads have some
constexpr int64_t kMinTiles = 8;

constexpr int64_t kSliceChannels = 64;         // of the cotangents
constexpr int64_t kMaxTasks = 32;              // at a time, of the cotangents
constexpr int64_t kWorkspaceFloats = 4 << 20;  // of the cotangents, unless one part of the images needs more
constexpr int64_t kMinImageSums = 1 << 20;     // floats that image sums may always take

int64_t RoundUp(int64_t size, int64_t multiple) {
  return SaturatingMultiply(size / multiple + (size % multiple != 0), multiple);
}

// Whether fewer parts would have as many images in the largest one.
bool HasSpareParts(int64_t images, int64_t parts) {
  if (parts == 1) return false;
  const int64_t largest = 1 + (images - 1) / parts;
  return (parts - 1) * largest >= images;
}

int64_t TilePixels(InstructionSet set) { return set == InstructionSet::kAmx ? kTilePixelsOfAmx : kTilePixels; }

}  // namespace

InstructionSet InstructionSetFor(InstructionSet best, DType dtype, const FusedCall& call, bool is_forward) {
  const bool has_pairs = dtype == DType::kBF16 && call.group_channels() % kPairChannels == 0 &&
                         call.sizes.group_channels() % kPairChannels == 0 &&
                         (is_forward || call.product.group_features() % kPairChannels == 0);
  return has_pairs ? best : std::min(best, InstructionSet::kAvx512);
}

Tiling ForwardTiling(InstructionSet set, const FusedCall& call) {
  const int64_t value_bytes = set >= InstructionSet::kAvx512Bf16 ? 2 : 4;  // of the packed weight
  const int64_t weight_bytes = FusedForwardWorkspace(call.sizes, call.product) / call.product.groups * value_bytes;
  const int64_t pixel_bytes = std::max<int64_t>(1, call.sizes.offset_groups * call.sizes.taps()) * kSampleBytes;
  const int64_t sampled = std::max(kMaxSampleBytes / pixel_bytes, kMinSampledPixels);
  const int64_t most = std::min(sampled, weight_bytes > kLargeWeightBytes ? kMaxTilePixels : TilePixels(set));
  return {call.sizes, std::clamp(call.sizes.pixels() / kMinTiles, kMinTilePixels, most)};
}

Tiling CotangentTiling(InstructionSet set, const Sizes& sizes) { return {sizes, TilePixels(set)}; }

CotangentPlan::CotangentPlan(DType dtype, const Sizes& sizes, const Product& product, RequestedCotangents requested)
    : requested(requested) {
  const int64_t group_channels = sizes.channels / product.groups, features = product.group_features();
  slice_channels = std::min(kSliceChannels, group_channels);
  group_slices = 1 + (group_channels - 1) / slice_channels;
  slices = group_slices * product.groups;
  padded_channels = RoundUp(slice_channels, kFeaturePadding);
  const int64_t weight_size = SaturatingProduct({sizes.taps(), slices, padded_channels, features});
  const bool has_image_sums = requested.x && dtype != DType::kF32;
  const int64_t image_size =
      has_image_sums ? SaturatingProduct({sizes.height, sizes.width, padded_channels}) : int64_t{0};
  packed_weight = 0;
  weight_sums = requested.x || requested.positions ? weight_size : 0;
  // As few parts as allow the most tasks at a time.
  slots = 0;
  const int64_t max_parts = std::clamp(1 + (kMaxTasks - 1) / slices, int64_t{1}, std::max<int64_t>(1, sizes.images));
  for (int64_t count = 1; count <= max_parts; ++count) {
    if (HasSpareParts(sizes.images, count)) continue;
    const int64_t sums = requested.weight ? SaturatingMultiply(count, weight_size) : 0;
    const int64_t rest = kWorkspaceFloats - SaturatingAdd(weight_sums, sums);
    if (count > 1 && rest < 0) break;
    const int64_t images = image_size == 0 ? kMaxTasks : std::max(rest, kMinImageSums) / image_size;
    const int64_t tasks = std::clamp(images, int64_t{1}, slices * count);
    if (tasks > slots) {
      slots = tasks;
      parts = count;
      image_sums = SaturatingAdd(weight_sums, sums);
    }
  }
  size = SaturatingAdd(image_sums, SaturatingMultiply(slots, image_size));
}

int64_t FusedForwardWorkspace(const Sizes& sizes, const Product& product) {
  return SaturatingProduct({sizes.taps(), sizes.channels, RoundUp(product.group_features(), kFeaturePadding)});
}

int64_t FusedCotangentsTasks(DType dtype, const Sizes& sizes, const Product& product, RequestedCotangents requested) {
  return CotangentPlan(dtype, sizes, product, requested).slots;
}

int64_t FusedCotangentsWorkspace(DType dtype, const Sizes& sizes, const Product& product,
                                 RequestedCotangents requested) {
  return CotangentPlan(dtype, sizes, product, requested).size;
}

}  // namespace dcn
