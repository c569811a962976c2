// The fused forward: an implicit GEMM of the columns (pixels of the output × taps and channels) and the weight (taps
// and channels × features). The columns are never stored: a block samples them straight into shared memory.
//
// A block computes 128 pixels of the output × 64, 128 or 256 features, in K slices of 128 bytes and with two stages in
// shared memory. While the warps multiply a stage, the threads sample the next one. The unit is a pass, a part of an
// mma step: a thread starts to load the vector of the next pass (16 bytes at each of the four corners of a sample),
// issues the mma instructions of this pass, interpolates its vector in float32, and stores it, rounded, swizzled
// against bank conflicts. So two vectors per thread are in flight. The weight is copied asynchronously.
#include "deform_conv/fused.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "deform_conv/cuda_gather.h"
#include "deform_conv/cuda_gemm.h"
#include "deform_conv/cuda_pixel_strips.h"
#include "device.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

template <int kFeatures, int kWarps>
using ForwardShape =
    TileShape<kTilePixels, kFeatures, kFeatures / kWarps == 32 ? 64 : 32, kFeatures / kWarps == 8 ? 32 : 64>;

// Tiles of 64 and 128 features have 4 warps where two or more blocks are resident per SM, otherwise 8: the warp tiles
// of 8 warps are smaller, so that ldmatrix reads a third (64 features) or half (128) more shared memory.
template <int kFeatures, int kWarps>
struct ForwardTile : ForwardShape<kFeatures, kWarps> {
  using Shape = ForwardShape<kFeatures, kWarps>;
  static constexpr int kResidentBlocks = kWarps == 8 ? 1 : kFeatures == 128 ? 2 : 3;  // per SM
  static constexpr int kSamples = kTilePixels / Shape::kRowsPerLoad;  // vectors of a stage that a thread samples
  // An mma step is computed in passes, one for each vector that a thread samples meanwhile.
  static constexpr int kPasses = kSamples / kSliceSteps, kPassFragments = Shape::kFragmentsN / kPasses;

  static_assert(kPasses * kSliceSteps == kSamples, "each mma step must hide the loads of equally many vectors");
  static_assert(kPassFragments * kPasses == Shape::kFragmentsN && kPassFragments % 2 == 0,
                "each pass must multiply pairs of column fragments");
};

// The taps whose corners are stored at once. With them, shared memory stays under a step of the carve-out.
template <int kFeatures>
constexpr int kCornerTaps = kFeatures == 256 ? 9 : 5;

// A tile of pixels has kStripRows rows, where the image is large enough (see cuda_pixel_strips.h). Its pixels are
// numbered column by column. Samples are located row by row, because the offsets of neighbours in a row are adjacent in
// memory.
constexpr int kTileColumns = kTilePixels / kStripRows;
__device__ constexpr int row_by_row(int pixel) { return pixel % kStripRows * kTileColumns + pixel / kStripRows; }
__device__ constexpr int column_by_column(int place) {
  return place % kTileColumns * kStripRows + place / kTileColumns;
}

// The parameters of a call. Kernel parameters take no registers.
struct ForwardCall {
  Sizes sizes;
  Positions positions;
  CornerDistances distances;  // in x
  int32_t group_channels, offset_group_channels;
  int32_t taps, corner_taps;  // corner_taps: whose corners are stored at once
  int32_t features, group_features, groups;
  int32_t feature_tiles;        // of a group
  uint32_t weight_row_vectors;  // vectors per feature of the weight
  int64_t blocks;
  bool is_y_float;
  int32_t zero;  // 0, which the compiler does not know
};

struct ForwardBlockTile {
  int32_t group, first_feature;  // of the group
  int32_t channels_end;          // of the group
  int32_t weight_row, last_row;  // the row of the weight for the first feature, and the number of rows after it
  int64_t first_pixel;

  ForwardBlockTile() = default;
  __device__ ForwardBlockTile(const ForwardCall& call, int64_t block, int32_t tile_features) {
    first_feature = int32_t(block % call.feature_tiles) * tile_features;
    block /= call.feature_tiles;
    group = int32_t(block % call.groups);
    first_pixel = block / call.groups * kTilePixels;
    const int32_t left = call.group_features - first_feature;
    channels_end = (group + 1) * call.group_channels;
    weight_row = group * call.group_features + first_feature;
    last_row = (left < tile_features ? left : tile_features) - 1;
  }
};

template <int kFeatures>
struct ForwardShared {
  struct {
    uint4 samples[kTilePixels * kSliceVectors], weight[kFeatures * kSliceVectors];
  } stages[kStages];
  Corners corners[kTilePixels * kCornerTaps<kFeatures>];  // [row_by_row(pixel)][tap]
  int64_t pixels[kTilePixels];                            // of the output; -1 past the end
  SampledPixel sampled[kTilePixels];                      // [row_by_row(pixel)]
  ForwardBlockTile block_tile;  // in shared memory, because the accumulators need the registers
};

// The K loop of a block, which runs over taps × channels of a feature group, slice by slice. The outer loop is over the
// offset groups; then come rounds of up to `corner_taps` taps, whose corners are stored at once; then, for these taps,
// runs of up to kSliceVectors vectors of channels. A run's vectors, tap by tap, are cut into slices. An object
// iterates over the slices, and has the tap and the channels of the vector that a thread loads of each.
template <int kElements>
class KSlices {
 public:
  __device__ KSlices(const ForwardCall& call, const ForwardBlockTile& block_tile, int32_t vector)
      : call_(call), end_(block_tile.channels_end), vector_(vector), channel_(group_start()) {
    if (!is_done()) StartRun();
  }

  __device__ bool is_done() const { return channel_ == end_; }
  __device__ int32_t offset_group() const { return channel_ / call_.offset_group_channels; }
  __device__ int32_t first_tap() const { return first_tap_; }  // of the round
  __device__ int32_t num_taps() const {
    const int32_t left = call_.taps - first_tap_;
    return left < call_.corner_taps ? left : call_.corner_taps;
  }

  // The last slice of a run may not have the vector.
  __device__ bool has_vector() const { return tap_ < num_taps(); }
  __device__ int32_t tap() const { return tap_; }  // of the vector, counted from first_tap()
  __device__ int32_t channel() const { return channel_ + run_vector_ * kElements; }
  __device__ int32_t channel_in_group() const { return channel() - group_start(); }

  // Moves to the next slice. Returns whether that needs other corners.
  __device__ bool Advance() {
    if (--slices_left_ > 0) {
      tap_ += kSliceVectors / run_vectors_;
      run_vector_ += kSliceVectors % run_vectors_;
      if (run_vector_ >= run_vectors_) {
        run_vector_ -= run_vectors_;
        ++tap_;
      }
      return false;
    }
    const int32_t end = offset_group_end();
    channel_ += run_vectors_ * kElements;
    const bool needs_corners = channel_ == end;
    if (needs_corners) {
      first_tap_ += call_.corner_taps;
      if (first_tap_ < call_.taps) {  // the next round of taps has the channels of the offset group again
        channel_ = (end - 1) / call_.offset_group_channels * call_.offset_group_channels;
        if (channel_ < group_start()) channel_ = group_start();
      } else {
        first_tap_ = 0;
      }
    }
    if (!is_done()) StartRun();
    return needs_corners;
  }

 private:
  __device__ int32_t group_start() const { return end_ - call_.group_channels; }

  // The end of the channels that share the current offset group, in the feature group.
  __device__ int32_t offset_group_end() const {
    const int32_t end = (offset_group() + 1) * call_.offset_group_channels;
    return end < end_ ? end : end_;
  }

  __device__ void StartRun() {
    const int32_t left = (offset_group_end() - channel_) / kElements;
    run_vectors_ = left < kSliceVectors ? left : kSliceVectors;
    slices_left_ = (num_taps() * run_vectors_ + kSliceVectors - 1) / kSliceVectors;
    tap_ = vector_ / run_vectors_;
    run_vector_ = vector_ % run_vectors_;
  }

  const ForwardCall& call_;
  const int32_t& end_;  // of the feature group's channels; in shared memory
  int32_t vector_;      // the index in a slice of the thread's vector
  int32_t channel_;     // the first of the current run
  int32_t first_tap_ = 0;
  int32_t run_vectors_;       // vectors of channels of the current run
  int32_t slices_left_;       // of the run, with the current one
  int32_t tap_, run_vector_;  // of the thread's vector
};

// Computes a thread's share of a block's tile.
template <typename T, int kFeatures, int kWarps>
class ForwardThread {
 public:
  using Tile = ForwardTile<kFeatures, kWarps>;
  using Shared = ForwardShared<kFeatures>;
  using Accumulators = WarpTile<T, Tile>;
  using Slices = KSlices<kVectorElements<T>>;
  using Loads = CornerLoads<T>;

  __device__ ForwardThread(const ForwardCall& call, const T* x, const T* weight)
      : call_(call), x_(x), weight_(weight), shared_(*reinterpret_cast<Shared*>(dynamic_shared)) {}

  __device__ void LocateTile(int64_t block) {
    if (thread_ == 0) shared_.block_tile = ForwardBlockTile(call_, block, kFeatures);
    __syncthreads();
    if (thread_ < kTilePixels) {
      const int64_t i = tile().first_pixel + thread_;
      shared_.pixels[thread_] = -1;
      if (i < call_.sizes.pixels()) {
        const OutputPixel<int64_t> pixel = LocateInStrips(call_.sizes.rows, call_.sizes.columns, i);
        shared_.sampled[row_by_row(thread_)] = SampledPixel(call_.sizes, call_.positions, pixel);
        shared_.pixels[thread_] = pixel.index(call_.sizes.rows, call_.sizes.columns);
      }
    }
    __syncthreads();
  }

  __device__ Slices FirstSlice() const { return Slices(call_, tile(), vector_); }

  // Stores the corners of the samples at the taps of a round.
  __device__ void StoreCorners(const Slices& slices) {
    constexpr int kTurns = (kTilePixels * kCornerTaps<kFeatures> + Tile::kThreads - 1) / Tile::kThreads;
    const int taps = slices.num_taps();
    int place[kTurns], tap[kTurns];
    bool is_valid[kTurns];
    SampleOperands<float> operands[kTurns];  // all are loaded before the first one is used
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = thread_ + turn * Tile::kThreads;
      place[turn] = i / taps, tap[turn] = i % taps;
      if (i >= kTilePixels * taps) continue;
      const int64_t p = shared_.pixels[column_by_column(place[turn])];
      is_valid[turn] = p >= 0;
      const int32_t kernel_tap = slices.first_tap() + tap[turn];
      const int64_t sample_index = SampleIndex(call_.sizes, is_valid[turn] ? p : 0, slices.offset_group(), kernel_tap);
      operands[turn] = SampleOperands<float>(call_.positions, sample_index);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (thread_ + turn * Tile::kThreads >= kTilePixels * taps) continue;
      shared_.corners[place[turn] * kCornerTaps<kFeatures> + tap[turn]] =
          is_valid[turn]
              ? FindCorners(call_.sizes, shared_.sampled[place[turn]], operands[turn], slices.first_tap() + tap[turn])
              : NoCorners();
    }
    __syncthreads();
  }

  // Rows past the last feature get the weight of the last one. The columns that they make are not stored.
  __device__ void LoadWeight(const Slices& slices, int stage) {
    const T* first = weight_ + int64_t{tile().weight_row} * call_.weight_row_vectors * kVectorElements<T> +
                     int64_t{slices.first_tap() + slices.tap()} * call_.group_channels + slices.channel_in_group();
    const uint32_t last = uint32_t(tile().last_row) * kGemmVectorBytes;
#pragma unroll
    for (int i = 0; i < kFeatures / Tile::kRowsPerLoad; ++i) {
      // Multiplied by the vector size before the product with the row size, which then takes one instruction.
      const uint32_t feature = (permuted_column(row_) + permuted_column(i * Tile::kRowsPerLoad)) * kGemmVectorBytes;
      copy_async(
          &shared_.stages[stage].weight[InStage(i)],
          reinterpret_cast<const char*>(first) + uint64_t{feature < last ? feature : last} * call_.weight_row_vectors,
          !slices.has_vector());
    }
  }

  // Samples the first slice into a stage.
  __device__ void Sample(const Slices& slices, int stage) {
#pragma unroll 1
    for (int i = 0; i < Tile::kSamples; ++i) StoreSamples(stage, i, LoadCorners(slices, i), 0);
  }

  // Samples a slice into a stage, pass by pass, and multiplies the slice before it meanwhile.
  __device__ void SampleAndMultiply(const Slices& slices, int stage, Accumulators& sums) {
    const auto& previous = shared_.stages[1 - stage];
    __syncwarp();  // lanes that loaded other vectors may have diverged
    Loads loads = LoadCorners(slices, 0);
#pragma unroll
    for (int step = 0; step < kSliceSteps; ++step) {
      typename Accumulators::FragmentsOfA a;
#pragma unroll
      for (int pass = 0; pass < Tile::kPasses; ++pass) {
        const int i = step * Tile::kPasses + pass;
        const Loads next = i + 1 < Tile::kSamples ? LoadCorners(slices, i + 1) : loads;
        if (pass == 0) sums.LoadA(previous.samples, step, a);
        const int first = pass * Tile::kPassFragments;
        sums.MultiplyColumns(previous.weight, step, a, first, Tile::kPassFragments);
        StoreSamples(stage, i, loads, sums.ZeroAfterProducts(call_.zero, first, Tile::kPassFragments));
        loads = next;
      }
    }
  }

  // Multiplies the last slice.
  __device__ void Multiply(int stage, Accumulators& sums) {
    sums.MultiplyStage(shared_.stages[stage].samples, shared_.stages[stage].weight);
  }

  // Stores the sums, rounded to the type of y.
  __device__ void Store(const Accumulators& sums, const float* __restrict__ bias, void* y) const {
    sums.ForEachRun(tile().first_feature, [&](int32_t in_group, const auto& for_each_row) {
      const int32_t feature = tile().group * call_.group_features + in_group;
      Vector<float, 2> added[kRunColumns / 2];
      for (int k = 0; k < kRunColumns; k += 2) {
        const bool is_valid = in_group + k < call_.group_features;
        added[k / 2] = is_valid ? AsVector<2>(bias + feature + k) : Vector<float, 2>{};
      }
      for_each_row([&](int pixel, const float (&values)[kRunColumns]) {
        const int64_t p = shared_.pixels[pixel];
        if (p < 0) return;
        float total[kRunColumns];
        for (int k = 0; k < kRunColumns; ++k) total[k] = values[k] + added[k / 2].value[k % 2];
        // One branch per row and run, so that the rest is compiled once.
        const int64_t element = p * call_.features + feature;
        if (std::is_same_v<T, float> || call_.is_y_float) {
          StoreRun(total, in_group, static_cast<float*>(y) + element);
        } else {
          StoreRun(total, in_group, static_cast<T*>(y) + element);
        }
      });
    });
  }

 private:
  __device__ const ForwardBlockTile& tile() const { return shared_.block_tile; }

  // The index in a stage of vector `i` of those that the thread loads.
  __device__ int InStage(int i) const { return stored_at_ + i * Tile::kRowsPerLoad * kSliceVectors; }

  __device__ Loads LoadCorners(const Slices& slices, int i) const {
    const int tap = slices.has_vector() ? slices.tap() : 0;
    const int sample = (row_by_row(row_) + row_by_row(i * Tile::kRowsPerLoad)) * kCornerTaps<kFeatures> + tap;
    return Loads(shared_.corners[sample], x_ + slices.channel(), call_.distances, slices.has_vector());
  }

  __device__ void StoreSamples(int stage, int i, const Loads& loads, int zero_dependency) {
    shared_.stages[stage].samples[InStage(i)] = loads.Blend(zero_dependency);
  }

  // In the widest vectors that the features of a group consist of.
  template <typename Out>
  __device__ void StoreRun(const float (&total)[kRunColumns], int32_t in_group, Out* y) const {
    constexpr int kWidest = kGemmVectorBytes / sizeof(Out);
    if (call_.group_features % kWidest == 0) {
      StoreVectors<kWidest>(total, in_group, y);
    } else {
      StoreVectors<2>(total, in_group, y);
    }
  }

  template <int kWidth, typename Out>
  __device__ void StoreVectors(const float (&total)[kRunColumns], int32_t in_group, Out* y) const {
    for (int k = 0; k < kRunColumns; k += kWidth) {
      if (in_group + k >= call_.group_features) return;
      Vector<Out, kWidth> out;
      for (int i = 0; i < kWidth; ++i) out.value[i] = Out(total[k + i]);
      AsVector<kWidth>(y + k) = out;
    }
  }

  const ForwardCall& call_;
  const T *const x_, *const weight_;
  Shared& shared_;
  // The first vector of a slice that the thread loads.
  const int thread_ = int(threadIdx.x), row_ = thread_ / kSliceVectors, vector_ = thread_ % kSliceVectors;
  const int stored_at_ = swizzled_index(row_, vector_);
};

// One block per kTilePixels pixels of the output × kFeatures features of a group.
template <typename T, int kFeatures, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, ForwardTile<kFeatures, kWarps>::kResidentBlocks)
    FusedForwardKernel(ForwardCall call, const T* __restrict__ x, const T* __restrict__ weight,
                       const float* __restrict__ bias, void* y) {
  using Thread = ForwardThread<T, kFeatures, kWarps>;
  Thread thread(call, x, weight);
  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    thread.LocateTile(block);
    typename Thread::Slices slices = thread.FirstSlice();
    typename Thread::Accumulators sums;
    int stage = 0;
    bool is_first = true, needs_corners = true;
    while (!slices.is_done()) {
      if (needs_corners) thread.StoreCorners(slices);
      thread.LoadWeight(slices, stage);
      if (is_first) {
        thread.Sample(slices, stage);
      } else {
        thread.SampleAndMultiply(slices, stage, sums);
      }
      needs_corners = slices.Advance();
      is_first = false;
      stage = 1 - stage;
      wait_async_copies();
      __syncthreads();
    }
    if (!is_first) thread.Multiply(1 - stage, sums);
    thread.Store(sums, bias, y);
    __syncthreads();
  }
}

template <typename T, int kFeatures, int kWarps>
const char* LaunchForward(const Device& device, const Convolution& convolution, bool is_y_float, const void* x,
                          const void* weight, const void* bias, void* y) {
  using Tile = ForwardTile<kFeatures, kWarps>;
  constexpr int kResidentBlocks = Tile::kResidentBlocks;
  constexpr size_t kSharedBytes = sizeof(ForwardShared<kFeatures>);
  constexpr size_t kCarveOut = (kFeatures == 256 ? 132 : kFeatures == 128 ? 164 : 196) << 10;  // of an H100's 256 KiB
  static_assert(kResidentBlocks * (kSharedBytes + kReservedSharedBytes) <= kCarveOut);
  CheckResidentBlocks<Tile, kWarps, kSharedBytes>();

  const Sizes& sizes = convolution.sizes;
  const Product& product = convolution.product;
  ForwardCall call = {};
  call.sizes = sizes;
  call.positions = convolution.positions;
  call.distances = CornerDistances(sizes, sizes.channels * int64_t{sizeof(T)});
  call.group_channels = int32_t(convolution.group_channels());
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.taps = sizes.taps();
  const int32_t rounds = (call.taps + kCornerTaps<kFeatures> - 1) / kCornerTaps<kFeatures>;
  call.corner_taps = (call.taps + rounds - 1) / rounds;
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.groups = int32_t(product.groups);
  call.feature_tiles = (call.group_features + kFeatures - 1) / kFeatures;
  call.weight_row_vectors = uint32_t(call.taps) * uint32_t(call.group_channels / kVectorElements<T>);
  call.blocks = (sizes.pixels() + kTilePixels - 1) / kTilePixels * call.groups * call.feature_tiles;
  call.is_y_float = is_y_float;
  return Launch<FusedForwardKernel<T, kFeatures, kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, kResidentBlocks}, call, static_cast<const T*>(x),
      static_cast<const T*>(weight), static_cast<const float*>(bias), y);
}

}  // namespace

const char* FusedForward(Device& device, const Convolution& convolution, FusedTile tile, bool is_y_float, const void* x,
                         const void* weight, const void* bias, void* y) {
  size_t sm_shared_bytes;
  const cudaError_t error = SmSharedBytes(&sm_shared_bytes);
  if (error != cudaSuccess) return Failure(error);
  if (tile.features == 256 && ResidentBlocks(sizeof(ForwardShared<256>), sm_shared_bytes) == 0) {
    return "tiles of 256 features, which were chosen for another GPU, need more shared memory than this one has";
  }
  return DispatchTensorCoreType(convolution.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto launcher) { return launcher(device, convolution, is_y_float, x, weight, bias, y); };
    if (tile.features == 256) return launch(LaunchForward<T, 256, 8>);
    if (tile.features == 128)
      return tile.warps == 4 ? launch(LaunchForward<T, 128, 4>) : launch(LaunchForward<T, 128, 8>);
    return tile.warps == 4 ? launch(LaunchForward<T, 64, 4>) : launch(LaunchForward<T, 64, 8>);
  });
}

}  // namespace dcn
