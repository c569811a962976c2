// The fused weight cotangent: for each feature group an implicit GEMM of the columns (taps and channels × pixels of the
// output) and the output's cotangent (pixels × features).
//
// A block computes 128 rows × 64 or 128 features, in stages of 64 pixels: it samples x as the fused forward does. K is
// the pixels, so that both operands lie MN-major in shared memory, and ldmatrix transposes them on the way to the
// tensor cores. The pixels are divided among blocks (split-K); the caller adds up the partial sums, so that the order
// of the additions is fixed.
//
// M of the GEMM is counted in vectors of channels. The vectors of a channel segment come tap by tap, one segment after
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
constexpr int kTileVectors = FusedLimits::kWeightTile / kVectorElements<__half>;
constexpr int kLineVectors = 8;  // 128 bytes, a line of the L1 cache

// Two blocks are resident per SM, so that one can multiply while the other loads. In tiles of 128 features, a block has
// 4 warps, whose large warp tiles read little shared memory; where shared memory allows only one block (sm_86, sm_89
// and sm_120), it has 8.
template <int kFeatures, int kBlockWarps>
struct WeightTile : TileShape<FusedLimits::kWeightTile, kFeatures, 256 / kBlockWarps, kFeatures / 2> {
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kResidentBlocks = kFeatures == 128 && kWarps == 8 ? 1 : 2;
};

// A vector of channels: neighbouring rows of a feature group's GEMM.
struct ChannelVector {
  int32_t sample;  // of a pixel in the feature group: segment · taps + tap
  int32_t tap;
  int32_t channel;  // of the group
};

struct WeightCall {
  Sizes sizes;
  Positions positions;
  int64_t pixel_samples;          // of all offset groups
  int32_t pixels, rows, columns;  // output size; `pixels` counts all images
  int32_t split_pixels;           // of a split; the last may have fewer
  CornerDistances distances;      // in x
  int32_t d_y_pixel_bytes;
  int32_t taps, features, group_features, groups, group_channels, offset_group_channels;
  int32_t segment_vectors;              // of a channel segment, see SegmentChannels
  int32_t group_vectors, tile_vectors;  // of the rows of a group, of a tile
  int32_t sample_bits;                  // of the index of a sample in a tile
  int32_t group_tiles, feature_tiles;
  int64_t blocks;
  int32_t zero;  // 0, which the compiler does not know

  __device__ ChannelVector ChannelVectorAt(int32_t i) const {
    const int32_t sample = i / segment_vectors;
    const int32_t channel_vector = sample / taps * segment_vectors + i % segment_vectors;
    return {sample, sample % taps, channel_vector * kVectorElements<__half>};
  }
};

struct WeightBlockTile {
  int32_t first_vector, vectors;
  int32_t first_sample, num_samples;  // of a pixel in the feature group
  int64_t first_pixel_sample;         // the index of first_sample among the samples of a pixel
  int32_t first_channel;              // of the feature group
  int32_t first_feature, features;
  int32_t first_pixel, pixels;
  int64_t first_row;  // of partial_sums, for the split

  WeightBlockTile() = default;
  __device__ WeightBlockTile(const WeightCall& call, int64_t block, int32_t tile_features) {
    const int32_t feature_in_group = int32_t(block % call.feature_tiles) * tile_features;
    block /= call.feature_tiles;
    first_vector = int32_t(block % call.group_tiles) * call.tile_vectors;
    block /= call.group_tiles;
    const int32_t group = int32_t(block % call.groups);
    const int64_t split = block / call.groups;

    const int32_t vectors_left = call.group_vectors - first_vector;
    vectors = vectors_left < call.tile_vectors ? vectors_left : call.tile_vectors;
    first_sample = call.ChannelVectorAt(first_vector).sample;
    num_samples = call.ChannelVectorAt(first_vector + vectors - 1).sample - first_sample + 1;
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

template <int kFeatures, int kTileSamples>
struct WeightShared {
  using Tile = WeightTile<kFeatures, 8>;
  // Tables of corners. With two, a block finds the corners of the next slice while it samples this one. Tiles of many
  // samples have no shared memory for a second one.
  static constexpr int kTables = kTileSamples == 1 ? 2 : 1;
  // The cotangent of slice k is copied while slice k + kTables is located, and the corners between them are found.
  static constexpr int kLocatedSlices = kTables + 1;

  struct {
    uint4 samples[Tile::kVectorsOfA], cotangent[Tile::kVectorsOfB];
  } stages[kStages];
  Corners corners[kTables][kSlicePixels * kTileSamples];
  int32_t pixels[kLocatedSlices][kSlicePixels];  // of the output; -1 past the end of the split
  SampledPixel sampled[kTables][kSlicePixels];
  Vector<int32_t, 2> distance[kTileSamples];  // of each sample's tap from the first
  int64_t rows[kTileVectors];                 // of partial_sums, the first of each vector; -1 past the end
  WeightBlockTile block_tile;                 // in shared memory, because the accumulators need the registers
};

// Computes a thread's share of a block's tile. A slice is kSlicePixels pixels. In a pass over a slice, a thread samples
// two vectors of a pixel, so that eight threads read a whole line of the L1 cache.
template <typename T, int kFeatures, int kWarps, int kTileSamples>
class WeightThread {
 public:
  using Tile = WeightTile<kFeatures, kWarps>;
  using Shared = WeightShared<kFeatures, kTileSamples>;
  using Accumulators = WarpTile<T, Tile, Layout::kMNMajor>;

  static constexpr int kTables = Shared::kTables;

  __device__ explicit WeightThread(const WeightCall& call)
      : call_(call),
        shared_(*reinterpret_cast<Shared*>(dynamic_shared)),
        sample_bits_(kHasOneSample ? 0 : call.sample_bits) {}

  __device__ void StartTile(int64_t block, const T* x, const T* d_y) {
    if (thread_ == 0) shared_.block_tile = WeightBlockTile(call_, block, kFeatures);
    __syncthreads();
    if (thread_ < tile().num_samples) {
      const int32_t tap = (tile().first_sample + thread_) % call_.taps;
      shared_.distance[thread_] = {
          {int32_t(call_.sizes.window.distance(0, tap)), int32_t(call_.sizes.window.distance(1, tap))}};
    }
    if (thread_ < kTileVectors) {
      const ChannelVector vector = call_.ChannelVectorAt(tile().first_vector + thread_);
      shared_.rows[thread_] = thread_ < tile().vectors
                                  ? tile().first_row + int64_t{vector.tap} * call_.group_channels + vector.channel
                                  : -1;
    }
    d_y_ = uintptr_t(d_y + tile().first_feature + vector_ * kVectorElements<T>);
    d_y_vectors_ = tile().features / kVectorElements<T>;
    for (int k = 0; k < 2; ++k) {
      const int in_tile = vector_ + k * kLineVectors;
      const bool is_valid = in_tile < tile().vectors;
      const ChannelVector from = call_.ChannelVectorAt(tile().first_vector + (is_valid ? in_tile : 0));
      corners_[k] = (row_ << sample_bits_) + from.sample - tile().first_sample;
      channels_[k] = is_valid ? x + tile().first_channel + from.channel : nullptr;
    }
  }

  __device__ int32_t num_slices() const { return (tile().pixels + kSlicePixels - 1) / kSlicePixels; }

  __device__ void LocatePixels(int32_t slice) {
    if (thread_ >= kSlicePixels) return;
    const int32_t i = slice * kSlicePixels + thread_;
    int32_t* index = &shared_.pixels[slice % kLocatedSlices][thread_];
    *index = -1;
    if (i >= tile().pixels) return;
    const auto pixel = LocateInStrips(call_.rows, call_.columns, tile().first_pixel + i);
    *index = pixel.index(call_.rows, call_.columns);
    shared_.sampled[slice % kTables][thread_] = SampledPixel(call_.sizes, call_.positions, pixel);
  }

  __device__ void StoreCorners(int32_t slice) {
    for (int i = thread_; i < kSlicePixels << sample_bits_; i += Tile::kThreads) {
      const int sample = i & ((1 << sample_bits_) - 1);
      if (sample >= tile().num_samples) continue;
      const int pixel = i >> sample_bits_;
      const int64_t p = shared_.pixels[slice % kLocatedSlices][pixel];
      Corners corners = NoCorners();
      if (p >= 0) {
        const int64_t sample_index = p * call_.pixel_samples + tile().first_pixel_sample + sample;
        corners = FindCorners(call_.sizes, shared_.sampled[slice % kTables][pixel],
                              SampleOperands<float>(call_.positions, sample_index), shared_.distance[sample]);
      }
      shared_.corners[slice % kTables][i] = corners;
    }
  }

  __device__ void CopyCotangent(int32_t slice) {
    uint4* to = &shared_.stages[slice % kStages].cotangent[swizzled_index<kCotangentVectors>(row_, vector_)];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int64_t p = shared_.pixels[slice % kLocatedSlices][row_ + i * kPassRows];
      for (int k = 0; k < kCotangentVectors; k += kLineVectors) {
        const bool is_valid = p >= 0 && vector_ + k < d_y_vectors_;
        const auto* from = reinterpret_cast<const void*>(d_y_ + p * call_.d_y_pixel_bytes + k * kGemmVectorBytes);
        copy_async(to + i * kPassRows * kCotangentVectors + k, from, !is_valid);
      }
    }
  }

  // Samples a slice, pass by pass, and multiplies the slice before it, if there is one, meanwhile.
  __device__ void SampleAndMultiply(int32_t slice, Accumulators& sums) {
    __syncwarp();  // for ldmatrix
    uint4* to = &shared_.stages[slice % kStages].samples[swizzled_index<kTileVectors>(row_, vector_)];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto multiply_and_store = [&](const Loads& first, const Loads& second) {
        if (slice > 0) {
#pragma unroll
          for (int step = 0; step < kPassSteps; ++step) MultiplyStep(slice - 1, pass * kPassSteps + step, sums);
        }
        const int zero = sums.ZeroAfterProducts(call_.zero, Tile::kFragmentsN - 1, 1);
        // In a tile of one sample, `second` is `first`, which has loaded both vectors.
        const uint4 samples[] = {first.Blend(zero), second.Blend(zero, kHasOneSample ? 1 : 0)};
        for (int k = 0; k < 2; ++k) to[pass * kPassRows * kTileVectors + k * kLineVectors] = samples[k];
      };
      const Loads loads = LoadCorners(slice, pass, 0);
      if constexpr (kHasOneSample) {
        multiply_and_store(loads, loads);
      } else {
        multiply_and_store(loads, LoadCorners(slice, pass, 1));
      }
    }
  }

  // Multiplies the last slice, if there is one. A split without pixels has none, and passes -1.
  __device__ void MultiplySlice(int32_t slice, Accumulators& sums) {
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kSliceSteps && slice >= 0; ++step) MultiplyStep(slice, step, sums);
  }

  __device__ void Store(const Accumulators& sums, float* partial_sums) const {
    sums.ForEachPair(tile().first_feature, [&](int tile_row, int32_t feature, float first, float second) {
      const int64_t first_row = shared_.rows[tile_row / kVectorElements<T>];
      if (first_row < 0 || feature >= tile().first_feature + tile().features) return;
      const int64_t partial_row = first_row + tile_row % kVectorElements<T>;
      AsVector<2>(partial_sums + partial_row * call_.features + feature) = {{first, second}};
    });
  }

 private:
  static constexpr bool kHasOneSample = kTileSamples == 1;
  static constexpr int kLocatedSlices = Shared::kLocatedSlices;
  static constexpr int kCotangentVectors = kFeatures / kVectorElements<T>;  // of a pixel
  static constexpr int kPassRows = Tile::kThreads / kLineVectors, kPasses = kSlicePixels / kPassRows;
  static constexpr int kPassSteps = kSliceSteps / kPasses;
  static_assert(Tile::kM == kTileVectors * kVectorElements<T> && kTileVectors == 2 * kLineVectors);
  static_assert(kSlicePixels * kTileVectors == Tile::kVectorsOfA &&
                kSlicePixels * kCotangentVectors == Tile::kVectorsOfB);
  static_assert(kPassRows % 8 == 0, "the vectors of a thread must have one swizzle in all rows");
  static_assert(kPasses * kPassSteps == kSliceSteps, "each pass must have the same number of mma steps");

  using Loads = CornerLoads<T, kHasOneSample ? 2 : 1, kLineVectors * kGemmVectorBytes>;

  __device__ const WeightBlockTile& tile() const { return shared_.block_tile; }

  // The corners of the first or second vector of the thread in a pass; in a tile of one sample, those of both vectors.
  __device__ Loads LoadCorners(int32_t slice, int pass, int k) const {
    return Loads(shared_.corners[slice % kTables][corners_[k] + (pass * kPassRows << sample_bits_)], channels_[k],
                 call_.distances, kHasOneSample || channels_[k] != nullptr);
  }

  __device__ void MultiplyStep(int32_t slice, int step, Accumulators& sums) const {
    typename Accumulators::FragmentsOfA a;
    sums.LoadA(shared_.stages[slice % kStages].samples, step, a);
    sums.MultiplyColumns(shared_.stages[slice % kStages].cotangent, step, a, 0, Tile::kFragmentsN);
  }

  const WeightCall& call_;
  Shared& shared_;
  const int sample_bits_;
  // The first vector of a pass that the thread copies or samples; the others of the row are a line apart.
  const int thread_ = int(threadIdx.x), row_ = thread_ / kLineVectors, vector_ = thread_ % kLineVectors;
  uintptr_t d_y_;    // the address of that vector in the first pixel of the output's cotangent
  int d_y_vectors_;  // of a pixel, from the tile's first feature on
  int corners_[2];   // the indices of the corners of the two vectors in a table
  const T* channels_[2];
};

// One block per tile of a group's rows × kFeatures features, for one split.
template <typename T, int kFeatures, int kWarps, int kTileSamples>
__global__ void __launch_bounds__(kWarps* kWarp, WeightTile<kFeatures, kWarps>::kResidentBlocks)
    FusedWeightCotangentKernel(WeightCall call, const T* __restrict__ x, const T* __restrict__ d_y,
                               float* partial_sums) {
  using Thread = WeightThread<T, kFeatures, kWarps, kTileSamples>;
  constexpr int kTables = Thread::kTables;
  Thread thread(call);
  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    thread.StartTile(block, x, d_y);
    for (int32_t slice = 0; slice < kTables; ++slice) thread.LocatePixels(slice);
    __syncthreads();
    thread.StoreCorners(0);
    __syncthreads();
    typename Thread::Accumulators sums;
    const int32_t slices = thread.num_slices();
    for (int32_t slice = 0; slice < slices; ++slice) {
      thread.CopyCotangent(slice);
      thread.LocatePixels(slice + kTables);
      thread.SampleAndMultiply(slice, sums);
      if constexpr (kTables == 1) __syncthreads();  // all have read the corners that are replaced
      thread.StoreCorners(slice + 1);
      wait_async_copies();
      __syncthreads();
    }
    thread.MultiplySlice(slices - 1, sums);
    thread.Store(sums, partial_sums);
    __syncthreads();
  }
}

// The most samples of a pixel that tiles of `tile_vectors` vectors have.
int32_t MostSamples(int32_t segment_vectors, int32_t tile_vectors, int32_t group_samples) {
  const bool is_aligned = segment_vectors % tile_vectors == 0 || tile_vectors % segment_vectors == 0;
  const int32_t first = is_aligned ? 0 : segment_vectors - 1;  // in its segment
  return std::min((first + tile_vectors - 1) / segment_vectors + 1, group_samples);
}

template <typename T, typename Tile, int kTileSamples>
const char* LaunchWeightCotangent(const Device& device, const Convolution& convolution, int64_t num_splits,
                                  const void* x, const void* d_y, float* partial_sums) {
  constexpr size_t kSharedBytes = sizeof(WeightShared<Tile::kN, kTileSamples>);
  static_assert(Tile::kResidentBlocks * (kSharedBytes + kReservedSharedBytes) <= kSmSharedBytesSm80);
  CheckResidentBlocks<Tile, Tile::kWarps, kSharedBytes>();
  const Sizes& sizes = convolution.sizes;
  const Product& product = convolution.product;
  WeightCall call = {};
  call.sizes = sizes;
  call.positions = convolution.positions;
  call.pixel_samples = sizes.offset_groups * sizes.taps();
  call.pixels = int32_t(sizes.pixels());
  call.rows = int32_t(sizes.rows);
  call.columns = int32_t(sizes.columns);
  call.distances = CornerDistances(sizes, sizes.channels * int64_t{sizeof(T)});
  call.d_y_pixel_bytes = int32_t(product.features * sizeof(T));
  call.taps = sizes.taps();
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.groups = int32_t(product.groups);
  call.group_channels = int32_t(convolution.group_channels());
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.segment_vectors = int32_t(SegmentChannels(convolution) / kVectorElements<T>);
  call.group_vectors = call.taps * (call.group_channels / kVectorElements<T>);
  call.tile_vectors = std::min(kTileVectors, kTileSamples * call.segment_vectors);
  const int32_t num_samples =
      MostSamples(call.segment_vectors, call.tile_vectors, call.group_vectors / call.segment_vectors);
  while (1 << call.sample_bits < num_samples) ++call.sample_bits;
  call.group_tiles = (call.group_vectors + call.tile_vectors - 1) / call.tile_vectors;
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
    if (tile.features == 64) return launch(tag, WeightTile<64, 8>());
    return tile.warps == 4 ? launch(tag, WeightTile<128, 4>()) : launch(tag, WeightTile<128, 8>());
  };
  if (convolution.dtype == DType::kF16) return launch_tile(__half());
  if (convolution.dtype == DType::kBF16) return launch_tile(__nv_bfloat16());
  return "the tensor cores transpose only 16-bit numbers";
}

}  // namespace dcn
