// The fused cotangents of offset and mask: an implicit GEMM of the output's cotangent (pixels of the output × features)
// and the weight (features × taps and channels), which gives the columns' cotangents.
//
// The cotangents of offset and mask need only four dot products per sample: those of the columns' cotangent with the
// channels of x at the four corners. So a lane multiplies its accumulators with these channels, and the columns'
// cotangents are never stored. A block processes 128 pixels of the output and some taps of one offset group, one tap
// after the other, and 64 or 128 channels at a time. The GEMM's columns are permuted so that the accumulators of a lane
// belong to 8 consecutive channels, which are 16 or 32 consecutive bytes of x at each corner.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "channel_segments.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "positions.h"

namespace dcn {
namespace {

struct Call {
  ChannelSegments segments;
  Sizes sizes;
  Positions positions;
  int32_t pixels, rows, columns;   // output size; `pixels` counts all images
  int32_t pixel_bytes;             // of x
  int32_t feature_chunks, slices;  // chunks and K slices of the features of a group
  int32_t weight_row_chunks;       // chunks in a row of the weight (one input channel)
  int32_t taps, block_taps;        // block_taps: taps per block; the last block may have fewer
  int64_t blocks;
};

struct BlockTile {
  int32_t first_pixel, offset_group, first_tap, taps;

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block) {
    const int32_t tap_tiles = (call.taps + call.block_taps - 1) / call.block_taps;
    first_tap = int32_t(block % tap_tiles) * call.block_taps;
    const int32_t left = call.taps - first_tap;
    taps = left < call.block_taps ? left : call.block_taps;
    offset_group = int32_t(block / tap_tiles % call.sizes.offset_groups);
    first_pixel = int32_t(block / tap_tiles / call.sizes.offset_groups) * kTilePixels;
  }
};

// An iteration of a block's main loop, which runs over taps × channel tiles of the offset group × K slices.
struct Iteration {
  int32_t tap, tile, slice;

  Iteration() = default;
  __device__ Iteration(const Call& call, int32_t first_tap, int32_t iteration) {
    tap = first_tap + iteration / call.slices / call.segments.offset_group_tiles;
    tile = iteration / call.slices % call.segments.offset_group_tiles;
    slice = iteration % call.slices;
  }
  __device__ bool is_first_of_tap() const { return tile == 0 && slice == 0; }
};

// The pixel indices of a sample's corners in x, counted over all images; -1 for a corner that is not read.
struct alignas(16) CornerPixels {
  int32_t pixel[4];
};

// No corner is read if `output_pixel` is -1. Callers assign the result to a local variable before they store it in
// shared memory, because ThreadSanitizer misses writes made through return-value elision.
__device__ CornerPixels FindCornerPixels(const Call& call, int64_t output_pixel, int64_t offset_group, int32_t tap) {
  if (output_pixel < 0) return {{-1, -1, -1, -1}};
  const int64_t sample_index = SampleIndex(call.sizes, output_pixel, offset_group, tap);
  const int64_t first_row = output_pixel / call.sizes.columns / call.sizes.rows * call.sizes.height;
  const BilinearCorners<float> sample =
      LocateSample<float>(call.sizes, call.positions, output_pixel, sample_index, tap);
  CornerPixels corners;
  for (int corner = 0; corner < 4; ++corner) {
    corners.pixel[corner] = sample.is_read(corner) ? int32_t(sample.pixel(corner, first_row, call.sizes.width)) : -1;
  }
  return corners;
}

template <int kChannels>
struct Shared {
  using Tile = CotangentTile<kChannels, 8>;

  struct {
    uint4 cotangent[Tile::kChunksOfA], weight[Tile::kChunksOfB];
  } stages[kStages];
  Iteration iterations[kStages];
  CornerPixels corners[2][kTilePixels];  // double-buffered by tap
  // The dot products with the four corners, per warp that shares the rows; double-buffered by tap.
  float dots[2][Tile::kWarpsN][kTilePixels][4];
  int32_t pixels[kTilePixels];  // of the output; -1 past the end
  BlockTile block_tile;         // in shared memory, like `iterations`, to save registers
};

// The row permutation of B: row r of 32 holds channel ChannelOfRow(r), so that a lane's accumulators of four column
// fragments belong to 8 consecutive channels.
__device__ int ChannelOfRow(int row) { return row % 8 / 2 * 8 + row / 8 * 2 + row % 2; }

// Computes the dot products of the accumulators with the corner pixels over `count` channels from x on, and stores them
// in `dots`, or adds them if `accumulate`. The four lanes that share a row add their partial sums.
template <typename T, typename Tile>
__device__ void StoreDots(const WarpTile<T, Tile>& tile, const CornerPixels* corners, const T* x, int32_t count,
                          int32_t pixel_bytes, bool accumulate, float (&dots)[Tile::kWarpsN][kTilePixels][4]) {
  constexpr int kCornersInFlight = kChunkSize<T> / 4;  // so that four loads are in flight
  const int first_column = tile.first_column() + tile.lane() % 4 * 8;
#pragma unroll
  for (int i = 0; i < Tile::kFragmentsM * 2; ++i) {
    const int row = tile.first_row() + i * 8 + tile.lane() / 4;
    float own_dot = 0;  // dot product with corner lane % 4
#pragma unroll kCornersInFlight
    for (int corner = 0; corner < 4; ++corner) {
      const int32_t pixel = corners[row].pixel[corner];
      float dot = 0;
#pragma unroll
      for (int j = 0; j < Tile::kFragmentsN; j += 4) {
        for (int first = 0; first < 8; first += kChunkSize<T>) {
          const int channel = first_column + j * 8 + first;
          const Words words =
              load_global_or_zeros(x + channel, int64_t{pixel} * pixel_bytes, pixel >= 0 && channel < count);
          for (int word = 0; word < 4; ++word) {
            float value[kWordSize<T>];
            WordToFloats<T>(words.word[word], value);
            for (int v = 0; v < kWordSize<T>; ++v) {
              const int k = first + word * kWordSize<T> + v;
              dot += tile.accumulators[i / 2][j + k / 2][i % 2 * 2 + k % 2] * value[v];
            }
          }
        }
      }
      dot += __shfl_xor_sync(kWholeWarp, dot, 1);
      dot += __shfl_xor_sync(kWholeWarp, dot, 2);
      if (tile.lane() % 4 == corner) own_dot = dot;
    }
    float& stored = dots[tile.first_column() / Tile::kWarpN][row][tile.lane() % 4];
    stored = accumulate ? stored + own_dot : own_dot;
  }
}

// One block per kTilePixels pixels of the output and some taps of an offset group.
template <typename T, int kChannels, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, CotangentTile<kChannels, kWarps>::kResidentBlocks)
    FusedOffsetCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight,
                               const T* __restrict__ d_y, float* d_offset, float* d_mask) {
  using Tile = CotangentTile<kChannels, kWarps>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad;
  auto& shared = *reinterpret_cast<Shared<kChannels>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = int(threadIdx.x / kSliceChunks), chunk = int(threadIdx.x % kSliceChunks);
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block);
    __syncthreads();
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      const bool is_valid = i < call.pixels;
      shared.pixels[thread] = is_valid ? PixelInStrips(call.rows, call.columns, i) : -1;
    }
    __syncthreads();

    auto channels_of = [&](const Iteration& iteration) {
      return call.segments.Tile(block_tile.offset_group * call.segments.offset_group_tiles + iteration.tile);
    };
    auto load_stage = [&](int32_t iteration_index) {
      const Iteration iteration(call, block_tile.first_tap, iteration_index);
      if (thread == 0) shared.iterations[iteration_index % kStages] = iteration;
      const ChannelTile channels = channels_of(iteration);
      auto& stage = shared.stages[iteration_index % kStages];
      if (iteration.is_first_of_tap() && thread < kTilePixels) {
        const CornerPixels corners =
            FindCornerPixels(call, shared.pixels[thread], block_tile.offset_group, iteration.tap);
        shared.corners[iteration.tap % 2][thread] = corners;
      }
      const int32_t k = iteration.slice * kSliceChunks + chunk;
#pragma unroll 1
      for (int i = 0; i < kChannels / kRowsPerLoad; ++i) {
        const int smem_row = row + i * kRowsPerLoad, channel = smem_row / 32 * 32 + ChannelOfRow(smem_row % 32);
        const bool is_valid = k < call.feature_chunks && channel < channels.count;
        const int64_t source_chunk =
            (int64_t{channels.first} + channel) * call.weight_row_chunks + iteration.tap * call.feature_chunks + k;
        copy_async(&stage.weight[swizzled_index(smem_row, chunk)],
                   is_valid ? weight + source_chunk * kChunkSize<T> : weight, !is_valid);
      }
      const int64_t first_chunk = int64_t{call.segments.FeatureGroup(channels.first)} * call.feature_chunks;
#pragma unroll 1
      for (int i = 0; i < kTilePixels / kRowsPerLoad; ++i) {
        const int64_t p = shared.pixels[row + i * kRowsPerLoad];
        const bool is_valid = k < call.feature_chunks && p >= 0;
        copy_async(&stage.cotangent[swizzled_index(row + i * kRowsPerLoad, chunk)],
                   is_valid ? d_y + p * call.segments.features + (first_chunk + k) * kChunkSize<T> : d_y, !is_valid);
      }
    };
    auto store_cotangents = [&](int32_t tap) {
      if (thread >= kTilePixels || shared.pixels[thread] < 0) return;
      const auto& dots = shared.dots[tap % 2];
      float dot[4];
      static_assert(Tile::kWarpsN == 2);
      for (int corner = 0; corner < 4; ++corner) dot[corner] = dots[0][thread][corner] + dots[1][thread][corner];
      const int64_t p = shared.pixels[thread], sample_index = SampleIndex(call.sizes, p, block_tile.offset_group, tap);
      const BilinearCorners<float> sample = LocateSample<float>(call.sizes, call.positions, p, sample_index, tap);
      StorePositionCotangents(call.positions, sample_index, sample, dot, d_offset, d_mask);
    };

    WarpTile<T, Tile> tile;
    const int32_t iterations = block_tile.taps * call.segments.offset_group_tiles * call.slices;
    load_stage(0);
    for (int32_t iteration_index = 0; iteration_index < iterations; ++iteration_index) {
      wait_async_copies();
      __syncthreads();
      const Iteration& iteration = shared.iterations[iteration_index % kStages];
      if (iteration.is_first_of_tap() && iteration.tap > block_tile.first_tap) store_cotangents(iteration.tap - 1);
      if (iteration_index + 1 < iterations) load_stage(iteration_index + 1);
      constexpr bool kRoundToTf32 = true;  // rounds d_y to tf32; the weight is tf32 already
      tile.template MultiplyStage<kRoundToTf32>(shared.stages[iteration_index % kStages].cotangent,
                                                shared.stages[iteration_index % kStages].weight);
      if (iteration.slice < call.slices - 1) continue;
      const ChannelTile channels = channels_of(iteration);
      StoreDots(tile, shared.corners[iteration.tap % 2], x + channels.first, channels.count, call.pixel_bytes,
                iteration.tile > 0, shared.dots[iteration.tap % 2]);
      tile.Clear();
    }
    __syncthreads();
    store_cotangents(block_tile.first_tap + block_tile.taps - 1);
    __syncthreads();
  }
}

template <typename T, typename Tile>
const char* LaunchOffsetCotangent(const Device& device, const Sizes& sizes, const Positions& positions,
                                  const Product& product, int32_t block_taps, const void* x, const void* weight,
                                  const void* d_y, float* d_offset, float* d_mask) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile::kN>);
  static_assert(FusedBlocks::Contain(FusedBlocks::kOffsetCotangent, {Tile::kN, Tile::kWarps, kSharedBytes}));
  CheckCotangentBlock<Tile, kSharedBytes, 164>();
  Call call = {};
  call.segments = ChannelSegments(sizes, product, Tile::kN);
  call.sizes = sizes;
  call.positions = positions;
  call.pixels = int32_t(sizes.pixels());
  call.rows = int32_t(sizes.rows);
  call.columns = int32_t(sizes.columns);
  call.pixel_bytes = int32_t(sizes.channels * sizeof(T));
  call.feature_chunks = call.segments.group_features / kChunkSize<T>;
  call.slices = (call.feature_chunks + kSliceChunks - 1) / kSliceChunks;
  call.taps = sizes.taps();
  call.weight_row_chunks = call.taps * call.feature_chunks;
  call.block_taps = block_taps;
  const int64_t pixel_tiles = (sizes.pixels() + kTilePixels - 1) / kTilePixels;
  call.blocks = pixel_tiles * sizes.offset_groups * ((call.taps + block_taps - 1) / block_taps);
  return Launch<FusedOffsetCotangentKernel<T, Tile::kN, Tile::kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(weight), static_cast<const T*>(d_y), d_offset, d_mask);
}

}  // namespace

const char* FusedOffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                 const Product& product, int32_t block_taps, const void* x, const void* weight,
                                 const void* d_y, float* d_offset, float* d_mask) {
  return DispatchTensorCoreType(dtype, [&](auto tag) {
    return DispatchCotangentTile(SegmentChannels(sizes, product), sizeof(Shared<128>), [&](auto tile) {
      return LaunchOffsetCotangent<decltype(tag), decltype(tile)>(device, sizes, positions, product, block_taps, x,
                                                                  weight, d_y, d_offset, d_mask);
    });
  });
}

}  // namespace dcn
