// The fused weight cotangent: for each tap an implicit GEMM of the columns (channels × pixels of the output) and the
// output's cotangent (pixels × features).
//
// A block computes 128 channels × 64 or 128 features of a tap, in stages of 64 pixels: it samples x as the fused
// forward does. K is the pixels, so that both operands lie MN-major in shared memory, and ldmatrix transposes them on
// the way to the tensor cores. The pixels are divided among blocks (split-K); the caller adds up the partial sums, so
// that the order of the additions is fixed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "channel_segments.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "gather.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "vector.h"

namespace dcn {
namespace {

constexpr int kChannels = FusedLimits::kWeightTile;  // of a block tile
constexpr int kSlicePixels = 16 * kSliceSteps;       // an mma takes 16 pixels

struct Call {
  ChannelSegments segments;
  Sizes sizes;
  Positions positions;
  int32_t pixels, rows, columns;  // output size; `pixels` counts all images
  int32_t split_pixels;           // of a split; the last may have fewer
  CornerSteps steps;              // in x
  int32_t feature_tiles;          // of a group
  int32_t taps;
  int64_t blocks;
};

struct BlockTile {
  int32_t tap, offset_group;
  ChannelTile channels;
  int32_t first_feature, features;
  int32_t first_pixel, pixels;
  int64_t first_row;  // of partial_sums, for the first channel

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block, int32_t tile_features) {
    const int32_t feature_in_group = int32_t(block % call.feature_tiles) * tile_features;
    block /= call.feature_tiles;
    const int32_t channel_tile = int32_t(block % call.segments.tiles);
    block /= call.segments.tiles;
    tap = int32_t(block % call.taps);
    const int64_t split = block / call.taps;

    channels = call.segments.Tile(channel_tile);
    offset_group = call.segments.OffsetGroup(channels.first);
    first_feature = call.segments.FeatureGroup(channels.first) * call.segments.group_features + feature_in_group;
    features = call.segments.group_features - feature_in_group;
    const int64_t first = split * call.split_pixels, left = call.pixels - first;
    first_pixel = int32_t(first);
    pixels = left < 0 ? 0 : left < call.split_pixels ? int32_t(left) : call.split_pixels;
    first_row =
        (split * call.taps + tap) * call.segments.group_channels + channels.first % call.segments.group_channels;
  }
};

template <int kFeatures>
struct Shared {
  using Tile = CotangentTile<kFeatures, 8>;

  struct {
    uint4 samples[Tile::kChunksOfA], cotangent[Tile::kChunksOfB];
  } stages[kStages];
  CornerTable<kSlicePixels> corners[kStages];
  int32_t pixels[kStages][kSlicePixels];  // of the output; -1 past the end of the split
  BlockTile block_tile;                   // in shared memory, because the accumulators need the registers
};

// One block per kChannels channels of a segment × kFeatures features of a group, for one tap and one split.
template <typename T, int kFeatures, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, CotangentTile<kFeatures, kWarps>::kResidentBlocks)
    FusedWeightCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ d_y, float* partial_sums) {
  using Tile = CotangentTile<kFeatures, kWarps>;
  constexpr int kThreads = Tile::kThreads;
  constexpr int kSampleChunks = kChannels / kChunkSize<T>, kCotangentChunks = kFeatures / kChunkSize<T>;  // of a pixel
  static_assert(Tile::kM == kChannels && kSlicePixels * kSampleChunks == Tile::kChunksOfA &&
                kSlicePixels * kCotangentChunks == Tile::kChunksOfB);
  auto& shared = *reinterpret_cast<Shared<kFeatures>*>(dynamic_shared);
  const BlockTile& block_tile = shared.block_tile;
  const int thread = int(threadIdx.x);

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block, kFeatures);
    __syncthreads();

    auto find_corners = [&](int32_t slice) {
      if (thread >= kSlicePixels) return;
      const int32_t i = slice * kSlicePixels + thread;
      const int32_t p = i < block_tile.pixels ? PixelInStrips(call.rows, call.columns, block_tile.first_pixel + i) : -1;
      shared.pixels[slice % kStages][thread] = p;
      shared.corners[slice % kStages].Store(
          thread, FindCorners(call.sizes, call.positions, p, block_tile.offset_group, block_tile.tap));
    };
    auto load_stage = [&](int32_t slice) {
      auto& stage = shared.stages[slice % kStages];
#pragma unroll 1
      for (int i = 0; i < Tile::kChunksOfB / kThreads; ++i) {
        const int row = int(threadIdx.x / kCotangentChunks) + i * (kThreads / kCotangentChunks);
        const int chunk = int(threadIdx.x % kCotangentChunks);
        const int64_t p = shared.pixels[slice % kStages][row];
        const bool is_valid = p >= 0 && chunk * kChunkSize<T> < block_tile.features;
        copy_async(&stage.cotangent[swizzled_index<kCotangentChunks>(row, chunk)],
                   is_valid ? d_y + p * call.segments.features + block_tile.first_feature + chunk * kChunkSize<T> : d_y,
                   !is_valid);
      }
#pragma unroll 1
      for (int i = 0; i < Tile::kChunksOfA / kThreads; ++i) {
        const int row = int(threadIdx.x / kSampleChunks) + i * (kThreads / kSampleChunks);
        const int chunk = int(threadIdx.x % kSampleChunks);
        const CornerLoads<T> loads(shared.corners[slice % kStages], row,
                                   x + block_tile.channels.first + chunk * kChunkSize<T>, call.steps,
                                   chunk * kChunkSize<T> < block_tile.channels.count);
        stage.samples[swizzled_index<kSampleChunks>(row, chunk)] = loads.Blend(0);
      }
    };

    WarpTile<T, Tile, Layout::kMNMajor> tile;
    find_corners(0);
    find_corners(1);
    __syncthreads();
    load_stage(0);
    for (int32_t slice = 0; slice * kSlicePixels < block_tile.pixels; ++slice) {
      wait_async_copies();
      __syncthreads();
      if ((slice + 1) * kSlicePixels < block_tile.pixels) load_stage(slice + 1);
      find_corners(slice + 2);
      tile.MultiplyStage(shared.stages[slice % kStages].samples, shared.stages[slice % kStages].cotangent);
    }
    tile.ForEachPair(block_tile.first_feature, [&](int channel, int32_t feature, float first, float second) {
      if (channel >= block_tile.channels.count || feature >= block_tile.first_feature + block_tile.features) return;
      AsVector<2>(partial_sums + (block_tile.first_row + channel) * call.segments.features +
                  feature) = {{first, second}};
    });
    wait_async_copies();  // a split without pixels issued copies but ran no iteration
    __syncthreads();
  }
}

template <typename T, typename Tile>
const char* LaunchWeightCotangent(const Device& device, const Sizes& sizes, const Positions& positions,
                                  const Product& product, int64_t num_splits, const void* x, const void* d_y,
                                  float* partial_sums) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile::kN>);
  static_assert(FusedBlocks::Contain(FusedBlocks::kWeightCotangent, {Tile::kN, Tile::kWarps, kSharedBytes}));
  CheckCotangentBlock<Tile, kSharedBytes, 164>();
  Call call = {};
  call.segments = ChannelSegments(sizes, product, kChannels);
  call.sizes = sizes;
  call.positions = positions;
  call.pixels = int32_t(sizes.pixels());
  call.rows = int32_t(sizes.rows);
  call.columns = int32_t(sizes.columns);
  call.steps = CornerSteps(sizes, sizes.channels * int64_t{sizeof(T)});
  call.feature_tiles = (call.segments.group_features + Tile::kN - 1) / Tile::kN;
  call.taps = sizes.taps();
  const int64_t slices = (sizes.pixels() + kSlicePixels - 1) / kSlicePixels;
  call.split_pixels = (slices + num_splits - 1) / num_splits * kSlicePixels;
  call.blocks = num_splits * call.taps * call.segments.tiles * call.feature_tiles;
  return Launch<FusedWeightCotangentKernel<T, Tile::kN, Tile::kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(d_y), partial_sums);
}

}  // namespace

const char* FusedWeightCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                 const Product& product, int64_t num_splits, const void* x, const void* d_y,
                                 float* partial_sums) {
  const auto launch = [&](auto tag) {
    return DispatchCotangentTile(product.group_features(), sizeof(Shared<128>), [&](auto tile) {
      return LaunchWeightCotangent<decltype(tag), decltype(tile)>(device, sizes, positions, product, num_splits, x, d_y,
                                                                  partial_sums);
    });
  };
  if (dtype == DType::kF16) return launch(__half());
  if (dtype == DType::kBF16) return launch(__nv_bfloat16());
  return "the tensor cores transpose only 16-bit numbers";
}

}  // namespace dcn
