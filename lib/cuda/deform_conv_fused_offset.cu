// The fused cotangents of offset and mask: an implicit GEMM of the output's cotangent (pixels of the output × features)
// and the weight (features × taps and channels), which gives the columns' cotangents.
//
// The cotangents of offset and mask need only four dot products per sample: those of the columns' cotangent with the
// channels of x at the four corners. So a lane multiplies its accumulators with these channels, and the columns'
// cotangents are never stored. The GEMM's columns are permuted so that the accumulators of a lane belong to whole
// chunks of a pixel of x.
//
// A block processes 128 pixels of the output, and 64 or 128 columns at a time. These are channels of one tap and one
// offset group, or, where offset groups have few channels, all channels of several samples of each pixel.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "channel_segments.h"
#include "corner_dots.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "gather.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "samples.h"
#include "vector.h"

namespace dcn {
namespace {

struct Call {
  ChannelSegments segments;
  Sizes sizes;
  Positions positions;
  int32_t pixels, rows, columns;   // output size; `pixels` counts all images
  int32_t feature_chunks, slices;  // chunks and K slices of the features of a group
  int32_t weight_row_chunks;       // chunks in a row of the weight (one input channel)
  int32_t taps;
  int32_t groups;                        // of blocks: offset groups, or feature groups if tiles have many samples
  int32_t sample_tiles;                  // of a group: taps, or tiles of several samples
  int32_t block_sample_tiles;            // of a block; the last block of a group may have fewer
  int32_t sample_chunks, octet_samples;  // if tiles have many samples; octet_samples: per eight chunks of a tile
  CornerSteps steps;                     // in x
  bool is_cotangent_resident;            // see Shared
  int64_t blocks;
};

struct BlockTile {
  int32_t first_pixel, group, first_sample_tile, sample_tiles;

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block) {
    const int32_t parts = (call.sample_tiles + call.block_sample_tiles - 1) / call.block_sample_tiles;
    first_sample_tile = int32_t(block % parts) * call.block_sample_tiles;
    const int32_t left = call.sample_tiles - first_sample_tile;
    sample_tiles = left < call.block_sample_tiles ? left : call.block_sample_tiles;
    group = int32_t(block / parts % call.groups);
    first_pixel = int32_t(block / parts / call.groups) * kTilePixels;
  }
};

// An iteration of a block's main loop, which runs over sample tiles × channel tiles × K slices.
struct Iteration {
  int32_t sample_tile;  // the tap, unless samples share tiles
  int32_t channel_tile = 0, slice = 0;
  int stage = 0;         // of the weight
  ChannelTile channels;  // if tiles have many samples: of the first offset group of the feature group

  __device__ Iteration(const Call& call, const BlockTile& block_tile) : sample_tile(block_tile.first_sample_tile) {
    FindChannels(call, block_tile);
  }
  __device__ bool is_after_first_tile(const BlockTile& block_tile) const {
    return sample_tile > block_tile.first_sample_tile || channel_tile > 0;
  }
  __device__ bool is_first_of_samples() const { return channel_tile == 0 && slice == 0; }
  __device__ void Advance(const Call& call, const BlockTile& block_tile) {
    stage = (stage + 1) % kStages;
    if (++slice < call.slices) return;
    slice = 0;
    if (++channel_tile == call.segments.offset_group_tiles) {
      channel_tile = 0;
      ++sample_tile;
    }
    FindChannels(call, block_tile);
  }

 private:
  __device__ void FindChannels(const Call& call, const BlockTile& block_tile) {
    const int32_t group_tiles = call.segments.tiles / call.groups;
    channels = call.segments.Tile(block_tile.group * group_tiles + channel_tile);
  }
};

// What a chunk of a tile's columns belongs to, if tiles have many samples. The samples of a pixel are numbered as in
// `offset`; eight consecutive chunks, an octet, have as many whole samples as fit.
template <typename T>
struct ChunkOfSample {
  bool is_valid;
  int32_t offset_group, tap, first_channel;

  __device__ ChunkOfSample(const Call& call, int32_t feature_group, int32_t octet, int chunk) {
    const int32_t offset_groups = call.sizes.offset_groups / call.groups, in_octet = chunk / call.sample_chunks;
    const int32_t sample = octet * call.octet_samples + in_octet;
    is_valid = in_octet < call.octet_samples && sample < offset_groups * call.taps;
    offset_group = feature_group * offset_groups + sample / call.taps;
    tap = sample % call.taps;
    first_channel = offset_group * call.segments.offset_group_channels + chunk % call.sample_chunks * kChunkSize<T>;
  }
};

// Block tiles whose warp tiles have 64 columns: then eight lanes can read 128 consecutive bytes of a pixel of x.
template <int kColumns, int kBlockWarps>
struct OffsetTile : TileShape<128, kColumns, 2 * kColumns / kBlockWarps, 64> {
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kResidentBlocks = CotangentTile<kColumns, kWarps>::kResidentBlocks;
};

template <typename Tile>
struct Shared {
  // A stage of each operand. If the output's cotangent has no more K slices than stages, slice i stays in stage i for
  // all taps, and only the weight is copied in each iteration.
  uint4 cotangent[kStages][Tile::kChunksOfA], weight[kStages][Tile::kChunksOfB];
  CornerPixels corners[kTilePixels];                  // of the current tap's samples
  Vector<float, 4> dots[Tile::kWarpsN][kTilePixels];  // with the four corners, per warp that shares the rows
  int32_t pixels[kTilePixels];                        // of the output; -1 past the end
  BlockTile block_tile;                               // in shared memory to save registers
};

// An output pixel of which a thread locates samples and stores the cotangents.
struct OwnPixel {
  int32_t index = -1;  // -1 if there is none
  SampledPixel sampled;
  int64_t first_sample = 0;  // of the offset group

  OwnPixel() = default;
  __device__ OwnPixel(const Call& call, const OutputPixel<int32_t>& pixel, int32_t offset_group)
      : index(pixel.index(call.rows, call.columns)),
        sampled(call.sizes, call.positions, pixel),
        first_sample(SampleIndex(call.sizes, index, offset_group, 0)) {}

  __device__ BilinearCorners<float> Locate(const Call& call, int32_t tap) const {
    return LocateSample<float>(call.sizes, call.positions, sampled.first_tap, first_sample + tap, tap);
  }
  __device__ CornerPixels FindCornerPixels(const Call& call, const BilinearCorners<float>& sample) const {
    return CornersToRead(call.sizes, sample, 1, sampled.image).pixels;
  }
  __device__ void Store(const Call& call, int32_t tap, const BilinearCorners<float>& sample, const float (&dot)[4],
                        float* d_offset, float* d_mask) const {
    float read_dot[4];
    for (int corner = 0; corner < 4; ++corner) {
      read_dot[corner] = sample.is_read(corner) ? dot[corner] : 0;  // if not, another pixel took its place
    }
    StorePositionCotangents(call.positions, first_sample + tap, sample, read_dot, d_offset, d_mask);
  }
};

// Stores the cotangents of the samples of a tile that has several samples of each pixel. A sample's lanes, which have
// all of its channels, locate it; the first of them stores its cotangents.
template <typename T, typename Tile>
__device__ void StoreCotangents(const Call& call, const WarpTile<T, Tile>& tile, int32_t feature_group,
                                int32_t first_octet, const T* x, const Shared<Tile>& shared, float* d_offset,
                                float* d_mask) {
  const int chunk = tile.lane() % 8;
  Words words[kRowsInFlight<Tile>][4] = {};
#pragma unroll
  for (int octet = 0; octet < kOctets<T>; ++octet) {
    const ChunkOfSample<T> of(call, feature_group, first_octet + octet, chunk);
#pragma unroll
    for (int pair = 0; pair < Tile::kFragmentsM * 2; ++pair) {
      const RowPair rows(tile, pair);
      OwnPixel pixels[2];
      BilinearCorners<float> samples[2] = {};
      float dot[8] = {};
      const auto corners_of_row = [&](int row) {
        CornerPixels corners = NoCorners().pixels;
        const int32_t p = shared.pixels[tile.first_row() + pair * 8 + tile.lane() / 8 * 2 + row];
        if (of.is_valid && p >= 0) {
          pixels[row] = OwnPixel(call, PixelOfIndex(call.rows, call.columns, p), of.offset_group);
          samples[row] = pixels[row].Locate(call, of.tap);
          corners = pixels[row].FindCornerPixels(call, samples[row]);
        }
        return CornerAddresses(corners, x + of.first_channel, call.steps);
      };
      AddDots<T>(rows, octet, corners_of_row, words, dot);
      float sum[2][4];
      for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = dot[i];
      for (int lane = 1; lane < call.sample_chunks; ++lane) {
        for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] += __shfl_down_sync(kWholeWarp, dot[i], unsigned(lane));
      }
      if (chunk % call.sample_chunks != 0) continue;
      for (int row = 0; row < 2; ++row) {
        if (pixels[row].index >= 0) pixels[row].Store(call, of.tap, samples[row], sum[row], d_offset, d_mask);
      }
    }
  }
}

// One block per kTilePixels pixels of the output and some sample tiles of a group. `kManySamples`: a tile has several
// samples of each pixel.
template <typename T, int kColumns, int kWarps, bool kManySamples>
__global__ void __launch_bounds__(kWarps* kWarp, OffsetTile<kColumns, kWarps>::kResidentBlocks)
    FusedOffsetCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight,
                               const T* __restrict__ d_y, float* d_offset, float* d_mask) {
  using Tile = OffsetTile<kColumns, kWarps>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad, kTileOctets = Tile::kWarpsN * kOctets<T>;
  auto& shared = *reinterpret_cast<Shared<Tile>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = int(threadIdx.x / kSliceChunks), chunk = int(threadIdx.x % kSliceChunks);
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block);
    __syncthreads();
    OwnPixel own;
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      // The offset group only matters where a sample does not share its tile.
      if (i < call.pixels) own = OwnPixel(call, LocateInStrips(call.rows, call.columns, i), block_tile.group);
      shared.pixels[thread] = own.index;
    }
    __syncthreads();

    const auto stage_of_cotangent = [&](const Iteration& iteration) {
      return call.is_cotangent_resident ? iteration.slice : iteration.stage;
    };
    const auto load_stage = [&](const Iteration& iteration) {
      const int32_t k = iteration.slice * kSliceChunks + chunk;
      const bool is_in_k = k < call.feature_chunks;
      const int column = permuted_column<kChunkSize<T>>(row);
      const T* own_weight = weight + k * kChunkSize<T>;
      uint4* weight_stage = &shared.weight[iteration.stage][swizzled_index(row, chunk)];
      const auto copy_weight = [&](int i, bool is_valid, int32_t channel, int32_t tap) {
        copy_async(weight_stage + i * kSliceChunks,
                   own_weight + (int64_t{channel} * call.weight_row_chunks + tap * call.feature_chunks) * kChunkSize<T>,
                   !(is_in_k && is_valid));
      };
#pragma unroll
      for (int i = 0; i < kColumns; i += kRowsPerLoad) {
        const int in_tile = column + permuted_column<kChunkSize<T>>(i), tile_chunk = in_tile / kChunkSize<T>;
        if constexpr (kManySamples) {
          const ChunkOfSample<T> of(call, block_tile.group, iteration.sample_tile * kTileOctets + tile_chunk / 8,
                                    tile_chunk % 8);
          copy_weight(i, of.is_valid, of.first_channel + in_tile % kChunkSize<T>, of.tap);
        } else {
          copy_weight(i, in_tile < iteration.channels.count, iteration.channels.first + in_tile, iteration.sample_tile);
        }
      }
      if (call.is_cotangent_resident && iteration.is_after_first_tile(block_tile)) return;
      const T* features =
          d_y +
          (int64_t{call.segments.FeatureGroup(iteration.channels.first)} * call.feature_chunks + k) * kChunkSize<T>;
      uint4* cotangent_stage = &shared.cotangent[stage_of_cotangent(iteration)][swizzled_index(row, chunk)];
#pragma unroll
      for (int i = 0; i < kTilePixels; i += kRowsPerLoad) {
        const int32_t p = shared.pixels[row + i];
        copy_async(cotangent_stage + i * kSliceChunks, features + int64_t{p} * call.segments.features,
                   !is_in_k || p < 0);
      }
    };
    BilinearCorners<float> sample;  // of the current tap
    const auto locate_sample = [&](int32_t tap) {
      if (thread >= kTilePixels) return;
      CornerPixels corners = NoCorners().pixels;
      if (own.index >= 0) {
        sample = own.Locate(call, tap);
        corners = own.FindCornerPixels(call, sample);
      }
      shared.corners[thread] = corners;
    };
    const auto store_cotangents = [&](int32_t tap) {
      if (own.index < 0) return;
      float dot[4] = {};
      for (const auto& dots : shared.dots) {
        const Vector<float, 4> dots_of_warp = dots[thread];
        for (int corner = 0; corner < 4; ++corner) dot[corner] += dots_of_warp.value[corner];
      }
      own.Store(call, tap, sample, dot, d_offset, d_mask);
    };

    WarpTile<T, Tile> tile;
    Iteration iteration(call, block_tile), next = iteration;
    load_stage(next);
#pragma unroll 1
    for (const int32_t end = block_tile.first_sample_tile + block_tile.sample_tiles; iteration.sample_tile < end;
         iteration = next) {
      wait_async_copies();
      __syncthreads();
      next.Advance(call, block_tile);
      if (next.sample_tile < end) load_stage(next);
      if (!kManySamples && iteration.is_first_of_samples()) {
        if (iteration.sample_tile > block_tile.first_sample_tile) store_cotangents(iteration.sample_tile - 1);
        locate_sample(iteration.sample_tile);
      }
      constexpr bool kRoundToTf32 = true;  // rounds d_y to tf32; the weight is tf32 already
      tile.template MultiplyStage<kRoundToTf32>(shared.cotangent[stage_of_cotangent(iteration)],
                                                shared.weight[iteration.stage]);
      if (iteration.slice < call.slices - 1) continue;
      if constexpr (kManySamples) {
        StoreCotangents(call, tile, block_tile.group,
                        iteration.sample_tile * kTileOctets + tile.first_column() / Tile::kWarpN * kOctets<T>, x,
                        shared, d_offset, d_mask);
      } else {
        __syncthreads();  // all threads have located their samples, and have read the dot products of the last tap
        StoreDots(tile, x + iteration.channels.first, iteration.channels.count, call.steps, shared.corners,
                  shared.dots[tile.first_column() / Tile::kWarpN], iteration.channel_tile > 0);
      }
      tile.Clear();
    }
    __syncthreads();
    if (!kManySamples) store_cotangents(block_tile.first_sample_tile + block_tile.sample_tiles - 1);
    __syncthreads();
  }
}

template <typename T, typename Tile, bool kManySamples>
const char* LaunchOffsetCotangent(const Device& device, const Convolution& convolution, int32_t block_taps,
                                  const void* x, const void* weight, const void* d_y, float* d_offset, float* d_mask) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile>);
  static_assert(FusedBlocks::Contain(FusedBlocks::kOffsetCotangent, {Tile::kN, Tile::kWarps, kSharedBytes}));
  CheckCotangentBlock<Tile, kSharedBytes, 164>();
  const Sizes& sizes = convolution.sizes;
  Call call = {};
  call.segments = ChannelSegments(convolution, Tile::kN);
  call.sizes = sizes;
  call.positions = convolution.positions;
  call.pixels = int32_t(sizes.pixels());
  call.rows = int32_t(sizes.rows);
  call.columns = int32_t(sizes.columns);
  call.feature_chunks = call.segments.group_features / kChunkSize<T>;
  call.slices = (call.feature_chunks + kSliceChunks - 1) / kSliceChunks;
  call.taps = sizes.taps();
  call.weight_row_chunks = call.taps * call.feature_chunks;
  call.groups = int32_t(kManySamples ? convolution.product.groups : sizes.offset_groups);
  call.sample_tiles = call.taps;
  call.block_sample_tiles = block_taps;
  if (kManySamples) {
    constexpr int32_t kTileOctets = Tile::kWarpsN * kOctets<T>;
    call.sample_chunks = call.segments.segment_channels / kChunkSize<T>;
    call.octet_samples = 8 / call.sample_chunks;
    const int32_t offset_groups = int32_t(sizes.offset_groups) / call.groups;
    const int32_t tile_samples = kTileOctets * call.octet_samples;
    call.sample_tiles = (offset_groups * call.taps + tile_samples - 1) / tile_samples;
    const int32_t blocks = offset_groups * ((call.taps + block_taps - 1) / block_taps);
    call.block_sample_tiles = (call.sample_tiles + blocks - 1) / blocks;
  }
  call.steps = CornerSteps(sizes, sizes.channels * int64_t{sizeof(T)});
  call.is_cotangent_resident =
      call.slices <= kStages && call.segments.offset_group_channels <= call.segments.group_channels;
  const int64_t pixel_tiles = (sizes.pixels() + kTilePixels - 1) / kTilePixels;
  const int32_t parts = (call.sample_tiles + call.block_sample_tiles - 1) / call.block_sample_tiles;
  call.blocks = pixel_tiles * call.groups * parts;
  return Launch<FusedOffsetCotangentKernel<T, Tile::kN, Tile::kWarps, kManySamples>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(weight), static_cast<const T*>(d_y), d_offset, d_mask);
}

}  // namespace

const char* FusedOffsetCotangent(Device& device, const Convolution& convolution, int32_t block_taps, const void* x,
                                 const void* weight, const void* d_y, float* d_offset, float* d_mask) {
  return DispatchTensorCoreType(convolution.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto launcher) {
      return launcher(device, convolution, block_taps, x, weight, d_y, d_offset, d_mask);
    };
    const int64_t group_channels = convolution.sizes.group_channels();
    // Samples share tiles where at least two of them fit into eight chunks.
    if (group_channels <= convolution.group_channels() && group_channels <= 4 * kChunkSize<T>) {
      return launch(LaunchOffsetCotangent<T, OffsetTile<64, 8>, true>);
    }
    return DispatchCotangentTile(SegmentChannels(convolution), sizeof(Shared<OffsetTile<128, 4>>), [&](auto tile) {
      using Tile = decltype(tile);
      return launch(LaunchOffsetCotangent<T, OffsetTile<Tile::kN, Tile::kWarps>, false>);
    });
  });
}

}  // namespace dcn
