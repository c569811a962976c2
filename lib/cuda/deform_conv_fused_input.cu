// The fused input cotangent: an implicit GEMM of the gathered output cotangents (pixels of x × taps and features) and
// the weight (taps and features × channels). An element of the first operand is the weighted sum, for one pixel of x
// and one tap, of the cotangents of the output pixels that sample it.
//
// A counting sort first finds, for each pixel of x and tap, the list of its contributions: the output pixels that
// sample it, and their weights. The channels of an offset group share the lists. A block then computes 128 pixels of x,
// in strip order, × 64 or 128 channels. For two K slices at a time, a thread goes through lists and sums 16 bytes of
// features of the output's cotangent in float32; it rounds each sum once, when it stores it in shared memory. Two
// blocks are resident per SM, so that one can multiply while the other loads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "channel_segments.h"
#include "counting_sort.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "gemm.h"
#include "launch.h"
#include "pixel_strips.h"
#include "samples.h"
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

  __device__ CornersOfTap(const Sizes& sizes, const Positions& positions, Divisor columns, uint32_t pixel_vectors,
                          int64_t table)
      : height_(int32_t(sizes.height)),
        width_(int32_t(sizes.width)),
        circular_(sizes.window.circular),
        columns_(columns),
        pixel_vectors_(pixel_vectors),
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
    return {(first_pixel_ + uint32_t(entry.output_pixel)) * pixel_vectors_, entry.weight * mask};
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
  uint32_t pixel_vectors_;
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
  uint32_t pixel_vectors;  // of d_y

  __device__ CornersOfTap operator[](int64_t table) const { return {sizes, positions, columns, pixel_vectors, table}; }
};

// A row per image, offset group, tap and pixel of x.
const char* BuildScatterLists(Device& device, const Convolution& convolution, const ScatterLists& lists) {
  const Sizes& sizes = convolution.sizes;
  const uint32_t pixel_vectors = uint32_t(convolution.product.features / FusedVector(convolution.dtype));
  const int64_t num_tables = sizes.images * sizes.offset_groups * sizes.taps();
  const int32_t rows = int32_t(sizes.height * sizes.width), entries = int32_t(4 * sizes.rows * sizes.columns);
  const CsrTables<Contribution> csr = {num_tables,          rows,           entries, true, lists.row_start,
                                       lists.contributions, lists.workspace};
  const CornerTables tables = {sizes, convolution.positions, Divisor(sizes.columns), pixel_vectors};
  return SortByRow(device, tables, csr);
}

struct Call {
  ChannelSegments segments;
  int32_t height, width, image_pixels, pixels;  // of x; image_pixels: of one image, pixels: of all
  int32_t offset_groups, taps;
  Divisor feature_chunks = Divisor(1);  // of a group
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

// The sums pass through shared memory in half-stages: 64 pixels of a K slice. A pair of K slices is gathered at once,
// so that lists are read once for both of them.
constexpr int kPairChunks = 2 * kSliceChunks, kHalfPixels = kTilePixels / 2, kHalfStages = 6;

// The half-stage for the pixels of `half` in `slice` of a pair. While the block multiplies the first slice of a pair,
// it gathers the first half of the pixels of the next pair, and the second half while it multiplies the second slice.
// This order needs only six half-stages: what is written was multiplied before.
__device__ inline int HalfStage(int32_t pair, int slice, int half) {
  return int(uint32_t(pair + (slice == 0 ? 5 * half : 2 + 2 * half)) % kHalfStages);
}

template <int kChannels>
struct Shared {
  using Tile = CotangentTile<kChannels, 8>;

  uint4 sums[kHalfStages][kHalfPixels * kSliceChunks];
  uint4 weight[kStages][Tile::kChunksOfB];
  // Both are -1 past the end. They share memory, so that two blocks fit the carve-out.
  union {
    int32_t lists[kTilePixels];   // in the main loop: of the pixels' contributions by the first tap
    int32_t pixels[kTilePixels];  // in the epilogue: of x
  };
  BlockTile block_tile;  // in shared memory, because the accumulators need the registers
};

// The sum of weighted chunks of features of d_y, in float32.
template <typename T>
struct ChunkSum {
  float sum[4][kWordSize<T>] = {};

  __device__ void Add(const Words& words, float weight) {
    float value[kWordSize<T>];
    for (int word = 0; word < 4; ++word) {
      WordToFloats<T>(words.word[word], value);
      for (int i = 0; i < kWordSize<T>; ++i) sum[word][i] += weight * value[i];
    }
  }
  __device__ uint4 Round() const {
    return {RoundToWord<T>(sum[0]), RoundToWord<T>(sum[1]), RoundToWord<T>(sum[2]), RoundToWord<T>(sum[3])};
  }
};

// Where consecutive lists start and end among the contributions.
struct ListEnds {
  int32_t start, first, second, last;  // `second` is `first` if there is one list

  ListEnds() = default;
  __device__ ListEnds(const int32_t* row_start, int count)
      : start(row_start[0]), first(row_start[1]), second(row_start[min(2, count)]), last(row_start[count]) {}
};

// Calls store(i, sum) for each list i of `count` consecutive lists, with the sum over its contributions for 16 bytes of
// features of d_y. Loads stay in flight across the ends of lists: the features of a contribution are loaded kLoads
// contributions before they are added, and the contribution itself twice as early. What is added after the last
// contribution is never stored.
template <typename T, typename Store>
__device__ void SumLists(const int32_t* row_start, int count, const ListEnds& ends, const Contribution* contributions,
                         const T* features, const Store& store) {
  constexpr int kLoads = 4;
  constexpr int32_t kNever = INT32_MAX;
  const int32_t last_end = ends.last;
  int32_t left = last_end - ends.start;
  int32_t end = ends.first - ends.start;  // of the list, counted like n
  int32_t next_end = ends.second;
  contributions += ends.start;

  uint32_t buffer[2 * kLoads][2] = {};  // a Contribution each: the vector of d_y and the weight
  bool is_valid[2 * kLoads];
  Words words[kLoads];
  auto load_contribution = [&](int n) {
    const int i = n % (2 * kLoads);
    is_valid[i] = n < left;
    load_global_if(is_valid[i], buffer[i], contributions + n);
  };
  auto load_features = [&](int n) {
    const int i = n % (2 * kLoads);
    load_vector_if(is_valid[i], words[n % kLoads], features, buffer[i][0]);
  };
  for (int n = 0; n < 2 * kLoads; ++n) load_contribution(n);
  for (int n = 0; n < kLoads; ++n) load_features(n);

  ChunkSum<T> sum;
  int list = 0;
  do {
#pragma unroll
    for (int n = 0; n < 2 * kLoads; ++n) {
      if (n == kLoads && list == count) return;
      while (end == n) {
        store(list, sum.Round());
        sum = {};
        ++list;
        end = list < count ? left - (last_end - next_end) : kNever;
        next_end = row_start[min(list + 2, count)];
      }
      sum.Add(words[n % kLoads], __uint_as_float(buffer[n][1]));
      load_contribution(n + 2 * kLoads);
      load_features(n + kLoads);
    }
    contributions += 2 * kLoads;
    left -= 2 * kLoads;
    end -= 2 * kLoads;
  } while (list < count);
}

// One block per kTilePixels pixels of x × kChannels channels of a segment.
template <typename T, int kChannels, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, CotangentTile<kChannels, kWarps>::kResidentBlocks)
    FusedInputCotangentKernel(Call call, const T* __restrict__ weight, const T* __restrict__ d_y, T* d_x) {
  using Tile = CotangentTile<kChannels, kWarps>;
  constexpr int kRowsPerLoad = Tile::kRowsPerLoad;
  constexpr int kRun = kHalfPixels * kPairChunks / Tile::kThreads;  // consecutive pixels whose lists a thread sums
  static_assert(kHalfPixels % Tile::kWarpM == 0, "the rows of a warp tile must be in one half");
  auto& shared = *reinterpret_cast<Shared<kChannels>*>(dynamic_shared);
  const int thread = int(threadIdx.x);
  const int32_t k_chunks = call.taps * int32_t(call.feature_chunks.divisor),
                slices = (k_chunks + kSliceChunks - 1) / kSliceChunks;
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

    auto load_weight = [&](int32_t slice) {
      const int chunk = thread % kSliceChunks, first_row = thread / kSliceChunks;
      const int32_t k = slice * kSliceChunks + chunk;
      const int32_t first_channel = block_tile.channels.first, last_channel = block_tile.channels.count - 1;
      const bool is_valid = k < k_chunks;
      uint4* stage = shared.weight[slice % kStages];
#pragma unroll
      for (int i = 0; i < kChannels / kRowsPerLoad; ++i) {
        const int row = first_row + i * kRowsPerLoad;
        // The columns after the last channel are not stored, so they may have the weight of any channel.
        const uint32_t channel = uint32_t(first_channel + min(permuted_column(row), last_channel));
        const uint64_t index = uint64_t{channel} * uint32_t(k_chunks) + (is_valid ? k : 0);
        copy_async(&stage[swizzled_index(row, chunk)], reinterpret_cast<const Words*>(weight) + index, !is_valid);
      }
    };
    const uint32_t chunk = uint32_t(thread) % kPairChunks, first_row = thread / kPairChunks * kRun;
    // The lists of consecutive pixels of an image are contiguous. In a run of pixels of several images, or with
    // the end, lists are summed one by one until the rest of the run is in one image.
    auto count_lists = [&](const int32_t* lists, uint32_t row) {
      const int32_t in_run = first_row + kRun - row;
      return lists[first_row + kRun - 1] - lists[row] == in_run - 1 ? in_run : 1;
    };
    // If not, the sums of the row are zeros.
    auto has_lists = [&](int32_t k, int32_t list) { return k < k_chunks && list >= 0; };
    auto lists_of_tap = [&](int32_t list, uint32_t tap) {
      return call.row_start + list + tap * (call.image_pixels + 1);
    };
    auto find_ends = [&](int32_t pair, int half, uint32_t row) {
      const int32_t* lists = shared.lists + half * kHalfPixels;
      const int32_t k = pair * kPairChunks + chunk;
      if (!has_lists(k, lists[row])) return ListEnds();
      return ListEnds(lists_of_tap(lists[row], call.feature_chunks.Quotient(k)), count_lists(lists, row));
    };
    // `ends` are those of the first lists.
    auto gather = [&](int32_t pair, int half, ListEnds ends) {
      const int32_t k = pair * kPairChunks + chunk;
      const uint32_t tap = call.feature_chunks.Quotient(k), feature_chunk = k - tap * call.feature_chunks.divisor;
      uint4* sums = shared.sums[HalfStage(pair, chunk / kSliceChunks, half)];
      const T* features = d_y + (block_tile.first_feature + feature_chunk * kChunkSize<T>);
      const int32_t* lists = shared.lists + half * kHalfPixels;
#pragma unroll 1
      for (uint32_t row = first_row, count; row < first_row + kRun; row += count) {
        if (row > first_row) ends = find_ends(pair, half, row);
        const int32_t list = lists[row];
        count = count_lists(lists, row);
        const SharedAddress rows = AddressInShared(&sums[row / 8 * 8 * kSliceChunks]);
        const uint32_t row_bytes = row % 8 * kSwizzledRowBytes, chunk_bytes = chunk % kSliceChunks * kChunkBytes;
        auto store = [&](uint32_t i, const uint4& sum) {
          store_shared(rows + ((row_bytes + i * kSwizzledRowBytes) ^ chunk_bytes), sum);
        };
        if (has_lists(k, list)) {
          SumLists(lists_of_tap(list, tap), count, ends, call.contributions, features, store);
        } else {
          for (int i = 0; i < count; ++i) store(i, {0, 0, 0, 0});
        }
      }
    };

    WarpTile<T, Tile> tile;
    const int half = tile.first_row() / kHalfPixels;
    // In step i, the block gathers half of pair i / 2, copies the weight of slice i - 1, finds where the lists of the
    // next step are, and multiplies slice i - 2.
    ListEnds ends = find_ends(0, 0, first_row);
#pragma unroll 1
    for (int32_t step = 0; step < slices + 2; ++step) {
      wait_async_copies();
      __syncthreads();
      if (step > 0 && step <= slices) load_weight(step - 1);
      if (step / 2 * 2 < slices) gather(step / 2, step % 2, ends);
      ends = find_ends((step + 1) / 2, (step + 1) % 2, first_row);
      if (step < 2) continue;
      const int32_t slice = step - 2;
      tile.MultiplyStage(shared.sums[HalfStage(slice / 2, slice % 2, half)], tile.first_row() % kHalfPixels,
                         shared.weight[slice % kStages]);
    }
    __syncthreads();
    if (thread < kTilePixels) {
      const int32_t i = block_tile.first_pixel + thread;
      shared.pixels[thread] = i < call.pixels ? PixelInStrips(call.height, call.width, i) : -1;
    }
    __syncthreads();
    const ChannelTile channels = block_tile.channels;
    tile.ForEachRun(0, [&](int32_t channel, const auto& for_each_row) {
      for_each_row([&](int pixel, const float (&values)[kRunColumns]) {
        const int64_t q = shared.pixels[pixel];
        for (int first = 0; first < kRunColumns; first += kChunkSize<T>) {
          if (q < 0 || channel + first >= channels.count) continue;
          Vector<T, kChunkSize<T>> chunk;
          for (int v = 0; v < kChunkSize<T>; ++v) chunk.value[v] = T(values[first + v]);
          AsVector<kChunkSize<T>>(d_x + q * call.segments.channels + channels.first + channel + first) = chunk;
        }
      });
    });
    __syncthreads();
  }
}

template <typename T, typename Tile>
const char* LaunchInputCotangent(const Device& device, const Convolution& convolution, const ScatterLists& lists,
                                 const void* weight, const void* d_y, void* d_x) {
  constexpr size_t kSharedBytes = sizeof(Shared<Tile::kN>);
  static_assert(FusedBlocks::Contain(FusedBlocks::kInputCotangent, {Tile::kN, Tile::kWarps, kSharedBytes}));
  CheckCotangentBlock<Tile, kSharedBytes, 164>();
  const Sizes& sizes = convolution.sizes;
  Call call = {};
  call.segments = ChannelSegments(convolution, Tile::kN);
  call.height = int32_t(sizes.height);
  call.width = int32_t(sizes.width);
  call.image_pixels = int32_t(sizes.height * sizes.width);
  call.pixels = int32_t(sizes.images * sizes.height * sizes.width);
  call.offset_groups = int32_t(sizes.offset_groups);
  call.taps = sizes.taps();
  call.feature_chunks = Divisor(call.segments.group_features / kChunkSize<T>);
  call.row_start = lists.row_start;
  call.contributions = lists.contributions;
  call.blocks = (int64_t{call.pixels} + kTilePixels - 1) / kTilePixels * call.segments.tiles;
  return Launch<FusedInputCotangentKernel<T, Tile::kN, Tile::kWarps>>(
      device, {call.blocks, Tile::kThreads, kSharedBytes, Tile::kResidentBlocks}, call, static_cast<const T*>(weight),
      static_cast<const T*>(d_y), static_cast<T*>(d_x));
}

}  // namespace

const char* FusedInputCotangent(Device& device, const Convolution& convolution, const ScatterLists& lists,
                                const void* weight, const void* d_y, void* d_x) {
  if (const char* failure = BuildScatterLists(device, convolution, lists)) return failure;
  return DispatchTensorCoreType(convolution.dtype, [&](auto tag) {
    return DispatchCotangentTile(SegmentChannels(convolution), sizeof(Shared<128>), [&](auto tile) {
      return LaunchInputCotangent<decltype(tag), decltype(tile)>(device, convolution, lists, weight, d_y, d_x);
    });
  });
}

}  // namespace dcn
