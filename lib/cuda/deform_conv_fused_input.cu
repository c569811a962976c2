// The fused input cotangent: an implicit GEMM of the gathered output cotangents (pixels of x × taps and features) and
// the weight (taps and features × channels). An element of the first operand is the weighted sum, for one pixel of x
// and one tap, of the cotangents of the output pixels that sample it.
//
// A counting sort first finds, for each pixel of x and tap, the list of its contributions: the output pixels that
// sample it, and their weights. The channels of an offset group share the lists. A block then computes 128 pixels of x,
// in strip order, × 64 or 128 channels. For each stage, a thread goes through lists and sums 16 bytes of features of
// the output's cotangent in float32; it rounds each sum once, when it stores it in shared memory. Two blocks are
// resident per SM, so that one can multiply while the other loads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "channel_segments.h"
#include "counting_sort.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "positions.h"
#include "vector.h"

namespace dcn {
namespace {

// The corners that the samples of an image, offset group and tap read, which are sorted by the pixel of x. An id is
// 4 · output pixel + corner.
class CornersOfTap {
 public:
  static constexpr int kEntries = 4;
  struct Entry {
    int32_t row, output_pixel;
    float weight;  // bilinear
  };

  __device__ CornersOfTap(const Sizes& sizes, const Positions& positions, Divisor columns, int64_t table)
      : height_(int32_t(sizes.height)),
        width_(int32_t(sizes.width)),
        circular_(sizes.window.circular),
        columns_(columns),
        pixel_samples_(uint32_t(sizes.offset_groups * sizes.taps())) {
    const int32_t tap = int32_t(table % sizes.taps());
    const int64_t image = table / pixel_samples_, group = table % pixel_samples_ / sizes.taps();
    for (int axis = 0; axis < 2; ++axis) {
      strides_[axis] = sizes.window.strides[axis];
      start_[axis] = sizes.window.start(axis, positions.origin[1 + axis]) + sizes.window.distance(axis, tap);
    }
    first_pixel_ = int32_t(image * sizes.rows * sizes.columns);
    const int64_t first_sample = SampleIndex(sizes, first_pixel_, group, tap);
    offset_ = static_cast<const Vector<float, 2>*>(positions.offset) + first_sample;
    mask_ = positions.mask ? static_cast<const float*>(positions.mask) + first_sample : nullptr;
  }

  __device__ void FindRows(int32_t pixel, int32_t* rows) const {
    const BilinearCorners<float> corners = Locate(pixel);
    for (int corner = 0; corner < 4; ++corner)
      rows[corner] = Row(corners.y.pixel[corner / 2], corners.x.pixel[corner % 2]);
  }

  __device__ Entry operator()(int32_t id) const {
    const int32_t pixel = int32_t(uint32_t(id) / 4);
    const auto [y, x] = Locate(pixel);
    const bool bottom = id & 2, right = id & 1;
    return {Row(bottom ? y.pixel[1] : y.pixel[0], right ? x.pixel[1] : x.pixel[0]), pixel,
            y.weight(bottom) * x.weight(right)};
  }

  __device__ Contribution value(const Entry& entry) const {
    const float mask = mask_ ? mask_[sample(entry.output_pixel)] : 1.0f;
    return {first_pixel_ + entry.output_pixel, entry.weight * mask};
  }

 private:
  __device__ uint64_t sample(int32_t pixel) const { return uint64_t{uint32_t(pixel)} * pixel_samples_; }
  __device__ BilinearCorners<float> Locate(int32_t pixel) const {
    const int32_t row = int32_t(columns_.Quotient(uint32_t(pixel)));
    const int32_t column = pixel - row * int32_t(columns_.divisor);
    const Vector<float, 2> offset = offset_[sample(pixel)];
    return LocateCorners(float(start_[0] + int64_t{strides_[0]} * row) + offset.value[0],
                         float(start_[1] + int64_t{strides_[1]} * column) + offset.value[1], height_, width_,
                         circular_);
  }
  __device__ int32_t Row(int32_t y, int32_t x) const {
    return y >= 0 && x >= 0 ? int32_t(IndexInStrips<uint32_t>(height_, width_, y, x)) : kNoRow;
  }

  int32_t height_, width_, strides_[2];
  bool circular_;
  Divisor columns_;
  uint32_t pixel_samples_;  // of one output pixel, in all groups
  int64_t start_[2];        // the coordinates of the tap for the first output pixel
  int32_t first_pixel_;     // of the image
  const Vector<float, 2>* offset_;
  const float* mask_;
};

struct CornerTables {
  using Table = CornersOfTap;

  Sizes sizes;
  Positions positions;
  Divisor columns;

  __device__ CornersOfTap operator[](int64_t table) const { return {sizes, positions, columns, table}; }
};

// A row per image, offset group, tap and pixel of x.
const char* BuildScatterLists(Device& device, const Sizes& sizes, const Positions& positions,
                              const ScatterLists& lists) {
  const int64_t tables = sizes.images * sizes.offset_groups * sizes.taps();
  const int32_t rows = int32_t(sizes.height * sizes.width), entries = int32_t(4 * sizes.rows * sizes.columns);
  const CsrTables<Contribution> csr = {tables,         rows, entries, true, lists.row_start, lists.contributions,
                                       lists.workspace};
  return SortByRow(device, CornerTables{sizes, positions, Divisor(sizes.columns)}, csr);
}

struct Call {
  ChannelSegments segments;
  int32_t height, width, image_pixels, pixels;  // of x; image_pixels: of one image, pixels: of all
  int32_t offset_groups, taps;
  int32_t pixel_bytes;     // of the output
  int32_t feature_chunks;  // of a group
  const int32_t* row_start;
  const Contribution* contributions;
  int64_t blocks;
};

struct BlockTile {
  int32_t first_pixel;
  ChannelTile channels;
  int32_t offset_group, first_feature;

  BlockTile() = default;
  __device__ BlockTile(const Call& call, int64_t block) {
    channels = call.segments.Tile(int32_t(block % call.segments.tiles));
    offset_group = call.segments.OffsetGroup(channels.first);
    first_feature = call.segments.FeatureGroup(channels.first) * call.segments.group_features;
    first_pixel = int32_t(block / call.segments.tiles) * kTilePixels;
  }
};

template <int kChannels>
struct Shared {
  using Tile = CotangentTile<kChannels, 8>;

  struct {
    uint4 sums[Tile::kChunksOfA], weight[Tile::kChunksOfB];
  } stages[kStages];
  // Both are -1 past the end. They share memory, so that two blocks fit the carve-out.
  union {
    int32_t lists[kTilePixels];   // in the main loop: of the pixels' contributions by the first tap
    int32_t pixels[kTilePixels];  // in the epilogue: of x
  };
  BlockTile block_tile;  // in shared memory, because the accumulators need the registers
};

// The sum over a list of contributions, for 16 bytes of features of d_y.
template <typename T>
__device__ uint4 SumContributions(const Contribution* contributions, int32_t begin, int32_t end, const T* d_y,
                                  int32_t pixel_bytes) {
  constexpr int kLoads = 2;  // in flight
  float sum[4][kWordSize<T>] = {}, value[kWordSize<T>];
#pragma unroll 1
  for (int32_t first = begin; first < end; first += kLoads) {
    Words words[kLoads];
    float weight[kLoads];
    for (int n = 0; n < kLoads; ++n) {
      const bool is_valid = first + n < end;
      const Contribution contribution = is_valid ? contributions[first + n] : Contribution{0, 0};
      words[n] = load_global_or_zeros(d_y, int64_t{contribution.output_pixel} * pixel_bytes, is_valid);
      weight[n] = contribution.weight;
    }
    for (int n = 0; n < kLoads; ++n) {
      for (int word = 0; word < 4; ++word) {
        WordToFloats<T>(words[n].word[word], value);
        for (int i = 0; i < kWordSize<T>; ++i) sum[word][i] += weight[n] * value[i];
      }
    }
  }
  return {RoundToWord<T>(sum[0]), RoundToWord<T>(sum[1]), RoundToWord<T>(sum[2]), RoundToWord<T>(sum[3])};
}

// One block per kTilePixels pixels of x × kChannels channels of a segment.
template <typename T, int kChannels, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, CotangentTile<kChannels, kWarps>::kResidentBlocks)
    FusedInputCotangentKernel(Call call, const T* __restrict__ weight, const T* __restrict__ d_y, T* d_x) {
  using Tile = CotangentTile<kChannels, kWarps>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad;
  auto& shared = *reinterpret_cast<Shared<kChannels>*>(dynamic_shared);
  const int thread = int(threadIdx.x), row = int(threadIdx.x / kSliceChunks), chunk = int(threadIdx.x % kSliceChunks);
  const int32_t k_chunks = call.taps * call.feature_chunks, slices = (k_chunks + kSliceChunks - 1) / kSliceChunks;
  const BlockTile& block_tile = shared.block_tile;

  for (int64_t block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    if (thread == 0) shared.block_tile = BlockTile(call, block);
    __syncthreads();
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      const bool is_valid = i < call.pixels;
      const int32_t first_list = (i / call.image_pixels * call.offset_groups + block_tile.offset_group) * call.taps;
      shared.lists[thread] = is_valid ? first_list * (call.image_pixels + 1) + i % call.image_pixels : -1;
    }
    __syncthreads();

    auto load_stage = [&](int32_t slice) {
      auto& stage = shared.stages[slice % kStages];
      const int32_t k = slice * kSliceChunks + chunk;
      const bool is_in_k = k < k_chunks;
      const int32_t tap = k / call.feature_chunks, feature_chunk = k % call.feature_chunks;
#pragma unroll 1
      for (int i = 0; i < kChannels / kRowsPerLoad; ++i) {
        const int channel = row + i * kRowsPerLoad;
        const bool is_valid = is_in_k && channel < block_tile.channels.count;
        const int64_t from = (int64_t{block_tile.channels.first} + channel) * k_chunks + k;
        copy_async(&stage.weight[swizzled_index(channel, chunk)], is_valid ? weight + from * kChunkSize<T> : weight,
                   !is_valid);
      }
      const T* features = d_y + block_tile.first_feature + feature_chunk * kChunkSize<T>;
#pragma unroll 1
      for (int i = 0; i < kTilePixels / kRowsPerLoad; ++i) {
        const int pixel = row + i * kRowsPerLoad;
        const int32_t list = shared.lists[pixel];
        int32_t begin = 0, end = 0;
        if (is_in_k && list >= 0) {
          const int32_t* range = call.row_start + list + tap * (call.image_pixels + 1);
          begin = range[0];
          end = range[1];
        }
        stage.sums[swizzled_index(pixel, chunk)] =
            SumContributions(call.contributions, begin, end, features, call.pixel_bytes);
      }
    };

    WarpTile<T, Tile> tile;
    load_stage(0);
#pragma unroll 1
    for (int32_t slice = 0; slice < slices; ++slice) {
      wait_async_copies();
      __syncthreads();
      if (slice + 1 < slices) load_stage(slice + 1);
      tile.MultiplyStage(shared.stages[slice % kStages].sums, shared.stages[slice % kStages].weight);
    }
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      shared.pixels[thread] = i < call.pixels ? PixelInStrips(call.height, call.width, i) : -1;
    }
    __syncthreads();
    tile.ForEachPair(block_tile.channels.first, [&](int pixel, int32_t channel, float first, float second) {
      const int64_t q = shared.pixels[pixel];
      if (q < 0 || channel >= block_tile.channels.first + block_tile.channels.count) return;
      AsVector<2>(d_x + q * call.segments.channels + channel) = {{T(first), T(second)}};
    });
    __syncthreads();
  }
}

template <typename T, typename Tile>
const char* LaunchInputCotangent(const Device& device, const Sizes& sizes, const Product& product,
                                 const ScatterLists& lists, const void* weight, const void* d_y, void* d_x) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile::kN>);
  static_assert(FusedBlocks::Contain(FusedBlocks::kInputCotangent, {Tile::kN, Tile::kWarps, kSharedBytes}));
  CheckCotangentBlock<Tile, kSharedBytes, 132>();
  Call call = {};
  call.segments = ChannelSegments(sizes, product, Tile::kN);
  call.height = int32_t(sizes.height);
  call.width = int32_t(sizes.width);
  call.image_pixels = int32_t(sizes.height * sizes.width);
  call.pixels = int32_t(sizes.images * sizes.height * sizes.width);
  call.offset_groups = int32_t(sizes.offset_groups);
  call.taps = sizes.taps();
  call.pixel_bytes = int32_t(product.features * sizeof(T));
  call.feature_chunks = call.segments.group_features / kChunkSize<T>;
  call.row_start = lists.row_start;
  call.contributions = lists.contributions;
  call.blocks = (int64_t{call.pixels} + kTilePixels - 1) / kTilePixels * call.segments.tiles;
  return Launch<FusedInputCotangentKernel<T, Tile::kN, Tile::kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(weight),
      static_cast<const T*>(d_y), static_cast<T*>(d_x));
}

}  // namespace

const char* FusedInputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                                const Product& product, const ScatterLists& lists, const void* weight, const void* d_y,
                                void* d_x) {
  if (const char* failure = BuildScatterLists(device, sizes, positions, lists)) return failure;
  return DispatchTensorCoreType(dtype, [&](auto tag) {
    return DispatchCotangentTile(SegmentChannels(sizes, product), sizeof(Shared<128>), [&](auto tile) {
      return LaunchInputCotangent<decltype(tag), decltype(tile)>(device, sizes, product, lists, weight, d_y, d_x);
    });
  });
}

}  // namespace dcn
