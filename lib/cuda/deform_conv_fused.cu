#include "deform_conv_fused.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <matrix.h>

#include <cmath>

#include "device.h"
#include "launch.h"
#include "vector.h"

extern __shared__ uint4 dynamic_shared[];

namespace dcn {
namespace {

constexpr int kPixels = 128;        // of the output, the rows of a block's product
constexpr int kDepth = 8;           // of a stage, in vectors of 16 bytes
constexpr int kSteps = kDepth / 2;  // the matrix units take two at a time
constexpr int kStrip = 8;           // rows of the output whose pixels are counted column by column

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

// What a sample reads: pixels of x, -1 for none, and their weights times the mask.
struct alignas(16) Corners {
  int32_t pixel[4];
  float weight[4];
};

template <int kFeatures>
struct Shared {
  struct {
    uint4 samples[kPixels * kDepth], weight[kFeatures * kDepth];
  } stages[2];
  Corners corners[Tile<kFeatures>::kTaps * kPixels];
  int64_t pixels[kPixels];  // of the output, -1 behind the last
};

// Vector `vector` of row `row` in shared memory. Eight rows have the same vector, and a row its eight vectors, in
// different banks.
__device__ int Place(int row, int vector) { return row * kDepth + (vector ^ row % kDepth); }

// The number of the pixel that is the i-th strip by strip, column by column: neighbours in both directions follow each
// other, so that their samples meet in the cache, and no tile of pixels is ragged but the last.
__device__ int64_t PixelInStrips(const Sizes& sizes, int64_t i) {
  const int64_t image = i / (sizes.rows * sizes.columns), within = i % (sizes.rows * sizes.columns);
  const int64_t strip = within / (kStrip * sizes.columns), rest = within % (kStrip * sizes.columns);
  const int64_t left = sizes.rows - strip * kStrip, height = left < kStrip ? left : kStrip;
  return (image * sizes.rows + strip * kStrip + rest % height) * sizes.columns + rest / height;
}

__device__ Corners FindCorners(const Sizes& sizes, const Positions& positions, int64_t p, int64_t g, int32_t k) {
  if (p < 0) return {{-1, -1, -1, -1}, {0, 0, 0, 0}};
  const int64_t position = (p * sizes.offset_groups + g) * sizes.taps() + k;
  const int64_t column = p % sizes.columns, row = p / sizes.columns % sizes.rows;
  const int64_t image = p / sizes.columns / sizes.rows;
  const Sample<float> sample = Locate(sizes.window, sizes.height, sizes.width, row, column, k,
                                      static_cast<const float*>(positions.offset) + 2 * position);
  const float mask = positions.mask ? static_cast<const float*>(positions.mask)[position] : 1;
  const float nothing = sample.nan() ? NAN : 0;
  Corners corners;
  for (int corner = 0; corner < 4; ++corner) {
    const int i = corner / 2, j = corner % 2;
    const int64_t pixel = (image * sizes.height + sample.y.pixel[i]) * sizes.width + sample.x.pixel[j];
    corners.pixel[corner] = sample.inside() && sample.touches(i, j) ? int32_t(pixel) : -1;
    corners.weight[corner] = (sample.inside() ? sample.weight(i, j) : nothing) * mask;
  }
  return corners;
}

// The depth of the product, taps by channels of a group, stage by stage: for each offset group, as many taps as have
// their corners held; for them, channels of up to a stage's width; and of these, taps by vectors.
template <int kVector, int kTaps>
class Depth {
 public:
  // A vector of a stage.
  struct Part {
    bool there;
    int32_t tap;  // among those held
    int32_t channel;
  };

  __device__ Depth(const Sizes& sizes, int32_t first_channel, int32_t channels)
      : taps_(sizes.taps()),
        most_held_((taps_ + (taps_ + kTaps - 1) / kTaps - 1) / ((taps_ + kTaps - 1) / kTaps)),
        offset_group_channels_(int32_t(sizes.group_channels())),
        end_(first_channel + channels) {
    EnterOffsetGroup(first_channel);
  }

  __device__ bool done() const { return channel_ == end_; }
  __device__ int32_t offset_group() const { return channel_ / offset_group_channels_; }
  __device__ int32_t first_tap() const { return first_tap_; }
  __device__ int32_t held() const { return most_held_ < taps_ - first_tap_ ? most_held_ : taps_ - first_tap_; }

  __device__ Part PartOf(int lane) const {
    if (done()) return {false, 0, 0};
    const int32_t vector = vector_ + lane;
    if (vector >= held() * width()) return {false, 0, 0};
    return {true, vector / width(), channel_ + vector % width() * kVector};
  }

  // To the next stage; true if it needs other corners.
  __device__ bool Advance() {
    vector_ += kDepth;
    if (vector_ < held() * width()) return false;
    vector_ = 0;
    channel_ += width() * kVector;
    if (channel_ < offset_group_end_) return false;
    first_tap_ += most_held_;
    if (first_tap_ < taps_) {
      channel_ = offset_group_begin_;
    } else {
      EnterOffsetGroup(offset_group_end_);
    }
    return !done();
  }

 private:
  __device__ int32_t width() const {
    const int32_t left = (offset_group_end_ - channel_) / kVector;
    return left < kDepth ? left : kDepth;
  }

  __device__ void EnterOffsetGroup(int32_t channel) {
    offset_group_begin_ = channel_ = channel;
    first_tap_ = vector_ = 0;
    if (done()) return;
    offset_group_end_ = (channel / offset_group_channels_ + 1) * offset_group_channels_;
    if (offset_group_end_ > end_) offset_group_end_ = end_;
  }

  int32_t taps_, most_held_, offset_group_channels_, end_;
  int32_t offset_group_begin_, offset_group_end_, first_tap_;  // first of those held
  int32_t channel_, vector_;                                   // first of the stage, vectors within taps by channels
};

// 16 bytes of channels of a sample, on their way to shared memory.
template <typename T>
class Gather {
 public:
  __device__ Gather(const Corners& corners, const T* x, int32_t channels, bool there) {
    for (int corner = 0; corner < 4; ++corner) {
      pixel_[corner] = {};
      weight_[corner] = corners.weight[corner];
      const int32_t pixel = corners.pixel[corner];
      if (there && pixel >= 0) pixel_[corner] = AsVector<kVector>(x + int64_t{pixel} * channels);
    }
  }

  __device__ uint4 Blend() const {
    float sum[kVector];
    for (int v = 0; v < kVector; ++v) sum[v] = weight_[0] * float(pixel_[0].value[v]);
    for (int corner = 1; corner < 4; ++corner) {
      for (int v = 0; v < kVector; ++v) sum[v] += weight_[corner] * float(pixel_[corner].value[v]);
    }
    constexpr int kWord = 4 / sizeof(T);
    return {RoundToWord<T>(sum), RoundToWord<T>(sum + kWord), RoundToWord<T>(sum + 2 * kWord),
            RoundToWord<T>(sum + 3 * kWord)};
  }

 private:
  static constexpr int kVector = 16 / sizeof(T);

  Vector<T, kVector> pixel_[4];
  float weight_[4];
};

template <typename T>
__device__ void StorePair(void* y, int64_t index, bool wide, float first, float second) {
  if (wide) {
    AsVector<2>(static_cast<float*>(y) + index) = {{first, second}};
  } else {
    AsVector<2>(static_cast<T*>(y) + index) = {{T(first), T(second)}};
  }
}

// A block for kPixels of the output by kFeatures of a group.
template <typename T, int kFeatures>
__global__ void __launch_bounds__(Tile<kFeatures>::kWarps* kWarp, Tile<kFeatures>::kBlocks)
    FusedForwardKernel(Sizes sizes, Positions positions, Product product, const T* __restrict__ x,
                       const T* __restrict__ weight, const float* __restrict__ bias, void* y) {
  using Tile = Tile<kFeatures>;
  constexpr int kVector = 16 / sizeof(T), kThreads = Tile::kWarps * kWarp;
  constexpr int kRowsAtOnce = kThreads / kDepth, kGathers = kPixels / kRowsAtOnce, kPasses = kGathers / kSteps;
  auto& shared = *reinterpret_cast<Shared<kFeatures>*>(dynamic_shared);

  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int row = thread / kDepth, vector = thread % kDepth;  // of what the thread brings to shared memory
  const int kept_at = Place(row, vector);
  const int first_pixel = warp / Tile::kWarpsOfFeatures * Tile::kPixelTiles * 16;  // of what its warp multiplies
  const int first_feature = warp % Tile::kWarpsOfFeatures * Tile::kFeatureTiles * 8;
  const int samples_at = Place(first_pixel + lane % 16, lane / 16);
  const int weight_at = Place(first_feature + lane / 16 * 8 + lane % 8, lane / 8 % 2);

  const int32_t channels = int32_t(sizes.channels), group_channels = int32_t(sizes.channels / product.groups);
  const int64_t depth_size = int64_t{sizes.taps()} * group_channels;
  const int64_t feature_tiles = (product.group_features() + kFeatures - 1) / kFeatures;
  const int64_t blocks = (sizes.pixels() + kPixels - 1) / kPixels * product.groups * feature_tiles;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int32_t group = int32_t(block / feature_tiles % product.groups);
    const int32_t tile_feature = int32_t(block % feature_tiles) * kFeatures;
    if (thread < kPixels) {
      const int64_t i = block / feature_tiles / product.groups * kPixels + thread;
      shared.pixels[thread] = i < sizes.pixels() ? PixelInStrips(sizes, i) : -1;
    }
    __syncthreads();

    Depth<kVector, Tile::kTaps> depth(sizes, group * group_channels, group_channels);
    auto find_corners = [&] {
      const int64_t p = shared.pixels[thread % kPixels];
      for (int k = thread / kPixels; k < depth.held(); k += kThreads / kPixels) {
        shared.corners[k * kPixels + thread % kPixels] =
            FindCorners(sizes, positions, p, depth.offset_group(), depth.first_tap() + k);
      }
      __syncthreads();
    };
    auto copy_weight = [&](int stage, const auto& part) {
      const T* from = weight + (group * product.group_features() + tile_feature) * depth_size +
                      int64_t{depth.first_tap() + part.tap} * group_channels + part.channel - group * group_channels;
      for (int i = 0; i < kFeatures / kRowsAtOnce; ++i) {
        const int feature = row + i * kRowsAtOnce;
        const bool there = part.there && tile_feature + feature < product.group_features();
        CopyLater(&shared.stages[stage].weight[kept_at + i * kRowsAtOnce * kDepth],
                  there ? from + feature * depth_size : weight, !there);
      }
    };
    auto gather = [&](const auto& part, int i) {
      return Gather<T>(shared.corners[part.tap * kPixels + row + i * kRowsAtOnce], x + part.channel, channels,
                       part.there);
    };
    auto keep = [&](int stage, int i, const Gather<T>& gathered) {
      shared.stages[stage].samples[kept_at + i * kRowsAtOnce * kDepth] = gathered.Blend();
    };

    float sum[Tile::kPixelTiles][Tile::kFeatureTiles][4] = {};
    int stage = 0;
    if (!depth.done()) {
      find_corners();
      const auto part = depth.PartOf(vector);
      copy_weight(stage, part);
      for (int i = 0; i < kGathers; ++i) keep(stage, i, gather(part, i));
      WaitForCopies();
      __syncthreads();
    }
    while (!depth.done()) {
      if (depth.Advance()) find_corners();
      const auto part = depth.PartOf(vector);
      copy_weight(1 - stage, part);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[Tile::kPixelTiles][4];
        for (int i = 0; i < Tile::kPixelTiles; ++i) {
          LoadMatrices(a[i], &shared.stages[stage].samples[(samples_at ^ 2 * step) + i * 16 * kDepth]);
        }
        // The next stage's samples are on their way while this one's are multiplied.
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const Gather<T> gathered = gather(part, step * kPasses + pass);
#pragma unroll
          for (int j = pass * Tile::kFeatureTiles / kPasses; j < (pass + 1) * Tile::kFeatureTiles / kPasses; j += 2) {
            uint32_t b[4];
            LoadMatrices(b, &shared.stages[stage].weight[(weight_at ^ 2 * step) + j * 8 * kDepth]);
            for (int i = 0; i < Tile::kPixelTiles; ++i) {
              MultiplyAdd<T>(sum[i][j], a[i], {b[0], b[1]});
              MultiplyAdd<T>(sum[i][j + 1], a[i], {b[2], b[3]});
            }
          }
          keep(1 - stage, step * kPasses + pass, gathered);
        }
      }
      WaitForCopies();
      __syncthreads();
      stage = 1 - stage;
    }

#pragma unroll
    for (int j = 0; j < Tile::kFeatureTiles; ++j) {
      const int64_t within = tile_feature + first_feature + j * 8 + lane % 4 * 2;
      if (within >= product.group_features()) continue;
      const int64_t feature = group * product.group_features() + within;
#pragma unroll
      for (int i = 0; i < Tile::kPixelTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t p = shared.pixels[first_pixel + i * 16 + half * 8 + lane / 4];
          if (p < 0) continue;
          StorePair<T>(y, p * product.features + feature, product.wide, sum[i][j][2 * half] + bias[feature],
                       sum[i][j][2 * half + 1] + bias[feature + 1]);
        }
      }
    }
    __syncthreads();
  }
}

template <typename T, int kFeatures>
const char* LaunchFused(Device& device, const Sizes& sizes, const Positions& positions, const Product& product,
                        const void* x, const void* weight, const void* bias, void* y) {
  const int64_t feature_tiles = (product.group_features() + kFeatures - 1) / kFeatures;
  const int64_t blocks = (sizes.pixels() + kPixels - 1) / kPixels * product.groups * feature_tiles;
  return Launch(device, FusedForwardKernel<T, kFeatures>,
                {blocks, Tile<kFeatures>::kWarps * kWarp, sizeof(Shared<kFeatures>)}, sizes, positions, product,
                static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const float*>(bias), y);
}

template <typename T, typename... Arguments>
const char* DispatchFeatures(int32_t features, Arguments&&... arguments) {
  switch (features) {
    case 64:
      return LaunchFused<T, 64>(arguments...);
    case 128:
      return LaunchFused<T, 128>(arguments...);
    case 256:
      return LaunchFused<T, 256>(arguments...);
  }
  return "a block computes 64, 128 or 256 features";
}

}  // namespace

const char* FusedForward(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                         const Product& product, const void* x, const void* weight, const void* bias, void* y) {
  switch (dtype) {
    case DType::kF16:
      return DispatchFeatures<__half>(product.tile_features, device, sizes, positions, product, x, weight, bias, y);
    case DType::kBF16:
      return DispatchFeatures<__nv_bfloat16>(product.tile_features, device, sizes, positions, product, x, weight, bias,
                                             y);
    case DType::kF32:
      return DispatchFeatures<float>(product.tile_features, device, sizes, positions, product, x, weight, bias, y);
    case DType::kF64:
      break;
  }
  return "the matrix units take no float64";
}

}  // namespace dcn
