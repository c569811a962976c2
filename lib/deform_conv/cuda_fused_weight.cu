// The fused weight cotangent: for each feature group an implicit GEMM of the columns (taps and channels × pixels of the
// output) and the output's cotangent (pixels × features).
//
// A block computes 128 rows × 64 or 128 features, in stages of 64 pixels: it samples x as the fused forward does. K is
// the pixels, so that both operands lie MN-major in shared memory, and ldmatrix transposes them on the way to the
// tensor cores. The pixels are divided among blocks (split-K); the caller adds up the partial sums, so that the order
// of the additions is fixed.
//
// M of the GEMM is counted in chunks of channels. The chunks of a channel segment come tap by tap, one segment after
// the other, so that the samples of a tile are neighbours in `offset` and `mask`.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "deform_conv/cuda_gather.h"
#include "deform_conv/cuda_gemm.h"
#include "deform_conv/cuda_pixel_strips.h"
#include "deform_conv/fused.h"
#include "device.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

constexpr int kSlicePixels = 16 * kSliceSteps;  // an mma takes 16 pixels
constexpr int kTileChunks = FusedLimits::kWeightTile / kChunkSize<__half>;
constexpr int kLineChunks = 8;  // 128 bytes, a line of the L1 cache

// A chunk of the rows of a feature group's GEMM.
struct RowChunk {
  int32_t sample;  // of a pixel in the feature group: segment · taps + tap
  int32_t tap;
  int32_t channel;  // of the group
};

struct Call {
  Sizes sizes;
  Positions positions;
  int64_t pixel_samples;          // of all offset groups
  int32_t pixels, rows, columns;  // output size; `pixels` counts all images
  int32_t split_pixels;           // of a split; the last may have fewer
  CornerSteps steps;              // in x
  int32_t d_y_pixel_bytes;
  int32_t taps, features, group_features, groups, group_channels, offset_group_channels;
  int32_t segment_chunks;             // of a channel segment, see SegmentChannels
  int32_t group_chunks, tile_chunks;  // of the rows of a group, of a tile
  int32_t sample_bits;                // of the index of a sample in a tile
  int32_t group_tiles, feature_tiles;
  int64_t blocks;
  int32_t zero;  // 0, which the compiler does not know

  __device__ RowChunk ChunkAt(int32_t i) const {
    const int32_t sample = i / segment_chunks;
    const int32_t channel_chunk = sample / taps * segment_chunks + i % segment_chunks;
    return {sample, sample % taps, channel_chunk * kChunkSize<__half>};
  }
};

struct BlockTile {
  int32_t first_chunk, chunks;
  int32_t first_sample, samples;  // of a pixel in the feature group
  int64_t first_pixel_sample;     // the index of first_sample among the samples of a pixel
  int32_t first_channel;          // of the feature group
  int32_t first_feature, features;
  int32_t first_pixel, pixels;
  int64_t first_row;  // of partial_sums, for the split

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block, int32_t tile_features) {
    const int32_t feature_in_group = int32_t(block % call.feature_tiles) * tile_features;
    block /= call.feature_tiles;
    first_chunk = int32_t(block % call.group_tiles) * call.tile_chunks;
    block /= call.group_tiles;
    const int32_t group = int32_t(block % call.groups);
    const int64_t split = block / call.groups;

    const int32_t chunks_left = call.group_chunks - first_chunk;
    chunks = chunks_left < call.tile_chunks ? chunks_left : call.tile_chunks;
    first_sample = call.ChunkAt(first_chunk).sample;
    samples = call.ChunkAt(first_chunk + chunks - 1).sample - first_sample + 1;
    first_channel = group * call.group_channels;
    first_pixel_sample = int64_t{first_channel / call.offset_group_channels} * call.taps + first_sample;
    first_feature = group * call.group_features + feature_in_group;
    features = call.group_features - feature_in_group;
    const int64_t first = split * call.split_pixels, left = call.pixels - first;
    first_pixel = int32_t(first);
    pixels = left < 0 ? 0 : left < call.split_pixels ? int32_t(left) : call.split_pixels;
    first_row = split * call.taps * call.group_channels;
  }
};

// The corner tables of a block. With two, it finds the corners of the next slice while it samples this one. Tiles of
// many samples have no shared memory for a second one.
template <int kTileSamples>
constexpr int kCornerTables = kTileSamples == 1 ? 2 : 1;

template <int kFeatures, int kTileSamples>
struct Shared {
  using Tile = CotangentTile<kFeatures, 8>;
  static constexpr int kTables = kCornerTables<kTileSamples>;

  struct {
    uint4 samples[Tile::kChunksOfA], cotangent[Tile::kChunksOfB];
  } stages[kStages];
  Corners corners[kTables][kSlicePixels * kTileSamples];
  int32_t pixels[kTables + 1][kSlicePixels];  // of the output; -1 past the end of the split
  SampledPixel sampled[kTables][kSlicePixels];
  Vector<int32_t, 2> distance[kTileSamples];  // of each sample's tap from the first
  int64_t rows[kTileChunks];                  // of partial_sums, the first of each chunk; -1 past the end
  BlockTile block_tile;                       // in shared memory, because the accumulators need the registers
};

// One block per tile of a group's rows × kFeatures features, for one split.
template <typename T, int kFeatures, int kWarps, int kTileSamples>
__global__ void __launch_bounds__(kWarps* kWarp, CotangentTile<kFeatures, kWarps>::kResidentBlocks)
    FusedWeightCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ d_y, float* partial_sums) {
  using Tile = CotangentTile<kFeatures, kWarps>;
  constexpr int kThreads = Tile::kThreads;
  constexpr int kCotangentChunks = kFeatures / kChunkSize<T>;  // of a pixel
  // In a pass, a thread samples two chunks of a pixel, so that eight threads read a whole line of the L1 cache.
  constexpr int kPassRows = kThreads / kLineChunks, kPasses = kSlicePixels / kPassRows;
  constexpr int kPassSteps = kSliceSteps / kPasses;
  static_assert(Tile::kM == kTileChunks * kChunkSize<T> && kTileChunks == 2 * kLineChunks);
  static_assert(kSlicePixels * kTileChunks == Tile::kChunksOfA && kSlicePixels * kCotangentChunks == Tile::kChunksOfB);
  static_assert(kPassRows % 8 == 0, "the chunks of a thread must have one swizzle in all rows");
  static_assert(kPasses * kPassSteps == kSliceSteps, "each pass must have the same number of mma steps");
  constexpr bool kHasOneSample = kTileSamples == 1;
  constexpr int kTables = kCornerTables<kTileSamples>, kLocatedSlices = kTables + 1;
  using Loads = CornerLoads<T, kHasOneSample ? 2 : 1, kLineChunks * kChunkBytes>;
  auto& shared = *reinterpret_cast<Shared<kFeatures, kTileSamples>*>(dynamic_shared);
  const BlockTile& block_tile = shared.block_tile;
  const int thread = int(threadIdx.x);
  const int sample_bits = kHasOneSample ? 0 : call.sample_bits;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block, kFeatures);
    __syncthreads();
    if (thread < block_tile.samples) {
      const int32_t tap = (block_tile.first_sample + thread) % call.taps;
      shared.distance[thread] = {
          {int32_t(call.sizes.window.distance(0, tap)), int32_t(call.sizes.window.distance(1, tap))}};
    }
    if (thread < kTileChunks) {
      const RowChunk chunk = call.ChunkAt(block_tile.first_chunk + thread);
      shared.rows[thread] = thread < block_tile.chunks
                                ? block_tile.first_row + int64_t{chunk.tap} * call.group_channels + chunk.channel
                                : -1;
    }

    auto locate_pixels = [&](int32_t slice) {
      if (thread >= kSlicePixels) return;
      const int32_t i = slice * kSlicePixels + thread;
      int32_t* index = &shared.pixels[slice % kLocatedSlices][thread];
      *index = -1;
      if (i >= block_tile.pixels) return;
      const auto pixel = LocateInStrips(call.rows, call.columns, block_tile.first_pixel + i);
      *index = pixel.index(call.rows, call.columns);
      shared.sampled[slice % kTables][thread] = SampledPixel(call.sizes, call.positions, pixel);
    };
    auto find_corners = [&](int32_t slice) {
      for (int i = thread; i < kSlicePixels << sample_bits; i += kThreads) {
        const int sample = i & ((1 << sample_bits) - 1);
        if (sample >= block_tile.samples) continue;
        const int pixel = i >> sample_bits;
        const int64_t p = shared.pixels[slice % kLocatedSlices][pixel];
        Corners corners = NoCorners();
        if (p >= 0) {
          const int64_t sample_index = p * call.pixel_samples + block_tile.first_pixel_sample + sample;
          corners = FindCorners(call.sizes, shared.sampled[slice % kTables][pixel],
                                SampleOperands<float>(call.positions, sample_index), shared.distance[sample]);
        }
        shared.corners[slice % kTables][i] = corners;
      }
    };

    // The chunks of a pixel that a thread copies or samples are a line apart.
    const int row = thread / kLineChunks, chunk = thread % kLineChunks;
    const uintptr_t copied = uintptr_t(d_y + block_tile.first_feature + chunk * kChunkSize<T>);
    const int copied_chunks = block_tile.features / kChunkSize<T>;
    auto copy_cotangent = [&](int32_t slice) {
      uint4* to = &shared.stages[slice % kStages].cotangent[swizzled_index<kCotangentChunks>(row, chunk)];
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const int64_t p = shared.pixels[slice % kLocatedSlices][row + i * kPassRows];
        for (int k = 0; k < kCotangentChunks; k += kLineChunks) {
          const bool is_valid = p >= 0 && chunk + k < copied_chunks;
          const auto* from = reinterpret_cast<const void*>(copied + p * call.d_y_pixel_bytes + k * kChunkBytes);
          copy_async(to + i * kPassRows * kCotangentChunks + k, from, !is_valid);
        }
      }
    };

    // Where the thread's two chunks of a row have their corners and channels. In a tile of one sample, both have the
    // same corners, which are read once.
    int table_index[2];
    const T* channels[2];
    for (int k = 0; k < 2; ++k) {
      const int in_tile = chunk + k * kLineChunks;
      const bool is_valid = in_tile < block_tile.chunks;
      const RowChunk from = call.ChunkAt(block_tile.first_chunk + (is_valid ? in_tile : 0));
      table_index[k] = (row << sample_bits) + from.sample - block_tile.first_sample;
      channels[k] = is_valid ? x + block_tile.first_channel + from.channel : nullptr;
    }
    auto load_corners = [&](int32_t slice, int pass, int k) {
      return Loads(shared.corners[slice % kTables][table_index[k] + (pass * kPassRows << sample_bits)], channels[k],
                   call.steps, kHasOneSample || channels[k] != nullptr);
    };

    WarpTile<T, Tile, Layout::kMNMajor> tile;
    auto multiply = [&](int32_t slice, int step) {
      typename decltype(tile)::FragmentsOfA a;
      tile.LoadA(shared.stages[slice % kStages].samples, step, a);
      tile.MultiplyColumns(shared.stages[slice % kStages].cotangent, step, a, 0, Tile::kFragmentsN);
    };

    for (int32_t slice = 0; slice < kTables; ++slice) locate_pixels(slice);
    __syncthreads();
    find_corners(0);
    __syncthreads();
    // Each iteration loads a slice, and multiplies the one before.
    const int32_t slices = (block_tile.pixels + kSlicePixels - 1) / kSlicePixels;
    for (int32_t slice = 0; slice < slices; ++slice) {
      copy_cotangent(slice);
      locate_pixels(slice + kTables);
      __syncwarp();  // for ldmatrix
      uint4* to = &shared.stages[slice % kStages].samples[swizzled_index<kTileChunks>(row, chunk)];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const auto multiply_and_store = [&](const Loads& first, const Loads& second) {
          if (slice > 0) {
#pragma unroll
            for (int step = 0; step < kPassSteps; ++step) multiply(slice - 1, pass * kPassSteps + step);
          }
          const int zero = tile.ZeroAfterProducts(call.zero, Tile::kFragmentsN - 1, 1);
          const uint4 samples[] = {first.Blend(zero), second.Blend(zero, kHasOneSample ? 1 : 0)};
          for (int k = 0; k < 2; ++k) to[pass * kPassRows * kTileChunks + k * kLineChunks] = samples[k];
        };
        const Loads loads = load_corners(slice, pass, 0);
        if constexpr (kHasOneSample) {
          multiply_and_store(loads, loads);
        } else {
          multiply_and_store(loads, load_corners(slice, pass, 1));
        }
      }
      if constexpr (kTables == 1) __syncthreads();
      find_corners(slice + 1);
      wait_async_copies();
      __syncthreads();
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kSliceSteps && slices > 0; ++step) multiply(slices - 1, step);

    tile.ForEachPair(block_tile.first_feature, [&](int tile_row, int32_t feature, float first, float second) {
      const int64_t first_row = shared.rows[tile_row / kChunkSize<T>];
      if (first_row < 0 || feature >= block_tile.first_feature + block_tile.features) return;
      const int64_t partial_row = first_row + tile_row % kChunkSize<T>;
      AsVector<2>(partial_sums + partial_row * call.features + feature) = {{first, second}};
    });
    __syncthreads();
  }
}

// The most samples of a pixel that tiles of `tile_chunks` chunks have.
int32_t MostSamples(int32_t segment_chunks, int32_t tile_chunks, int32_t group_samples) {
  const bool is_aligned = segment_chunks % tile_chunks == 0 || tile_chunks % segment_chunks == 0;
  const int32_t first = is_aligned ? 0 : segment_chunks - 1;  // in its segment
  return std::min((first + tile_chunks - 1) / segment_chunks + 1, group_samples);
}

template <typename T, typename Tile, int kTileSamples>
const char* LaunchWeightCotangent(const Device& device, const Convolution& convolution, int64_t num_splits,
                                  const void* x, const void* d_y, float* partial_sums) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile::kN, kTileSamples>);
  CheckCotangentBlock<Tile, kSharedBytes, 164>();
  const Sizes& sizes = convolution.sizes;
  const Product& product = convolution.product;
  Call call = {};
  call.sizes = sizes;
  call.positions = convolution.positions;
  call.pixel_samples = sizes.offset_groups * sizes.taps();
  call.pixels = int32_t(sizes.pixels());
  call.rows = int32_t(sizes.rows);
  call.columns = int32_t(sizes.columns);
  call.steps = CornerSteps(sizes, sizes.channels * int64_t{sizeof(T)});
  call.d_y_pixel_bytes = int32_t(product.features * sizeof(T));
  call.taps = sizes.taps();
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.groups = int32_t(product.groups);
  call.group_channels = int32_t(convolution.group_channels());
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.segment_chunks = int32_t(SegmentChannels(convolution) / kChunkSize<T>);
  call.group_chunks = call.taps * (call.group_channels / kChunkSize<T>);
  call.tile_chunks = std::min(kTileChunks, kTileSamples * call.segment_chunks);
  const int32_t samples = MostSamples(call.segment_chunks, call.tile_chunks, call.group_chunks / call.segment_chunks);
  while (1 << call.sample_bits < samples) ++call.sample_bits;
  call.group_tiles = (call.group_chunks + call.tile_chunks - 1) / call.tile_chunks;
  call.feature_tiles = (call.group_features + Tile::kN - 1) / Tile::kN;
  const int64_t slices = (sizes.pixels() + kSlicePixels - 1) / kSlicePixels;
  call.split_pixels = (slices + num_splits - 1) / num_splits * kSlicePixels;
  call.blocks = num_splits * call.groups * call.group_tiles * call.feature_tiles;
  return Launch<FusedWeightCotangentKernel<T, Tile::kN, Tile::kWarps, kTileSamples>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(d_y), partial_sums);
}

}  // namespace

const char* FusedWeightCotangent(Device& device, const Convolution& convolution, FusedTile tile, bool has_one_sample,
                                 int64_t num_splits, const void* x, const void* d_y, float* partial_sums) {
  const auto launch = [&](auto tag, auto shape) {
    using T = decltype(tag);
    using Tile = decltype(shape);
    constexpr auto kLaunchOne = LaunchWeightCotangent<T, Tile, 1>;
    constexpr auto kLaunchMany = LaunchWeightCotangent<T, Tile, MaxWeightTileSamples(Tile::kN)>;
    return (has_one_sample ? kLaunchOne : kLaunchMany)(device, convolution, num_splits, x, d_y, partial_sums);
  };
  const auto launch_tile = [&](auto tag) {
    if (tile.features == 64) return launch(tag, CotangentTile<64, 8>());
    return tile.warps == 4 ? launch(tag, CotangentTile<128, 4>()) : launch(tag, CotangentTile<128, 8>());
  };
  if (convolution.dtype == DType::kF16) return launch_tile(__half());
  if (convolution.dtype == DType::kBF16) return launch_tile(__nv_bfloat16());
  return "the tensor cores transpose only 16-bit numbers";
}

}  // namespace dcn
