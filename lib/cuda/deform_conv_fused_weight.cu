// The fused weight cotangent: for each tap a matrix product of samples and the output's cotangents, along the pixels.
//
// A block computes 128 channels by 64 or 128 features of a tap, from some of the pixels, in stages of 64: it samples x
// as the fused forward does, and both operands are transposed on their way from shared memory to the matrix units. What
// the parts of the pixels give is summed by the caller, so that the order of the sums is fixed.
//
// What to expect of an H200 in bfloat16, counted and not yet measured, in the clocks of a multiprocessor for a stage of
// 128 channels by 128 features: products 825, instructions 480 to sample and 150 to multiply, loads and shared memory
// 900. Two blocks share a multiprocessor: 35 to 45% of the dense peak.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "deform_conv_fused.h"
#include "device.h"
#include "gather.h"
#include "launch.h"
#include "tiles.h"

namespace dcn {
namespace {

constexpr int kChannels = 128, kStage = 64;  // rows of a block's product; pixels of a stage

struct Call {
  Sizes sizes;
  Positions positions;
  int32_t channels, group_channels, offset_group_channels, segment_channels;
  int32_t features, group_features;
  int32_t segment_tiles, channel_tiles, feature_tiles;  // of a segment, of all channels, of a group's features
  int32_t taps;
  int64_t part_pixels, blocks;
};

// What a block computes: all that there is of kChannels by some features, from some pixels.
struct BlockTile {
  int32_t tap, offset_group;
  int32_t first_channel, channels, first_feature, features;
  int64_t first_pixel;
  int32_t pixels;
  int64_t out;  // the row of all parts that its first channel has

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block, int32_t width) {
    const int32_t tile_feature = int32_t(block % call.feature_tiles) * width;
    block /= call.feature_tiles;
    const int32_t tile = int32_t(block % call.channel_tiles), tile_channel = tile % call.segment_tiles * kChannels;
    block /= call.channel_tiles;
    tap = int32_t(block % call.taps);
    const int64_t part = block / call.taps;

    first_channel = tile / call.segment_tiles * call.segment_channels + tile_channel;
    channels = call.segment_channels - tile_channel;
    offset_group = first_channel / call.offset_group_channels;
    first_feature = first_channel / call.group_channels * call.group_features + tile_feature;
    features = call.group_features - tile_feature;
    first_pixel = part * call.part_pixels;
    const int64_t left = call.sizes.pixels() - first_pixel;
    pixels = int32_t(left < 0 ? 0 : left < call.part_pixels ? left : call.part_pixels);
    out = (part * call.taps + tap) * call.group_channels + first_channel % call.group_channels;
  }
};

template <int kFeatures>
struct Shared {
  struct {
    uint4 samples[kStage * kChannels / 8], cotangent[kStage * kFeatures / 8];
  } stages[2];
  Corners corners[2][kStage];
  int32_t pixels[2][kStage];  // of the output, -1 behind the last of the part
  BlockTile block_tile;       // here, for it would take registers that the sums need
};

// A block for kChannels of a segment by kFeatures of a group, of a tap and a part of the pixels.
template <typename T, int kFeatures>
__global__ void __launch_bounds__(BlockProduct<T, kFeatures>::kThreads, 2)
    FusedWeightCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ d_y, float* parts) {
  using Sums = BlockProduct<T, kFeatures>;
  constexpr int kVector = 8, kSamples = kChannels / kVector, kCotangents = kFeatures / kVector;
  auto& shared = *reinterpret_cast<Shared<kFeatures>*>(dynamic_shared);
  const BlockTile& block_tile = shared.block_tile;
  const int thread = int(threadIdx.x);

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block, kFeatures);
    __syncthreads();

    auto find_corners = [&](int32_t stage) {
      if (thread >= kStage) return;
      const int32_t i = stage * kStage + thread;
      const int64_t p =
          i < block_tile.pixels ? PixelInStrips(call.sizes.rows, call.sizes.columns, block_tile.first_pixel + i) : -1;
      const Corners corners = FindCorners(call.sizes, call.positions, p, block_tile.offset_group, block_tile.tap);
      shared.pixels[stage % 2][thread] = int32_t(p);
      shared.corners[stage % 2][thread] = corners;
    };
    auto load_stage = [&](int32_t stage) {
      auto& to = shared.stages[stage % 2];
#pragma unroll 1
      for (int i = 0; i < kStage * kCotangents / Sums::kThreads; ++i) {
        const int number = i * Sums::kThreads + thread, row = number / kCotangents, vector = number % kCotangents;
        const int64_t p = shared.pixels[stage % 2][row];
        const bool used = p >= 0 && vector * kVector < block_tile.features;
        copy_async(&to.cotangent[swizzled_index<kCotangents>(row, vector)],
                   used ? d_y + p * call.features + block_tile.first_feature + vector * kVector : d_y, !used);
      }
#pragma unroll 1
      for (int i = 0; i < kStage * kSamples / Sums::kThreads; ++i) {
        const int number = i * Sums::kThreads + thread, row = number / kSamples, vector = number % kSamples;
        const CornerLoads<T> gathered(shared.corners[stage % 2][row], x + block_tile.first_channel + vector * kVector,
                                      call.channels * int32_t(sizeof(T)), vector * kVector < block_tile.channels);
        to.samples[swizzled_index<kSamples>(row, vector)] = gathered.Blend(0);
      }
    };

    Sums sums;
    find_corners(0);
    find_corners(1);
    __syncthreads();
    load_stage(0);
    for (int32_t stage = 0; stage * kStage < block_tile.pixels; ++stage) {
      wait_async_copies();
      __syncthreads();
      if ((stage + 1) * kStage < block_tile.pixels) load_stage(stage + 1);
      find_corners(stage + 2);
      sums.AddAcross(shared.stages[stage % 2].samples, shared.stages[stage % 2].cotangent);
    }
    sums.ForEachPair(block_tile.first_feature, [&](int channel, int32_t feature, float first, float second) {
      if (channel >= block_tile.channels || feature >= block_tile.first_feature + block_tile.features) return;
      AsVector<2>(parts + (block_tile.out + channel) * call.features + feature) = {{first, second}};
    });
    wait_async_copies();  // those of a part without pixels
    __syncthreads();
  }
}

template <typename T, int kFeatures>
const char* LaunchProduct(const Device& device, const Sizes& sizes, const Positions& positions, const Product& product,
                          int64_t splits, const void* x, const void* d_y, float* parts) {
  Call call = {};
  call.sizes = sizes;
  call.positions = positions;
  call.channels = int32_t(sizes.channels);
  call.group_channels = int32_t(sizes.channels / product.groups);
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.segment_channels = int32_t(SegmentChannels(sizes, product));
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.segment_tiles = (call.segment_channels + kChannels - 1) / kChannels;
  call.channel_tiles = call.channels / call.segment_channels * call.segment_tiles;
  call.feature_tiles = (call.group_features + kFeatures - 1) / kFeatures;
  call.taps = sizes.taps();
  const int64_t stages = (sizes.pixels() + kStage - 1) / kStage;
  call.part_pixels = (stages + splits - 1) / splits * kStage;
  call.blocks = splits * call.taps * call.channel_tiles * call.feature_tiles;
  return Launch(device, FusedWeightCotangentKernel<T, kFeatures>,
                {call.blocks, BlockProduct<T, kFeatures>::kThreads, sizeof(Shared<kFeatures>)}, call,
                static_cast<const T*>(x), static_cast<const T*>(d_y), parts);
}

}  // namespace

const char* FusedWeightCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                 const Product& product, int64_t splits, const void* x, const void* d_y, float* parts) {
  const auto launch = [&](auto tag) {
    using T = decltype(tag);
    const auto of_tile = product.group_features() > 64 ? LaunchProduct<T, 128> : LaunchProduct<T, 64>;
    return of_tile(device, sizes, positions, product, splits, x, d_y, parts);
  };
  if (dtype == DType::kF16) return launch(__half());
  if (dtype == DType::kBF16) return launch(__nv_bfloat16());
  return "the tensor cores transpose only 16-bit numbers";
}

}  // namespace dcn
