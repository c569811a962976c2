// The fused forward: an implicit GEMM of the columns (pixels of the output × taps and channels) and the weight (taps
// and channels × features). The columns are never stored: a block samples them straight into shared memory.
//
// A block computes 128 pixels of the output × 64, 128 or 256 features, in K slices of 128 bytes and with two stages in
// shared memory. While the warps multiply a stage, the threads sample the next one. The unit is a pass, a part of an
// mma step: a thread starts to load one chunk (16 bytes at each of the four corners of a sample), issues the mma
// instructions of the pass, which hide the latency of the loads, interpolates in float32, and stores the rounded chunk,
// swizzled against bank conflicts. One chunk per thread is in flight. The weight is copied asynchronously.
#include "deform_conv_fused.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device.h"
#include "gather.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "vector.h"

namespace dcn {
namespace {

static_assert(kTilePixels == FusedLimits::kTilePixels && kChunkBytes == FusedLimits::kVectorBytes);

template <int kFeatures, int kWarps>
using ForwardShape =
    TileShape<kTilePixels, kFeatures, kFeatures / kWarps == 32 ? 64 : 32, kFeatures / kWarps == 8 ? 32 : 64>;

// Tiles of 64 and 128 features have 4 warps where two or more blocks are resident per SM, otherwise 8: the warp tiles
// of 8 warps are smaller, so that ldmatrix reads a third (64 features) or half (128) more shared memory.
template <int kFeatures, int kWarps>
struct ForwardTile : ForwardShape<kFeatures, kWarps> {
  using Shape = ForwardShape<kFeatures, kWarps>;
  static constexpr int kResidentBlocks = kWarps == 8 ? 1 : kFeatures == 128 ? 2 : 3;  // per SM
  static constexpr int kSamples = kTilePixels / Shape::kRowsPerLoad;  // chunks of a stage that a thread samples
  // An mma step is computed in passes, one for each chunk that a thread samples meanwhile.
  static constexpr int kPasses = kSamples / kSliceSteps, kPassFragments = Shape::kFragmentsN / kPasses;

  static_assert(kPasses * kSliceSteps == kSamples, "each mma step must hide the loads of equally many chunks");
  static_assert(kPassFragments * kPasses == Shape::kFragmentsN && kPassFragments % 2 == 0,
                "each pass must multiply pairs of column fragments");
};

// The taps whose corners are stored at once: as many as leave shared memory under a step of the carve-out.
template <int kFeatures>
constexpr int kCornerTaps = 2 * (kFeatures / 64) + 1;

template <int kFeatures>
struct Shared {
  struct {
    uint4 samples[kTilePixels * kSliceChunks], weight[kFeatures * kSliceChunks];
  } stages[kStages];
  CornerTable<kCornerTaps<kFeatures> * kTilePixels> corners;
  int64_t pixels[kTilePixels];  // of the output; -1 past the end
};

// The parameters of a call. Kernel parameters take no registers.
struct Call {
  Sizes sizes;
  Positions positions;
  int32_t pixel_bytes, far_right;  // of x; see FarRight
  int32_t group_channels, offset_group_channels;
  int32_t taps, corner_taps;  // corner_taps: whose corners are stored at once
  int32_t features, group_features, groups;
  int32_t feature_tiles;  // of a group
  int64_t weight_row;     // elements per feature of the weight
  int64_t blocks;
  bool is_y_float;
  int32_t zero;  // 0, which the compiler does not know
};

// The K loop of a block, which runs over taps × channels of a feature group, slice by slice. The outer loop is over the
// offset groups; then come rounds of up to `corner_taps` taps, whose corners are stored at once; then, for these taps,
// runs of up to kSliceChunks chunks of channels. A run's chunks, tap by tap, are cut into slices.
template <int kChunkSize>
class KSlices {
 public:
  // The origin of a chunk of the current slice.
  struct Chunk {
    bool is_valid;
    int32_t tap;  // counted from first_tap()
    int32_t channel;
  };

  __device__ KSlices(const Call& call, int32_t group)
      : call_(call), end_((group + 1) * call.group_channels), channel_(group * call.group_channels) {
    FindOffsetGroup();
  }

  __device__ bool is_done() const { return channel_ == end_; }
  __device__ int32_t offset_group() const { return channel_ / call_.offset_group_channels; }
  __device__ int32_t first_tap() const { return first_tap_; }  // of the round
  __device__ int32_t num_taps() const {
    const int32_t left = call_.taps - first_tap_;
    return left < call_.corner_taps ? left : call_.corner_taps;
  }

  __device__ Chunk ChunkAt(int i) const {
    if (is_done()) return {false, 0, 0};
    const int32_t chunk = first_chunk_ + i;
    if (chunk >= num_taps() * run_chunks()) return {false, 0, 0};
    return {true, chunk / run_chunks(), channel_ + chunk % run_chunks() * kChunkSize};
  }

  // Moves to the next slice. Returns whether that needs other corners.
  __device__ bool Advance() {
    if (is_done()) return false;
    first_chunk_ += kSliceChunks;
    if (first_chunk_ < num_taps() * run_chunks()) return false;
    first_chunk_ = 0;
    channel_ += run_chunks() * kChunkSize;
    if (channel_ < offset_group_end_) return false;
    first_tap_ += call_.corner_taps;
    if (first_tap_ < call_.taps) {
      const int32_t group_start = end_ - call_.group_channels;
      channel_ = (offset_group_end_ - 1) / call_.offset_group_channels * call_.offset_group_channels;
      if (channel_ < group_start) channel_ = group_start;
      return true;
    }
    first_tap_ = 0;
    FindOffsetGroup();
    return !is_done();
  }

 private:
  // Chunks of channels of the current run.
  __device__ int32_t run_chunks() const {
    const int32_t left = (offset_group_end_ - channel_) / kChunkSize;
    return left < kSliceChunks ? left : kSliceChunks;
  }

  __device__ void FindOffsetGroup() {
    if (is_done()) return;
    offset_group_end_ = (offset_group() + 1) * call_.offset_group_channels;
    if (offset_group_end_ > end_) offset_group_end_ = end_;
  }

  const Call& call_;
  int32_t end_;               // of the feature group's channels
  int32_t offset_group_end_;  // of those that share the current offset group
  int32_t channel_;           // the first of the current run
  int32_t first_tap_ = 0;
  int32_t first_chunk_ = 0;  // of the current slice among the run's chunks
};

// One block per kTilePixels pixels of the output × kFeatures features of a group.
template <typename T, int kFeatures, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, ForwardTile<kFeatures, kWarps>::kResidentBlocks)
    FusedForwardKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight, const float* __restrict__ bias,
                       void* y) {
  using Tile = ForwardTile<kFeatures, kWarps>;
  using Accumulators = WarpTile<T, Tile>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad, kThreads = Tile::kThreads;
  auto& shared = *reinterpret_cast<Shared<kFeatures>*>(dynamic_shared);

  const int thread = int(threadIdx.x);
  const int row = int(threadIdx.x / kSliceChunks),
            chunk = int(threadIdx.x % kSliceChunks);  // of the first chunk that the thread loads
  const int stored_at = swizzled_index(row, chunk);

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    const int32_t group = int32_t(block / call.feature_tiles % call.groups);
    const int32_t tile_feature = int32_t(block % call.feature_tiles) * kFeatures;
    if (thread < kTilePixels) {
      const int64_t i = block / call.feature_tiles / call.groups * kTilePixels + thread;
      shared.pixels[thread] = i < call.sizes.pixels() ? PixelInStrips(call.sizes.rows, call.sizes.columns, i) : -1;
    }
    __syncthreads();

    KSlices<kChunkSize<T>> slices(call, group);
    auto find_corners = [&] {
      const int64_t p = shared.pixels[thread % kTilePixels];
      for (int k = thread / kTilePixels; k < slices.num_taps(); k += kThreads / kTilePixels) {
        const int32_t tap = slices.first_tap() + k;
        shared.corners.Store(k * kTilePixels + thread % kTilePixels,
                             FindCorners(call.sizes, call.positions, p, slices.offset_group(), tap));
      }
      __syncthreads();
    };
    auto load_weight = [&](int stage, const auto& from) {
      const int32_t tap = slices.first_tap() + from.tap, channel = from.channel - group * call.group_channels;
      const T* first = weight + (group * call.group_features + tile_feature + row) * call.weight_row +
                       int64_t{tap} * call.group_channels + channel;
      for (int i = 0; i < kFeatures / kRowsPerLoad; ++i) {
        const bool is_valid = from.is_valid && tile_feature + row + i * kRowsPerLoad < call.group_features;
        copy_async(&shared.stages[stage].weight[stored_at + i * kRowsPerLoad * kSliceChunks],
                   is_valid ? first + i * kRowsPerLoad * call.weight_row : weight, !is_valid);
      }
    };
    auto load_corners = [&](const auto& from, int i) {
      return CornerLoads<T>(shared.corners, from.tap * kTilePixels + row + i * kRowsPerLoad, x + from.channel,
                            call.pixel_bytes, call.far_right, from.is_valid);
    };
    auto store_samples = [&](int stage, int i, const CornerLoads<T>& loads, int zero_dependency) {
      shared.stages[stage].samples[stored_at + i * kRowsPerLoad * kSliceChunks] = loads.Blend(zero_dependency);
    };

    Accumulators tile;
    // An opaque 0 computed from the last mma results of a pass. Without it, the compiler schedules the interpolation,
    // which waits for global loads, before these mma are issued.
    auto zero_after = [&](int pass) {
      const int j = (pass + 1) * Tile::kPassFragments - 2;
      int bits = 0;
      for (int i = 0; i < Tile::kFragmentsM; ++i) {
        bits |= __float_as_int(tile.accumulators[i][j][0]) | __float_as_int(tile.accumulators[i][j + 1][0]);
      }
      return bits & call.zero;
    };

    // The main loop and its prologue and epilogue: each iteration multiplies a stage, except the first, and loads the
    // next, which is zeros after the last slice.
    bool is_first = true, is_last = slices.is_done(), needs_corners = true;
    for (int stage = 0; !is_last; stage = 1 - stage) {
      is_last = slices.is_done();
      if (needs_corners) find_corners();
      const auto from = slices.ChunkAt(chunk);
      load_weight(1 - stage, from);
      __syncwarp();  // lanes that loaded other chunks may have diverged
#pragma unroll
      for (int step = 0; step < kSliceSteps; ++step) {
        typename Accumulators::FragmentsOfA a = {};
#pragma unroll
        for (int pass = 0; pass < Tile::kPasses; ++pass) {
          const CornerLoads<T> loads = load_corners(from, step * Tile::kPasses + pass);
          if (!is_first) {
            if (pass == 0) tile.LoadA(shared.stages[stage].samples, step, a);
            tile.MultiplyColumns(shared.stages[stage].weight, step, a, pass * Tile::kPassFragments,
                                 Tile::kPassFragments);
          }
          store_samples(1 - stage, step * Tile::kPasses + pass, loads, zero_after(pass));
        }
      }
      needs_corners = slices.Advance();
      is_first = false;
      wait_async_copies();
      __syncthreads();
    }

    auto store = [&](auto* out) {
      using Out = std::remove_pointer_t<decltype(out)>;
      tile.ForEachPair(tile_feature, [&](int pixel, int32_t in_group, float first, float second) {
        const int64_t p = shared.pixels[pixel];
        if (p < 0 || in_group >= call.group_features) return;
        const int32_t feature = group * call.group_features + in_group;
        AsVector<2>(out + p * call.features +
                    feature) = {{Out(first + bias[feature]), Out(second + bias[feature + 1])}};
      });
    };
    if (std::is_same_v<T, float> || call.is_y_float) {
      store(static_cast<float*>(y));
    } else {
      store(static_cast<T*>(y));
    }
    __syncthreads();
  }
}

template <typename T, int kFeatures, int kWarps>
const char* LaunchForward(const Device& device, const Sizes& sizes, const Positions& positions, const Product& product,
                          bool is_y_float, const void* x, const void* weight, const void* bias, void* y) {
  using Tile = ForwardTile<kFeatures, kWarps>;
  constexpr int kResidentBlocks = Tile::kResidentBlocks;
  constexpr size_t kSharedBytes = sizeof(Shared<kFeatures>);
  constexpr size_t kCarveOut = (kFeatures == 256 ? 132 : kFeatures == 128 ? 164 : 196) << 10;  // of an H100's 256 KiB
  static_assert(FusedBlocks::Contain(FusedBlocks::kForward, {kFeatures, kWarps, kSharedBytes}));
  static_assert(kResidentBlocks * (kSharedBytes + kReservedSharedBytes) <= kCarveOut);
  if constexpr (kFeatures == 256 || kWarps == 4) {
    static_assert(FitsSm(kSmSharedBytesSm80, kSharedBytes, kResidentBlocks, kWarps));
    static_assert(FitsSm(kSmSharedBytesSm90, kSharedBytes, kResidentBlocks, kWarps));
  } else {
    static_assert(FitsSm(kSmSharedBytesSm86, kSharedBytes, kResidentBlocks, kWarps));
  }

  Call call = {};
  call.sizes = sizes;
  call.positions = positions;
  call.pixel_bytes = int32_t(sizes.channels * sizeof(T));
  call.far_right = FarRight(sizes);
  call.group_channels = int32_t(sizes.channels / product.groups);
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.taps = sizes.taps();
  const int32_t rounds = (call.taps + kCornerTaps<kFeatures> - 1) / kCornerTaps<kFeatures>;
  call.corner_taps = (call.taps + rounds - 1) / rounds;
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.groups = int32_t(product.groups);
  call.feature_tiles = (call.group_features + kFeatures - 1) / kFeatures;
  call.weight_row = int64_t{call.taps} * call.group_channels;
  call.blocks = (sizes.pixels() + kTilePixels - 1) / kTilePixels * call.groups * call.feature_tiles;
  call.is_y_float = is_y_float;
  return Launch<FusedForwardKernel<T, kFeatures, kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(weight), static_cast<const float*>(bias), y);
}

// Launches tiles of at most `tile_features`, narrower ones where the device has too little shared memory for them, and
// with the warps that ForwardTile describes.
template <typename T, int kFeatures, typename... Arguments>
const char* LaunchWidest(int32_t tile_features, size_t sm_shared_bytes, Arguments... arguments) {
  const int blocks = ResidentBlocks(sizeof(Shared<kFeatures>), sm_shared_bytes);
  if constexpr (kFeatures > 64) {
    if (tile_features < kFeatures || blocks == 0) {
      return LaunchWidest<T, kFeatures / 2>(tile_features, sm_shared_bytes, arguments...);
    }
  }
  if constexpr (kFeatures < 256) {
    if (blocks > 1) return LaunchForward<T, kFeatures, 4>(arguments...);
  }
  return LaunchForward<T, kFeatures, 8>(arguments...);
}

}  // namespace

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, int32_t tile_features, bool is_y_float, const void* x,
                         const void* weight, const void* bias, void* y) {
  size_t sm_shared_bytes;
  const cudaError_t error = SmSharedBytes(&sm_shared_bytes);
  if (error != cudaSuccess) return Failure(error);
  return DispatchTensorCoreType(dtype, [&](auto tag) {
    return LaunchWidest<decltype(tag), 256>(tile_features, sm_shared_bytes, device, sizes, positions, product,
                                            is_y_float, x, weight, bias, y);
  });
}

}  // namespace dcn
