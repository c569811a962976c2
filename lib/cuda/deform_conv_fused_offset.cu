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
#include "gather.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "positions.h"
#include "vector.h"

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
  int32_t far_right;               // see FarRight
  bool is_cotangent_resident;      // see Shared
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
  int32_t tap, tile = 0, slice = 0;
  int stage = 0;  // of the weight
  ChannelTile channels;

  __device__ Iteration(const Call& call, const BlockTile& block_tile) : tap(block_tile.first_tap) {
    FindChannels(call, block_tile);
  }
  __device__ bool is_first_of_tap() const { return tile == 0 && slice == 0; }
  __device__ void Advance(const Call& call, const BlockTile& block_tile) {
    stage = (stage + 1) % kStages;
    if (++slice < call.slices) return;
    slice = 0;
    if (++tile == call.segments.offset_group_tiles) {
      tile = 0;
      ++tap;
    }
    FindChannels(call, block_tile);
  }

 private:
  __device__ void FindChannels(const Call& call, const BlockTile& block_tile) {
    channels = call.segments.Tile(block_tile.offset_group * call.segments.offset_group_tiles + tile);
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
  // The left corner pixels of the current tap's samples, see Corners.
  Vector<int32_t, 2> left[kTilePixels];
  Vector<float, 4> dots[Tile::kWarpsN][kTilePixels];  // with the four corners, per warp that shares the rows
  int32_t pixels[kTilePixels];                        // of the output; -1 past the end
  BlockTile block_tile;                               // in shared memory to save registers
};

// The row permutation of B. It gives a lane the channels of whole chunks: if the 64 columns of a warp tile are 8
// fragments of 8 columns, lane % 4 = c has, of a row, chunk c of each eight chunks in the first four fragments, and
// chunk 4 + c in the last four. The permutation moves the bits of the row: f(a + b) = f(a) + f(b) if a and b have no
// bit in common.
template <typename T>
__device__ constexpr int ChannelOfRow(int row) {
  constexpr int kChunkFragments = kChunkSize<T> / 2;
  const int fragment = row / 8 % 8, lane = row % 8 / 2;
  const int chunk = fragment % 4 / kChunkFragments * 8 + fragment / 4 * 4 + lane;
  return row / 64 * 64 + chunk * kChunkSize<T> + fragment % kChunkFragments * 2 + row % 2;
}

// The accumulators of a pair of neighbouring rows, after the lanes of the two rows have exchanged half of them: lane %
// 8 is the chunk, of each eight chunks, that a lane has of both rows. So eight lanes read 128 consecutive bytes of a
// pixel.
struct RowPair {
  float value[2][8];

  template <typename T, typename Tile>
  __device__ RowPair(const WarpTile<T, Tile>& tile, int pair) {
    const bool is_odd = tile.lane() / 4 % 2;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const float first = tile.accumulators[pair / 2][v / 2][pair % 2 * 2 + v % 2];
      const float last = tile.accumulators[pair / 2][v / 2 + 4][pair % 2 * 2 + v % 2];
      const float received = __shfl_xor_sync(kWholeWarp, is_odd ? first : last, 4);
      value[0][v] = is_odd ? received : first;
      value[1][v] = is_odd ? last : received;
    }
  }
};

// Adds up kCount sums over kCount lanes, and returns the sum of number lane % kCount. In each step, a lane gives away
// half of its sums and keeps the other half.
template <int kCount>
__device__ float SumOverLanes(float (&sum)[kCount]) {
  if constexpr (kCount == 1) {
    return sum[0];
  } else {
    constexpr int kHalf = kCount / 2;
    const bool keeps_last = threadIdx.x / kHalf % 2;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = keeps_last ? sum[i] : sum[i + kHalf];
      kept[i] = (keeps_last ? sum[i + kHalf] : sum[i]) + __shfl_xor_sync(kWholeWarp, given, kHalf);
    }
    return SumOverLanes(kept);
  }
}

// Computes the dot products of the accumulators with the corner pixels over `count` channels from x on, and stores them
// in `shared.dots`, or adds them if `accumulate`. Those of a sample that reads no corners are undefined.
template <typename T, typename Tile>
__device__ void StoreDots(const Call& call, const WarpTile<T, Tile>& tile, const T* x, int32_t count, bool accumulate,
                          Shared<Tile>& shared) {
  // A step is one chunk at the four corners of a sample. In the narrow tile, a lane has half of the registers.
  constexpr int kChunksOfRow = 8 / kChunkSize<T>, kStepsInFlight = Tile::kN == 128 ? 2 : 1;
  const int first_channel = tile.first_column() + tile.lane() % 8 * kChunkSize<T>;
  Words words[kStepsInFlight][4] = {};  // remain zeros if the lane's channels are past `count`
#pragma unroll
  for (int pair = 0; pair < Tile::kFragmentsM * 2; ++pair) {
    const RowPair rows(tile, pair);
    const int first_row = tile.first_row() + pair * 8;
    float dot[8] = {};
#pragma unroll
    for (int first = 0; first < 2 * kChunksOfRow; first += kStepsInFlight) {
      for (int step = first; step < first + kStepsInFlight; ++step) {
        const int row = step / kChunksOfRow, channel = step % kChunksOfRow * 8 * kChunkSize<T>;
        const CornerAddresses corners(shared.left[first_row + tile.lane() / 8 * 2 + row], x + first_channel,
                                      call.pixel_bytes, call.far_right);
        for (int corner = 0; corner < 4; ++corner) {
          load_global_if(corners.is_read && first_channel + channel < count, corners.address[corner],
                         channel * int64_t{sizeof(T)}, words[step - first][corner]);
        }
      }
      for (int step = first; step < first + kStepsInFlight; ++step) {
        const int row = step / kChunksOfRow, first_value = step % kChunksOfRow * kChunkSize<T>;
        for (int corner = 0; corner < 4; ++corner) {
          for (int v = 0; v < kChunkSize<T>; v += kWordSize<T>) {
            float value[kWordSize<T>];
            WordToFloats<T>(words[step - first][corner].word[v / kWordSize<T>], value);
            for (int i = 0; i < kWordSize<T>; ++i) {
              dot[row * 4 + corner] += rows.value[row][first_value + v + i] * value[i];
            }
          }
        }
      }
    }
    float& stored = shared.dots[tile.first_column() / Tile::kWarpN][first_row + tile.lane() / 4].value[tile.lane() % 4];
    const float sum = SumOverLanes(dot);
    stored = accumulate ? stored + sum : sum;
  }
}

// The output pixel whose samples a thread locates, and whose cotangents it stores.
struct OwnPixel {
  int32_t index = -1;          // -1 if there is none
  int32_t first_row_of_x = 0;  // of its image, counted over all images
  int64_t row = 0, column = 0;
  int64_t first_sample = 0;  // of the offset group

  OwnPixel() = default;
  __device__ OwnPixel(const Call& call, int32_t index, int32_t offset_group)
      : index(index),
        first_row_of_x(index / call.columns / call.rows * int32_t(call.sizes.height)),
        row(int64_t{call.positions.origin[1]} + index / call.columns % call.rows),
        column(int64_t{call.positions.origin[2]} + index % call.columns),
        first_sample(SampleIndex(call.sizes, index, offset_group, 0)) {}
};

// One block per kTilePixels pixels of the output and some taps of an offset group.
template <typename T, int kChannels, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, OffsetTile<kChannels, kWarps>::kResidentBlocks)
    FusedOffsetCotangentKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight,
                               const T* __restrict__ d_y, float* d_offset, float* d_mask) {
  using Tile = OffsetTile<kChannels, kWarps>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad;
  auto& shared = *reinterpret_cast<Shared<Tile>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = int(threadIdx.x / kSliceChunks), chunk = int(threadIdx.x % kSliceChunks);
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block);
    __syncthreads();
    OwnPixel own;
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      if (i < call.pixels) own = OwnPixel(call, PixelInStrips(call.rows, call.columns, i), block_tile.offset_group);
      shared.pixels[thread] = own.index;
    }
    __syncthreads();

    const auto stage_of_cotangent = [&](const Iteration& iteration) {
      return call.is_cotangent_resident ? iteration.slice : iteration.stage;
    };
    const auto load_stage = [&](const Iteration& iteration) {
      const int32_t k = iteration.slice * kSliceChunks + chunk;
      const bool is_in_k = k < call.feature_chunks;
      const int channel = ChannelOfRow<T>(row);
      const T* weight_row = weight + ((int64_t{iteration.channels.first} + channel) * call.weight_row_chunks +
                                      iteration.tap * call.feature_chunks + k) *
                                         kChunkSize<T>;
      uint4* weight_stage = &shared.weight[iteration.stage][swizzled_index(row, chunk)];
#pragma unroll
      for (int i = 0; i < kChannels; i += kRowsPerLoad) {
        const bool is_valid = is_in_k && channel + ChannelOfRow<T>(i) < iteration.channels.count;
        copy_async(weight_stage + i * kSliceChunks,
                   weight_row + int64_t{ChannelOfRow<T>(i)} * call.weight_row_chunks * kChunkSize<T>, !is_valid);
      }
      if (call.is_cotangent_resident && !(iteration.tap == block_tile.first_tap && iteration.tile == 0)) return;
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
      Vector<int32_t, 2> left = {{0, kNotRead}};
      if (own.index >= 0) {
        sample = LocateSampleAt<float>(call.sizes, call.positions, own.row, own.column, own.first_sample + tap, tap);
        left = LeftPixels(PixelPair(sample.y), PixelPair(sample.x), own.first_row_of_x, call.sizes.width);
      }
      shared.left[thread] = left;
    };
    const auto store_cotangents = [&](int32_t tap) {
      if (own.index < 0) return;
      float dot[4] = {};
      for (const auto& dots : shared.dots) {
        const Vector<float, 4> dots_of_warp = dots[thread];
        for (int corner = 0; corner < 4; ++corner) dot[corner] += dots_of_warp.value[corner];
      }
      for (int corner = 0; corner < 4; ++corner) {
        if (!sample.is_read(corner)) dot[corner] = 0;  // another pixel took its place
      }
      StorePositionCotangents(call.positions, own.first_sample + tap, sample, dot, d_offset, d_mask);
    };

    WarpTile<T, Tile> tile;
    Iteration iteration(call, block_tile), next = iteration;
    load_stage(next);
#pragma unroll 1
    for (const int32_t end = block_tile.first_tap + block_tile.taps; iteration.tap < end; iteration = next) {
      wait_async_copies();
      __syncthreads();
      next.Advance(call, block_tile);
      if (next.tap < end) load_stage(next);
      if (iteration.is_first_of_tap()) {
        if (iteration.tap > block_tile.first_tap) store_cotangents(iteration.tap - 1);
        locate_sample(iteration.tap);
      }
      constexpr bool kRoundToTf32 = true;  // rounds d_y to tf32; the weight is tf32 already
      tile.template MultiplyStage<kRoundToTf32>(shared.cotangent[stage_of_cotangent(iteration)],
                                                shared.weight[iteration.stage]);
      if (iteration.slice < call.slices - 1) continue;
      __syncthreads();  // all threads have located their samples, and have read the dot products of the last tap
      StoreDots(call, tile, x + iteration.channels.first, iteration.channels.count, iteration.tile > 0, shared);
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
  constexpr size_t kSharedBytes = sizeof(Shared<Tile>);
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
  call.far_right = FarRight(sizes);
  call.is_cotangent_resident =
      call.slices <= kStages && call.segments.offset_group_channels <= call.segments.group_channels;
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
    return DispatchCotangentTile(SegmentChannels(sizes, product), sizeof(Shared<OffsetTile<128, 4>>), [&](auto tile) {
      using Tile = decltype(tile);
      return LaunchOffsetCotangent<decltype(tag), OffsetTile<Tile::kN, Tile::kWarps>>(
          device, sizes, positions, product, block_taps, x, weight, d_y, d_offset, d_mask);
    });
  });
}

}  // namespace dcn
