// The tiles and the workspaces of the fused convolution. The sizes of workspaces saturate, so that the handlers refuse
// a call whose workspace would have 2^63 elements or more.
#include <algorithm>
#include <limits>

#include "deform_conv/fused_cpu/plan.h"
#include "saturating.h"

namespace dcn {
namespace {

#define DCN_CHECK_TILE(set, ...) \
  static_assert(RowOf(InstructionSet::set).tile_pixels <= kMaxCotangentTilePixels, "buffers would be too small");
DCN_INSTRUCTION_SETS(DCN_CHECK_TILE)

// Every tile reads the weight, group by group. If the weight of a group does not fit in the caches, larger tiles read
// it less often.
constexpr int64_t kLargeWeightBytes = 4 << 20, kMaxTilePixels = 352;

// With many offset groups, smaller tiles keep the samples' arrays in the L2 cache, but a product needs enough rows.
constexpr int64_t kMaxSampleBytes = 256 << 10, kMinSampledPixels = 84;

// A small output has at least kMinTiles tiles, so that several threads have work, unless they would be too small.
constexpr int64_t kMinTiles = 8, kMinTilePixels = 28;

// The cotangents have at least kMinCotangentTasks tasks, unless their tiles would be too small.
constexpr int64_t kMinCotangentTasks = 320, kMinCotangentPixels = 64;

// Limits of the cotangents' workspace, in floats: kWorkspaceFloats, or kMaxWorkspaceFloats where two planes would not
// fit otherwise. Planes may always take kMinPlaneFloats, or what one plane takes, beside the packed weight and one
// split.
constexpr int64_t kWorkspaceFloats = 3 << 20, kMaxWorkspaceFloats = 4 << 20, kMinPlaneFloats = 1 << 20;

// There are enough splits and planes to occupy this many threads.
constexpr int64_t kThreads = 64;

int64_t CeilDivide(int64_t size, int64_t by) { return size / by + (size % by != 0); }
int64_t RoundUp(int64_t size, int64_t multiple) { return SaturatingMultiply(CeilDivide(size, multiple), multiple); }

// The number of elements of the weight if its features are padded.
int64_t PackedSize(const Convolution& convolution) {
  const int64_t features = RoundUp(convolution.product.group_features(), kFeaturePadding);
  return SaturatingProduct({convolution.sizes.taps(), convolution.sizes.channels, features});
}

// How many floats hold this number of elements, which is even or saturated.
int64_t PackedFloats(DType dtype, int64_t elements) {
  const bool is_halved = BytesOf(dtype) == 2 && elements < std::numeric_limits<int64_t>::max();
  return is_halved ? elements / 2 : elements;
}

// The tiles of a plane with the first instruction set's tile size, since the division must be the same for all sets.
int64_t NominalTiles(const Sizes& sizes, const ChannelSlices& slices) {
  return std::max<int64_t>(1, CotangentTiling(InstructionSet{}, sizes, slices).image_tiles());
}

// How many planes need sums at a time to occupy all threads: those whose tiles they compute, one that is being rounded,
// and one more.
int64_t UsefulPlanes(const Sizes& sizes, const ChannelSlices& slices) {
  const int64_t planes = SaturatingMultiply(sizes.images, slices.count);
  return std::clamp<int64_t>(planes, 1, 2 + CeilDivide(kThreads, NominalTiles(sizes, slices)));
}

// The number of splits that occupies all threads, or fewer if the workspace lacks room. It does not depend on what is
// requested, so the bits of a cotangent do not depend on which other ones are requested.
int64_t ChooseSplits(const Sizes& sizes, const ChannelSlices& slices) {
  const int64_t planes = SaturatingMultiply(UsefulPlanes(sizes, slices), slices.plane_size);
  const int64_t few_planes = std::min(planes, kWorkspaceFloats / 2), one_plane = std::min(planes, slices.plane_size);
  const int64_t room = std::min(kWorkspaceFloats - few_planes, kMaxWorkspaceFloats - one_plane) - slices.packed_size;
  const int64_t most = room / std::max<int64_t>(1, slices.weight_size);
  // Tiles of one slice that threads compute at the same time. Between the planes of a slice there are those of others.
  const int64_t tiles = std::min(kThreads, std::max(NominalTiles(sizes, slices), CeilDivide(kThreads, slices.count)));
  const int64_t all_tiles = SaturatingMultiply(NominalTiles(sizes, slices), std::max<int64_t>(1, sizes.images));
  const int64_t useful = CeilDivide(std::min(tiles, all_tiles), SplitRun(sizes));
  return std::clamp(std::min(useful, most), int64_t{1}, kMaxWeightSplits);
}

}  // namespace

ChannelSlices::ChannelSlices(const Convolution& convolution) {
  const auto& [dtype, sizes, positions, product, is_on_grid] = convolution;
  const int64_t group_channels = convolution.group_channels();
  channels = std::min(kMaxChannels, group_channels);
  slices_per_group = 1 + (group_channels - 1) / channels;
  count = slices_per_group * product.groups;
  padded_channels = RoundUp(channels, kFeaturePadding);
  weight_size = SaturatingProduct({sizes.taps(), count, padded_channels, product.group_features()});
  packed_size = PackedFloats(dtype, weight_size);
  plane_size = dtype == DType::kF32 ? 0 : SaturatingProduct({sizes.height, sizes.width, padded_channels});
}

int64_t ChannelSlices::BeforePlanes(RequestedCotangents requested, int64_t num_splits) const {
  return SaturatingAdd(PackedWeightFloats(requested),
                       requested.weight ? SaturatingMultiply(num_splits, weight_size) : 0);
}

InstructionSet InstructionSetFor(InstructionSet best, const Convolution& convolution, bool is_forward) {
  const int64_t pair = PairChannels(RowOf(best).vector_bytes);
  const bool has_pairs = convolution.dtype == DType::kBF16 && convolution.group_channels() % pair == 0 &&
                         convolution.sizes.group_channels() % pair == 0 &&
                         (is_forward || convolution.product.group_features() % pair == 0);
  return has_pairs ? best : OperatorSetOf(best);
}

Tiling ForwardTiling(InstructionSet set, const Convolution& convolution) {
  const Sizes& sizes = convolution.sizes;
  const int64_t weight_bytes = PackedSize(convolution) / convolution.product.groups * BytesOf(convolution.dtype);
  const int64_t sampled = std::max(kMaxSampleBytes / (sizes.pixel_samples() * kSampleBytes), kMinSampledPixels);
  const int64_t most = std::min(sampled, weight_bytes > kLargeWeightBytes ? kMaxTilePixels : RowOf(set).tile_pixels);
  return {sizes, std::clamp(sizes.pixels() / kMinTiles, kMinTilePixels, most)};
}

Tiling CotangentTiling(InstructionSet set, const Sizes& sizes, const ChannelSlices& slices) {
  const int64_t pixels =
      SaturatingProduct({sizes.images, sizes.rows, sizes.columns, slices.count}) / kMinCotangentTasks;
  return {sizes, std::clamp<int64_t>(pixels, kMinCotangentPixels, RowOf(set).tile_pixels)};
}

CotangentDivision ChooseCotangentDivision(const Convolution& convolution, RequestedCotangents requested) {
  const ChannelSlices slices(convolution);
  const int64_t num_splits = ChooseSplits(convolution.sizes, slices);
  if (!requested.x || slices.plane_size == 0) return {num_splits, 1};
  const int64_t before = slices.BeforePlanes(requested, num_splits);
  int64_t room = std::max(kWorkspaceFloats - before, kMinPlaneFloats);
  const int64_t two_planes = SaturatingMultiply(2, slices.plane_size);
  if (SaturatingAdd(before, two_planes) <= kMaxWorkspaceFloats) room = std::max(room, two_planes);
  const int64_t most = std::min(UsefulPlanes(convolution.sizes, slices), kMaxResidentPlanes);
  return {num_splits, std::clamp(room / slices.plane_size, int64_t{1}, most)};
}

int64_t FusedForwardWorkspace(const Convolution& convolution) {
  return convolution.dtype == DType::kBF16 ? PackedFloats(convolution.dtype, PackedSize(convolution)) : 0;
}

int64_t FusedCotangentsWorkspace(const Convolution& convolution, RequestedCotangents requested,
                                 CotangentDivision division) {
  const ChannelSlices slices(convolution);
  const int64_t planes = requested.x ? SaturatingMultiply(division.num_planes, slices.plane_size) : 0;
  return SaturatingAdd(slices.BeforePlanes(requested, division.num_splits), planes);
}

}  // namespace dcn
