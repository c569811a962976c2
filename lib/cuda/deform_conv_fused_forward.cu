// The fused forward: an implicit matrix product, whose one operand is sampled on the way to shared memory.
//
// A block computes 128 pixels of the output by 64, 128 or 256 features, in stages of 128 bytes of depth, two of them in
// shared memory. While the warps multiply one, every thread loads the four corners of the next one's samples, 16 bytes
// each, blends them in float32 behind the products, and stores them rounded, swizzled against bank conflicts; the
// weight is copied asynchronously.
//
// What to expect of an H200 in bfloat16, counted from the instructions of sm_90 and not yet measured. For 16 channels,
// in clocks of a multiprocessor, of which the first cache moves 128 bytes, the matrix units of mma.sync take about
// 1,270 multiply-adds (62% of what wgmma would) and four schedulers issue an instruction each:
//
//   features of a block   loads, shared memory   products   instructions   at most, of the dense peak
//           256                   490                413          440                52%
//           128                   340                206          340                38%
//            64                   290                103          300                21%
//
// None of the three hides the others wholly: 300 to 400 TFLOP/s are likely for 256 features, 200 to 300 for 128.
// Two thirds of the bytes are the gathered pixels and the matrices' way through registers. wgmma would read the latter
// straight from shared memory, on sm_90 alone, and gain about a fifth for 256 features and a tenth for 128.
#include "deform_conv_fused.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"
#include "gather.h"
#include "launch.h"
#include "tiles.h"
#include "vector.h"

namespace dcn {
namespace {

// How a block computes kPixels by kFeatures: in warps of 64 features, and 64 pixels or 32.
template <int kFeatures>
struct Tile {
  static constexpr int kWarpsOfFeatures = kFeatures / 64;
  static constexpr int kWarpsOfPixels = kFeatures == 64 ? 4 : 2;
  static constexpr int kWarps = kWarpsOfFeatures * kWarpsOfPixels;
  static constexpr int kPixelTiles = kPixels / kWarpsOfPixels / 16, kFeatureTiles = 8;
  // Resident on a multiprocessor, and taps whose corners are held at a time: so that shared memory leaves the first
  // cache 60 KB or more of an H100's 256.
  static constexpr int kBlocks = kFeatures == 256 ? 1 : kFeatures == 128 ? 2 : 3;
  static constexpr int kTaps = kFeatures == 256 ? 9 : kFeatures == 128 ? 5 : 3;
};

template <int kFeatures>
struct Shared {
  struct {
    uint4 samples[kPixels * kDepth], weight[kFeatures * kDepth];
  } stages[2];
  Corners corners[Tile<kFeatures>::kTaps * kPixels];
  int64_t pixels[kPixels];  // of the output, -1 behind the last
};

// What a call's blocks have in common, which costs no registers here.
struct Call {
  Sizes sizes;
  Positions positions;
  int32_t pixel_bytes, group_channels, offset_group_channels;
  int32_t taps, taps_held;  // held at a time, or fewer
  int32_t features, group_features, groups;
  int32_t feature_tiles;  // of a group
  int64_t depth, blocks;
  bool wide;
  int32_t zero;  // which the compiler does not know
};

// The depth of the product, taps by channels of a group, stage by stage: for each offset group, as many taps as have
// their corners held; for them, channels of up to a stage's width; and of these, taps by vectors.
template <int kVector>
class Depth {
 public:
  // A vector of a stage.
  struct Part {
    bool there;
    int32_t tap;  // among those held
    int32_t channel;
  };

  __device__ Depth(const Call& call, int32_t group)
      : call_(call), end_((group + 1) * call.group_channels), channel_(group * call.group_channels) {
    FindOffsetGroup();
  }

  __device__ bool done() const { return channel_ == end_; }
  __device__ int32_t offset_group() const { return channel_ / call_.offset_group_channels; }
  __device__ int32_t first_tap() const { return first_tap_; }
  __device__ int32_t held() const {
    const int32_t left = call_.taps - first_tap_;
    return left < call_.taps_held ? left : call_.taps_held;
  }

  __device__ Part PartOf(int lane) const {
    if (done()) return {false, 0, 0};
    const int32_t vector = vector_ + lane;
    if (vector >= held() * width()) return {false, 0, 0};
    return {true, vector / width(), channel_ + vector % width() * kVector};
  }

  // To the next stage; true if it needs other corners.
  __device__ bool Advance() {
    if (done()) return false;
    vector_ += kDepth;
    if (vector_ < held() * width()) return false;
    vector_ = 0;
    channel_ += width() * kVector;
    if (channel_ < offset_group_end_) return false;
    first_tap_ += call_.taps_held;
    if (first_tap_ < call_.taps) {
      const int32_t of_group = end_ - call_.group_channels, of_offset_group = offset_group_end_ - 1;
      channel_ = of_offset_group / call_.offset_group_channels * call_.offset_group_channels;
      if (channel_ < of_group) channel_ = of_group;
      return true;
    }
    first_tap_ = 0;
    FindOffsetGroup();
    return !done();
  }

 private:
  // Vectors of a tap in the stages from here on.
  __device__ int32_t width() const {
    const int32_t left = (offset_group_end_ - channel_) / kVector;
    return left < kDepth ? left : kDepth;
  }

  __device__ void FindOffsetGroup() {
    if (done()) return;
    offset_group_end_ = (offset_group() + 1) * call_.offset_group_channels;
    if (offset_group_end_ > end_) offset_group_end_ = end_;
  }

  const Call& call_;
  int32_t end_, offset_group_end_;  // of the group's channels, and of those that share the offset group
  int32_t channel_;
  int32_t first_tap_ = 0;  // of those held
  int32_t vector_ = 0;     // the stage's first, of the held taps by `width`
};

// A block for kPixels of the output by kFeatures of a group.
template <typename T, int kFeatures>
__global__ void __launch_bounds__(Tile<kFeatures>::kWarps* kWarp, Tile<kFeatures>::kBlocks)
    FusedForwardKernel(Call call, const T* __restrict__ x, const T* __restrict__ weight, const float* __restrict__ bias,
                       void* y) {
  using Tile = Tile<kFeatures>;
  constexpr int kVector = 16 / sizeof(T), kThreads = Tile::kWarps * kWarp;
  constexpr int kRowsAtOnce = kThreads / kDepth, kGathers = kPixels / kRowsAtOnce, kPasses = kGathers / kSteps;
  auto& shared = *reinterpret_cast<Shared<kFeatures>*>(dynamic_shared);

  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int row = thread / kDepth, vector = thread % kDepth;  // of what the thread brings to shared memory
  const int kept_at = swizzled_index(row, vector);
  const int first_pixel = warp / Tile::kWarpsOfFeatures * Tile::kPixelTiles * 16;  // of what its warp multiplies
  const int first_feature = warp % Tile::kWarpsOfFeatures * Tile::kFeatureTiles * 8;
  const int samples_at = swizzled_index(first_pixel + lane % 16, lane / 16);
  const int weight_at = swizzled_index(first_feature + lane / 16 * 8 + lane % 8, lane / 8 % 2);

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    const int32_t group = int32_t(block / call.feature_tiles % call.groups);
    const int32_t tile_feature = int32_t(block % call.feature_tiles) * kFeatures;
    if (thread < kPixels) {
      const int64_t i = block / call.feature_tiles / call.groups * kPixels + thread;
      shared.pixels[thread] = i < call.sizes.pixels() ? PixelInStrips(call.sizes.rows, call.sizes.columns, i) : -1;
    }
    __syncthreads();

    Depth<kVector> depth(call, group);
    auto find_corners = [&] {
      const int64_t p = shared.pixels[thread % kPixels];
      for (int k = thread / kPixels; k < depth.held(); k += kThreads / kPixels) {
        const int32_t tap = depth.first_tap() + k;
        const Corners corners = FindCorners(call.sizes, call.positions, p, depth.offset_group(), tap);
        shared.corners[k * kPixels + thread % kPixels] = corners;
      }
      __syncthreads();
    };
    auto copy_weight = [&](int stage, const auto& part) {
      const int32_t tap = depth.first_tap() + part.tap, channel = part.channel - group * call.group_channels;
      const T* from = weight + (group * call.group_features + tile_feature + row) * call.depth +
                      int64_t{tap} * call.group_channels + channel;
      for (int i = 0; i < kFeatures / kRowsAtOnce; ++i) {
        const bool there = part.there && tile_feature + row + i * kRowsAtOnce < call.group_features;
        copy_async(&shared.stages[stage].weight[kept_at + i * kRowsAtOnce * kDepth],
                   there ? from + i * kRowsAtOnce * call.depth : weight, !there);
      }
    };
    auto gather = [&](const auto& part, int i) {
      return CornerLoads<T>(shared.corners[part.tap * kPixels + row + i * kRowsAtOnce], x + part.channel,
                            call.pixel_bytes, part.there);
    };
    auto store_samples = [&](int stage, int i, const CornerLoads<T>& gathered, int zero_dependency) {
      shared.stages[stage].samples[kept_at + i * kRowsAtOnce * kDepth] = gathered.Blend(zero_dependency);
    };

    float sum[Tile::kPixelTiles][Tile::kFeatureTiles][4] = {};
    auto load_samples = [&](int stage, int step, auto& a) {
      for (int i = 0; i < Tile::kPixelTiles; ++i) {
        load_matrix_fragments(a[i], &shared.stages[stage].samples[(samples_at ^ 2 * step) + i * 16 * kDepth]);
      }
    };
    auto multiply = [&](int stage, int step, const auto& a, int pass) {
      constexpr int kTiles = Tile::kFeatureTiles / kPasses;
#pragma unroll
      for (int j = pass * kTiles; j < (pass + 1) * kTiles; j += 2) {
        uint32_t b[4];
        load_matrix_fragments(b, &shared.stages[stage].weight[(weight_at ^ 2 * step) + j * 8 * kDepth]);
        for (int i = 0; i < Tile::kPixelTiles; ++i) {
          mma<T>(sum[i][j], a[i], {b[0], b[1]});
          mma<T>(sum[i][j + 1], a[i], {b[2], b[3]});
        }
      }
    };
    // Zero, once the last products of a pass are done: what needs it stays behind them, where the compiler would wait
    // for the samples first.
    auto zero_after = [&](int pass) {
      const int j = (pass + 1) * Tile::kFeatureTiles / kPasses - 2;
      int bits = 0;
      for (int i = 0; i < Tile::kPixelTiles; ++i)
        bits |= __float_as_int(sum[i][j][0]) | __float_as_int(sum[i][j + 1][0]);
      return bits & call.zero;
    };

    // Each round brings a stage, or zeros behind the last, while that before is multiplied.
    bool first = true, last = false, other_corners = !depth.done();
    for (int stage = 0; !last; stage = 1 - stage) {
      last = depth.done();
      if (other_corners) find_corners();
      const auto part = depth.PartOf(vector);
      copy_weight(1 - stage, part);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[Tile::kPixelTiles][4] = {};
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const CornerLoads<T> gathered = gather(part, step * kPasses + pass);
          if (!first) {
            if (pass == 0) load_samples(stage, step, a);
            multiply(stage, step, a, pass);
          }
          store_samples(1 - stage, step * kPasses + pass, gathered, zero_after(pass));
        }
      }
      other_corners = depth.Advance();
      first = false;
      wait_async_copies();
      __syncthreads();
    }

#pragma unroll
    for (int j = 0; j < Tile::kFeatureTiles; ++j) {
      const int32_t within = tile_feature + first_feature + j * 8 + lane % 4 * 2;
      if (within >= call.group_features) continue;
      const int32_t feature = group * call.group_features + within;
#pragma unroll
      for (int i = 0; i < Tile::kPixelTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t p = shared.pixels[first_pixel + i * 16 + half * 8 + lane / 4];
          if (p < 0) continue;
          StorePair<T>(y, p * call.features + feature, call.wide, sum[i][j][2 * half] + bias[feature],
                       sum[i][j][2 * half + 1] + bias[feature + 1]);
        }
      }
    }
    __syncthreads();
  }
}

template <typename T, int kFeatures>
const char* LaunchFused(const Device& device, const Sizes& sizes, const Positions& positions, const Product& product,
                        bool wide, const void* x, const void* weight, const void* bias, void* y) {
  Call call = {};
  call.sizes = sizes;
  call.positions = positions;
  call.pixel_bytes = int32_t(sizes.channels * sizeof(T));
  call.group_channels = int32_t(sizes.channels / product.groups);
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.taps = sizes.taps();
  const int32_t rounds = (call.taps + Tile<kFeatures>::kTaps - 1) / Tile<kFeatures>::kTaps;
  call.taps_held = (call.taps + rounds - 1) / rounds;
  call.features = int32_t(product.features);
  call.group_features = int32_t(product.group_features());
  call.groups = int32_t(product.groups);
  call.feature_tiles = (call.group_features + kFeatures - 1) / kFeatures;
  call.depth = int64_t{call.taps} * call.group_channels;
  call.blocks = (sizes.pixels() + kPixels - 1) / kPixels * call.groups * call.feature_tiles;
  call.wide = wide;
  return Launch(device, FusedForwardKernel<T, kFeatures>,
                {call.blocks, Tile<kFeatures>::kWarps * kWarp, sizeof(Shared<kFeatures>)}, call,
                static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const float*>(bias), y);
}

// In narrower tiles than asked for where the device has too little shared memory for them.
template <typename T, int kFeatures, typename... Arguments>
const char* LaunchInTiles(int32_t tile_features, size_t max_shared_bytes, Arguments... arguments) {
  if constexpr (kFeatures > 64) {
    if (tile_features < kFeatures || sizeof(Shared<kFeatures>) > max_shared_bytes) {
      return LaunchInTiles<T, kFeatures / 2>(tile_features, max_shared_bytes, arguments...);
    }
  }
  return LaunchFused<T, kFeatures>(arguments...);
}

}  // namespace

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, int32_t tile_features, bool wide, const void* x, const void* weight,
                         const void* bias, void* y) {
  return DispatchMatrix(dtype, [&](auto tag) {
    return LaunchInTiles<decltype(tag), 256>(tile_features, MaxSharedBytes(), device, sizes, positions, product, wide,
                                             x, weight, bias, y);
  });
}

}  // namespace dcn
