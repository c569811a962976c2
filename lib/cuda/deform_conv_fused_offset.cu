// The fused cotangents of offset and mask: the columns' cotangents, a matrix product of weight and output's cotangent,
// are multiplied with x where they come out of the matrix units.
//
// A block takes 128 pixels of the output and some taps of one offset group, a tap after the other, by 64 or 128
// channels at a time. Its columns are so ordered that a lane's sums are of 8 channels in a row, and so are the 16 bytes
// it reads at each corner.
//
// What to expect of an H200 in bfloat16, counted and not yet measured, in the clocks of a multiprocessor for a tap of
// 128 pixels, 128 channels and 128 features: products 1,650; for the corners, 1,400 of instructions and 1,000 of the
// first cache. Two blocks share a multiprocessor: 35 to 45% of the dense peak, more of it where features are many.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "deform_conv_fused.h"
#include "device.h"
#include "gather.h"
#include "launch.h"
#include "tiles.h"

namespace dcn {
namespace {

struct Call {
  Sizes sizes;
  Positions positions;
  int32_t pixel_bytes, group_channels, offset_group_channels, segment_channels;
  int32_t segment_tiles, tiles;  // of a segment, of an offset group
  int32_t features, vectors;     // of the output; of 16 bytes in a group's
  int32_t stages, depth;         // of a group's features; vectors of all taps
  int32_t taps, block_taps;      // of which a block takes so many
  int64_t blocks;
};

// What a block computes: some taps of an offset group.
struct BlockTile {
  int64_t first_pixel;
  int32_t offset_group, first_tap, taps;

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block) {
    const int32_t parts = (call.taps + call.block_taps - 1) / call.block_taps;
    first_tap = int32_t(block % parts) * call.block_taps;
    const int32_t left = call.taps - first_tap;
    taps = left < call.block_taps ? left : call.block_taps;
    offset_group = int32_t(block / parts % call.sizes.offset_groups);
    first_pixel = block / parts / call.sizes.offset_groups * kPixels;
  }
};

// Where a block is on its way: taps by tiles of channels by stages.
struct Iteration {
  int32_t tap, tile, stage;

  Iteration() = default;
  __device__ Iteration(const Call& call, int32_t first_tap, int32_t iteration) {
    tap = first_tap + iteration / call.stages / call.tiles;
    tile = iteration / call.stages % call.tiles;
    stage = iteration % call.stages;
  }
};

template <int kChannels>
struct Shared {
  struct {
    uint4 cotangent[kPixels * kDepth], weight[kChannels * kDepth];
  } stages[2];
  Iteration iterations[2];       // of the stages
  Corners corners[2][kPixels];   // of a tap and the next
  float dots[2][2][kPixels][4];  // likewise: with the corners, of half the columns each
  int32_t pixels[kPixels];       // of the output, -1 behind the last
  BlockTile block_tile;          // here, as the iterations, for they would take registers that the sums need
};

// A tile of channels.
struct Channels {
  int32_t first, count;

  __device__ Channels(const Call& call, int32_t g, int32_t tile, int32_t width) {
    const int32_t within = tile % call.segment_tiles * width, left = call.segment_channels - within;
    first = g * call.offset_group_channels + tile / call.segment_tiles * call.segment_channels + within;
    count = left < width ? left : width;
  }
};

// The channel, of 32, whose weights are row `row` of as many: in the lanes' sums, four tiles of 8 columns make 8
// channels in a row.
__device__ int ChannelOfRow(int row) { return row % 8 / 2 * 8 + row / 8 * 2 + row % 2; }

// Adds to `dots`, or sets them, the dot products of a tile's sums with the corners of the samples: of `count` channels
// of x from `x` on. Each half of the columns has its own dots, which the lanes that share a row put together.
template <typename T, int kChannels>
__device__ void TakeDots(const BlockProduct<T, kChannels>& sums, const Corners* corners, const T* x, int32_t count,
                         int32_t pixel_bytes, bool add, float (&dots)[2][kPixels][4]) {
  using Sums = BlockProduct<T, kChannels>;
  constexpr int kVector = 16 / sizeof(T), kCornersAtOnce = kVector / 4;  // with four loads on their way
  const int first_column = sums.first_column() + sums.lane() % 4 * 8;
#pragma unroll
  for (int i = 0; i < Sums::kRowTiles * 2; ++i) {
    const int row = sums.first_row() + i * 8 + sums.lane() / 4;
    float dot = 0;  // with the corner that is the lane's in the end
#pragma unroll kCornersAtOnce
    for (int corner = 0; corner < 4; ++corner) {
      const int32_t pixel = corners[row].pixel[corner];
      float sum = 0;
#pragma unroll
      for (int part = 0; part < Sums::kColumnTiles / 4; ++part) {
        for (int within = 0; within < 8; within += kVector) {
          const int channel = first_column + part * 32 + within;
          const Words words =
              load_global_or_zeros(x + channel, int64_t{pixel} * pixel_bytes, pixel >= 0 && channel < count);
          for (int word = 0; word < 4; ++word) {
            float value[kWordSize<T>];
            WordToFloats<T>(words.word[word], value);
            for (int v = 0; v < kWordSize<T>; ++v) {
              const int column = within + word * kWordSize<T> + v;
              sum += sums.sum[i / 2][part * 4 + column / 2][i % 2 * 2 + column % 2] * value[v];
            }
          }
        }
      }
      sum += __shfl_xor_sync(kWholeWarp, sum, 1);
      sum += __shfl_xor_sync(kWholeWarp, sum, 2);
      if (sums.lane() % 4 == corner) dot = sum;
    }
    float& kept = dots[sums.first_column() != 0][row][sums.lane() % 4];
    kept = add ? kept + dot : dot;
  }
}

// A block for kPixels of the output and some taps of an offset group.
template <typename T, int kChannels>
__global__ void __launch_bounds__(BlockProduct<T, kChannels>::kThreads, 2)
    FusedOffsetCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight,
                               const T* __restrict__ d_y, float* d_offset, float* d_mask) {
  using Sums = BlockProduct<T, kChannels>;
  constexpr int kVector = 16 / sizeof(T), kRowsAtOnce = Sums::kThreads / kDepth;
  auto& shared = *reinterpret_cast<Shared<kChannels>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = thread / kDepth, vector = thread % kDepth;
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block);
    __syncthreads();
    if (thread < kPixels) {
      const int64_t i = block_tile.first_pixel + thread;
      const bool there = i < call.sizes.pixels();
      shared.pixels[thread] = there ? int32_t(PixelInStrips(call.sizes.rows, call.sizes.columns, i)) : -1;
    }
    __syncthreads();

    auto load_stage = [&](int32_t number) {
      const Iteration iteration(call, block_tile.first_tap, number);
      if (thread == 0) shared.iterations[number % 2] = iteration;
      const Channels channels(call, block_tile.offset_group, iteration.tile, kChannels);
      auto& to = shared.stages[number % 2];
      if (iteration.tile == 0 && iteration.stage == 0 && thread < kPixels) {
        const Corners corners =
            FindCorners(call.sizes, call.positions, shared.pixels[thread], block_tile.offset_group, iteration.tap);
        shared.corners[iteration.tap % 2][thread] = corners;
      }
      const int32_t at = iteration.stage * kDepth + vector;
#pragma unroll 1
      for (int i = 0; i < kChannels / kRowsAtOnce; ++i) {
        const int to_row = row + i * kRowsAtOnce, channel = to_row / 32 * 32 + ChannelOfRow(to_row % 32);
        const bool used = at < call.vectors && channel < channels.count;
        const int64_t from = (int64_t{channels.first} + channel) * call.depth + iteration.tap * call.vectors + at;
        copy_async(&to.weight[swizzled_index(to_row, vector)], used ? weight + from * kVector : weight, !used);
      }
      const int64_t first_feature = int64_t{channels.first / call.group_channels} * call.vectors * kVector;
#pragma unroll 1
      for (int i = 0; i < kPixels / kRowsAtOnce; ++i) {
        const int64_t p = shared.pixels[row + i * kRowsAtOnce];
        const bool used = at < call.vectors && p >= 0;
        copy_async(&to.cotangent[swizzled_index(row + i * kRowsAtOnce, vector)],
                   used ? d_y + p * call.features + first_feature + at * kVector : d_y, !used);
      }
    };
    auto finish = [&](int32_t tap) {
      if (thread >= kPixels || shared.pixels[thread] < 0) return;
      const auto& halves = shared.dots[tap % 2];
      float dot[4];
      for (int corner = 0; corner < 4; ++corner) dot[corner] = halves[0][thread][corner] + halves[1][thread][corner];
      const int64_t p = shared.pixels[thread], position = PositionIndex(call.sizes, p, block_tile.offset_group, tap);
      const BilinearCorners<float> sample = LocateSample<float>(call.sizes, call.positions, p, position, tap);
      StorePositionCotangents(call.positions, position, sample, dot, d_offset, d_mask);
    };

    Sums sums;
    const int32_t iterations = block_tile.taps * call.tiles * call.stages;
    load_stage(0);
    for (int32_t number = 0; number < iterations; ++number) {
      wait_async_copies();
      __syncthreads();
      const Iteration& iteration = shared.iterations[number % 2];
      if (iteration.tile == 0 && iteration.stage == 0 && iteration.tap > block_tile.first_tap)
        finish(iteration.tap - 1);
      if (number + 1 < iterations) load_stage(number + 1);
      sums.Add(shared.stages[number % 2].cotangent, shared.stages[number % 2].weight);
      if (iteration.stage < call.stages - 1) continue;
      const Channels channels(call, block_tile.offset_group, iteration.tile, kChannels);
      TakeDots(sums, shared.corners[iteration.tap % 2], x + channels.first, channels.count, call.pixel_bytes,
               iteration.tile > 0, shared.dots[iteration.tap % 2]);
      sums.Clear();
    }
    __syncthreads();
    finish(block_tile.first_tap + block_tile.taps - 1);
    __syncthreads();
  }
}

template <typename T, int kChannels>
const char* LaunchProduct(const Device& device, const Sizes& sizes, const Positions& positions, const Product& product,
                          int32_t block_taps, const void* x, const void* weight, const void* d_y, float* d_offset,
                          float* d_mask) {
  Call call = {};
  call.sizes = sizes;
  call.positions = positions;
  call.pixel_bytes = int32_t(sizes.channels * sizeof(T));
  call.group_channels = int32_t(sizes.channels / product.groups);
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.segment_channels = int32_t(SegmentChannels(sizes, product));
  call.segment_tiles = (call.segment_channels + kChannels - 1) / kChannels;
  call.tiles = call.offset_group_channels / call.segment_channels * call.segment_tiles;
  call.features = int32_t(product.features);
  call.vectors = int32_t(product.group_features() * sizeof(T) / 16);
  call.stages = (call.vectors + kDepth - 1) / kDepth;
  call.taps = sizes.taps();
  call.depth = call.taps * call.vectors;
  const int64_t tiles = (sizes.pixels() + kPixels - 1) / kPixels * sizes.offset_groups;
  call.block_taps = block_taps;
  call.blocks = tiles * ((call.taps + call.block_taps - 1) / call.block_taps);
  return Launch(device, FusedOffsetCotangentKernel<T, kChannels>,
                {call.blocks, BlockProduct<T, kChannels>::kThreads, sizeof(Shared<kChannels>)}, call,
                static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const T*>(d_y), d_offset, d_mask);
}

}  // namespace

const char* FusedOffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                 const Product& product, int32_t block_taps, const void* x, const void* weight,
                                 const void* d_y, float* d_offset, float* d_mask) {
  return DispatchMatrix(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = SegmentChannels(sizes, product) > 64 ? LaunchProduct<T, 128> : LaunchProduct<T, 64>;
    return launch(device, sizes, positions, product, block_taps, x, weight, d_y, d_offset, d_mask);
  });
}

}  // namespace dcn
