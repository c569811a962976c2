// The fused input cotangent: an implicit matrix product of the weight and, for each pixel of x and tap, the sum of the
// output's cotangents that touch it, each by its weight.
//
// The sampling's transpose is found first, by a counting sort: channels do not matter to it. A block computes 128
// pixels of x, strip by strip, by 64 or 128 channels; every thread goes through the contributions of a pixel by a tap
// for 16 bytes of features and keeps their sum, in float32 and rounded once, in shared memory. Two blocks share a
// multiprocessor, so that one multiplies while the other gathers.
//
// What to expect of an H200 in bfloat16, counted and not yet measured, in the clocks of a multiprocessor for 16
// features of 128 pixels by 128 channels, as for the fused forward: about 4 contributions of 24 instructions each for 8
// features make 270 clocks of instructions, 380 where the lanes of a warp wait for its longest list; products take 206.
// So 25 to 35% of the dense peak.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "counting_sort.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "launch.h"
#include "positions.h"
#include "tiles.h"

namespace dcn {
namespace {

// The corners that samples read, sorted by the pixel of x: a row per image, offset group, tap and pixel. The id numbers
// the corners of an image, offset group and tap. row_start counts through all tables.
struct ContributionEntries {
  Sizes sizes;
  Positions positions;

  DCN_HOST_DEVICE int64_t work_items() const { return sizes.pixels() * sizes.offset_groups * sizes.taps(); }

  template <typename F>
  __device__ void ForEach(int64_t position, const F& f) const {
    const int64_t outputs = sizes.rows * sizes.columns, pixels = sizes.height * sizes.width;
    const int32_t k = int32_t(position % sizes.taps());
    const int64_t g = position / sizes.taps() % sizes.offset_groups, p = position / sizes.taps() / sizes.offset_groups;
    const BilinearCorners<float> corners = LocateSample<float>(sizes, positions, p, position, k);
    const int64_t first_row = ((p / outputs * sizes.offset_groups + g) * sizes.taps() + k) * (pixels + 1);
    for (int corner = 0; corner < 4; ++corner) {
      if (!corners.is_read(corner)) continue;
      const int64_t pixel =
          PlaceInStrips(sizes.height, sizes.width, corners.y.pixel[corner / 2], corners.x.pixel[corner % 2]);
      f(Entry{first_row + pixel, 0, int32_t(p % outputs * 4 + corner)},
        [&] { return Contribution{int32_t(p), corners.weight(corner) * Mask<float>(positions, position)}; });
    }
  }
};

const char* BuildScatterLists(Device& device, const Sizes& sizes, const Positions& positions,
                              const ScatterLists& lists) {
  const int64_t tables = sizes.images * sizes.offset_groups * sizes.taps();
  if (tables == 0) return nullptr;
  const CsrTables<Contribution> csr = {tables, sizes.height * sizes.width, lists.row_start, lists.contributions,
                                       lists.workspace};
  return SortByRow(device, ContributionEntries{sizes, positions}, csr, 4 * sizes.rows * sizes.columns);
}

struct Call {
  int32_t height, width, image_pixels, pixels;  // of x; of all its images
  int32_t channels, group_channels, offset_group_channels, segment_channels;
  int32_t tiles;  // of a segment
  int32_t offset_groups, taps;
  int32_t pixel_bytes, group_features, vectors;  // of the output; of 16 bytes in a group's features
  const int32_t* row_start;
  const Contribution* contributions;
  int64_t blocks;
};

// What a block computes: all that there is of some channels.
struct BlockTile {
  int64_t first_pixel;
  int32_t first_channel, channels, offset_group, first_feature;

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block, int32_t width) {
    const int32_t segments = call.channels / call.segment_channels, within = int32_t(block % call.tiles) * width;
    block /= call.tiles;
    first_channel = int32_t(block % segments) * call.segment_channels + within;
    channels = call.segment_channels - within;
    offset_group = first_channel / call.offset_group_channels;
    first_feature = first_channel / call.group_channels * call.group_features;
    first_pixel = block / segments * kPixels;
  }
};

template <int kChannels>
struct Shared {
  struct {
    uint4 gathered[kPixels * kDepth], weight[kChannels * kDepth];
  } stages[2];
  int32_t pixels[kPixels];  // of x, -1 behind the last
  int32_t lists[kPixels];   // of the pixels by the first tap
  BlockTile block_tile;     // here, for it would take registers that the sums need
};

// The sum of what a list of contributions finds in 16 bytes of features.
template <typename T>
__device__ uint4 SumContributions(const Contribution* contributions, int32_t begin, int32_t end, const T* d_y,
                                  int32_t pixel_bytes) {
  constexpr int kAtOnce = 2;  // loads on their way
  float sum[4][kWordSize<T>] = {}, value[kWordSize<T>];
#pragma unroll 1
  for (int32_t first = begin; first < end; first += kAtOnce) {
    Words words[kAtOnce];
    float weight[kAtOnce];
    for (int n = 0; n < kAtOnce; ++n) {
      const bool there = first + n < end;
      const Contribution contribution = there ? contributions[first + n] : Contribution{0, 0};
      words[n] = load_global_or_zeros(d_y, int64_t{contribution.output_pixel} * pixel_bytes, there);
      weight[n] = contribution.weight;
    }
    for (int n = 0; n < kAtOnce; ++n) {
      for (int word = 0; word < 4; ++word) {
        WordToFloats<T>(words[n].word[word], value);
        for (int i = 0; i < kWordSize<T>; ++i) sum[word][i] += weight[n] * value[i];
      }
    }
  }
  return {RoundToWord<T>(sum[0]), RoundToWord<T>(sum[1]), RoundToWord<T>(sum[2]), RoundToWord<T>(sum[3])};
}

// A block for kPixels of x by kChannels of a segment.
template <typename T, int kChannels>
__global__ void __launch_bounds__(BlockProduct<T, kChannels>::kThreads, 2)
    FusedInputCotangentKernel(Call call, const T* __restrict__ weight, const T* __restrict__ d_y, T* d_x) {
  using Sums = BlockProduct<T, kChannels>;
  constexpr int kVector = 16 / sizeof(T), kRowsAtOnce = Sums::kThreads / kDepth;
  auto& shared = *reinterpret_cast<Shared<kChannels>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = thread / kDepth, vector = thread % kDepth;
  const int32_t depth = call.taps * call.vectors, stages = (depth + kDepth - 1) / kDepth;
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block, kChannels);
    __syncthreads();
    if (thread < kPixels) {
      const int64_t i = block_tile.first_pixel + thread;
      const bool there = i < call.pixels;
      const int32_t bin = (int32_t(i / call.image_pixels) * call.offset_groups + block_tile.offset_group) * call.taps;
      shared.pixels[thread] = there ? int32_t(PixelInStrips(call.height, call.width, i)) : -1;
      shared.lists[thread] = there ? bin * (call.image_pixels + 1) + int32_t(i % call.image_pixels) : -1;
    }
    __syncthreads();

    auto load_stage = [&](int32_t stage) {
      auto& to = shared.stages[stage % 2];
      const int32_t at = stage * kDepth + vector;
      const bool there = at < depth;
      const int32_t tap = at / call.vectors, within = at % call.vectors;
#pragma unroll 1
      for (int i = 0; i < kChannels / kRowsAtOnce; ++i) {
        const int channel = row + i * kRowsAtOnce;
        const bool used = there && channel < block_tile.channels;
        const int64_t from = (int64_t{block_tile.first_channel} + channel) * depth + at;
        copy_async(&to.weight[swizzled_index(channel, vector)], used ? weight + from * kVector : weight, !used);
      }
      const T* features = d_y + block_tile.first_feature + within * kVector;
#pragma unroll 1
      for (int i = 0; i < kPixels / kRowsAtOnce; ++i) {
        const int pixel = row + i * kRowsAtOnce;
        const int32_t list = shared.lists[pixel];
        int32_t begin = 0, end = 0;
        if (there && list >= 0) {
          const int32_t* range = call.row_start + list + tap * (call.image_pixels + 1);
          begin = range[0];
          end = range[1];
        }
        to.gathered[swizzled_index(pixel, vector)] =
            SumContributions(call.contributions, begin, end, features, call.pixel_bytes);
      }
    };

    Sums sums;
    load_stage(0);
#pragma unroll 1
    for (int32_t stage = 0; stage < stages; ++stage) {
      wait_async_copies();
      __syncthreads();
      if (stage + 1 < stages) load_stage(stage + 1);
      sums.Add(shared.stages[stage % 2].gathered, shared.stages[stage % 2].weight);
    }
    sums.ForEachPair(block_tile.first_channel, [&](int pixel, int32_t channel, float first, float second) {
      const int64_t q = shared.pixels[pixel];
      if (q < 0 || channel >= block_tile.first_channel + block_tile.channels) return;
      StorePair<T>(d_x + q * call.channels, channel, false, first, second);
    });
    __syncthreads();
  }
}

template <typename T, int kChannels>
const char* LaunchProduct(const Device& device, const Sizes& sizes, const Product& product, const ScatterLists& lists,
                          const void* weight, const void* d_y, void* d_x) {
  Call call = {};
  call.height = int32_t(sizes.height);
  call.width = int32_t(sizes.width);
  call.image_pixels = int32_t(sizes.height * sizes.width);
  call.pixels = int32_t(sizes.images * sizes.height * sizes.width);
  call.channels = int32_t(sizes.channels);
  call.group_channels = int32_t(sizes.channels / product.groups);
  call.offset_group_channels = int32_t(sizes.group_channels());
  call.segment_channels = int32_t(SegmentChannels(sizes, product));
  call.tiles = (call.segment_channels + kChannels - 1) / kChannels;
  call.offset_groups = int32_t(sizes.offset_groups);
  call.taps = sizes.taps();
  call.pixel_bytes = int32_t(product.features * sizeof(T));
  call.group_features = int32_t(product.group_features());
  call.vectors = int32_t(product.group_features() * sizeof(T) / 16);
  call.row_start = lists.row_start;
  call.contributions = lists.contributions;
  const int64_t pixel_tiles = (int64_t{call.pixels} + kPixels - 1) / kPixels;
  call.blocks = pixel_tiles * (call.channels / call.segment_channels) * call.tiles;
  return Launch(device, FusedInputCotangentKernel<T, kChannels>,
                {call.blocks, BlockProduct<T, kChannels>::kThreads, sizeof(Shared<kChannels>)}, call,
                static_cast<const T*>(weight), static_cast<const T*>(d_y), static_cast<T*>(d_x));
}

}  // namespace

const char* FusedInputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                const Product& product, const ScatterLists& lists, const void* weight, const void* d_y,
                                void* d_x) {
  if (const char* failure = BuildScatterLists(device, sizes, positions, lists)) return failure;
  return DispatchMatrix(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = SegmentChannels(sizes, product) > 64 ? LaunchProduct<T, 128> : LaunchProduct<T, 64>;
    return launch(device, sizes, product, lists, weight, d_y, d_x);
  });
}

}  // namespace dcn
