// The samples of a call as the gather kernels divide them: into tiles, of one image and of at most one sample per
// thread of a block. Of a tile, each thread locates its sample, if it has one, and stores in shared memory how to read
// it. Then the block's subwarps read the channels of one sample after another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "deform_conv/cuda_pixel_strips.h"
#include "deform_conv/cuda_samples.h"
#include "deform_conv/deform_conv.h"
#include "division.h"
#include "launch.h"
#include "pixel_pair.h"
#include "vector.h"

namespace dcn {

// A subwarp, some neighbouring lanes of a warp, has a sample at a time. Eight lanes load 128 contiguous bytes.
constexpr int kMaxLog2Subwarp = 3;

// How a subwarp reads the channels of a sample, and where its columns are. Where the image has only one of the two
// rows, or of the two columns, its pixels take the place of the missing ones too, and each of the two has half of the
// weight. So all four corners are read, or none.
template <typename A>
struct alignas(16) SampleRecord {
  // The offset in the image, in bytes, of the offset group's first channel at the top left pixel, times 4, plus flags:
  // kIsFarDown and kIsFarRight. kUnread: no corner is read, and the columns are weights[0].
  int64_t pixel;
  int64_t column;  // the offset of the first column, in bytes
  A weights[4];    // of the corners, times the mask
};

constexpr int64_t kUnread = -1, kIsFarDown = 1, kIsFarRight = 2;

// A sample of a tile.
struct TileSample {
  int64_t index;  // of `mask`, and of `offset` as pairs; -1 past the end of the tile
  int64_t row, column, output_pixel;
  int64_t offset_group;
  int32_t tap;
};

struct SampleTiles {
  Sizes sizes;
  Positions positions;
  int log2_subwarp;       // the logarithm of the number of lanes
  int tile_samples;       // of all tiles but the last of an image
  int64_t image_samples;  // of all offset groups
  int64_t image_tiles;
  StripDivisors strips;
  WideDivisor by_image_tiles, by_pixel_samples, by_offset_groups;
  Divisor by_kernel_columns;
  // In bytes: a pixel of x, the columns of a tap, the channels of an offset group, and the distances between the
  // corners of a sample.
  int64_t pixel_bytes, tap_bytes, group_bytes;
  int64_t right, far_right, down, far_down;

  SampleTiles(const Sizes& sizes, const Positions& positions, const VectorType& vector_type, int64_t arrays = 1)
      : sizes(sizes),
        positions(positions),
        log2_subwarp(Log2Subwarp(vector_type.elements(), sizes.group_channels())),
        tile_samples(TileSize(log2_subwarp, sizes.pixels() * sizes.pixel_samples())),
        image_samples(sizes.samples() * sizes.offset_groups),
        image_tiles(CeilDiv(image_samples, tile_samples)),
        strips(sizes.rows, sizes.columns),
        by_image_tiles(image_tiles),
        by_pixel_samples(sizes.pixel_samples()),
        by_offset_groups(sizes.offset_groups),
        by_kernel_columns(sizes.window.kernel[1]),
        pixel_bytes(sizes.channels * BytesOf(vector_type.dtype)),
        tap_bytes(arrays * pixel_bytes),
        group_bytes(sizes.group_channels() * BytesOf(vector_type.dtype)),
        right(pixel_bytes),
        far_right(sizes.window.circular ? (1 - sizes.width) * pixel_bytes : 0),
        down(sizes.width * pixel_bytes),
        far_down(sizes.window.circular ? (1 - sizes.height) * sizes.width * pixel_bytes : 0) {}

  static int Log2Subwarp(int64_t vector, int64_t channels) {
    int log2_subwarp = 0;
    while (log2_subwarp < kMaxLog2Subwarp && (vector << log2_subwarp) < channels) ++log2_subwarp;
    return log2_subwarp;
  }
  // Small tiles spread few samples over all SMs. Large ones read neighbouring pixels more often from the L1 cache. A
  // tile has a sample for each subwarp.
  static int TileSize(int log2_subwarp, int64_t samples) {
    constexpr int kFewest = 64, kSmTiles = 8;  // per SM: two waves of blocks or more
    int tile_samples = kThreads;
    while (tile_samples > std::max(kFewest, kThreads >> log2_subwarp) && samples < kSmTiles * NumSms() * tile_samples)
      tile_samples /= 2;
    return tile_samples;
  }

  DCN_HOST_DEVICE int64_t count() const { return sizes.images * image_tiles; }
  __device__ int64_t Image(int64_t tile) const { return by_image_tiles.Quotient(tile); }
  // The offset in x of an image of the part, in bytes.
  __device__ int64_t ImageStart(int64_t image) const {
    return (sizes.first_image(positions.origin) + image) * sizes.height * sizes.width * pixel_bytes;
  }

  // The samples of a tile.
  __device__ int Samples(int64_t tile, int64_t image) const {
    const int64_t left = image_samples - (tile - image * image_tiles) * tile_samples;
    return left < tile_samples ? int(left) : tile_samples;
  }

  // The calling thread's sample. Consecutive samples are those of the offset groups, and then of the taps, of a pixel,
  // in the order of their columns.
  __device__ TileSample Sample(int64_t tile, int64_t image) const {
    TileSample sample = {};
    const int64_t i = (tile - image * image_tiles) * tile_samples + threadIdx.x;
    if (int(threadIdx.x) >= tile_samples || i >= image_samples) {
      sample.index = -1;
      return sample;
    }
    const int64_t pixel = by_pixel_samples.Quotient(i), of_pixel = i - pixel * sizes.pixel_samples();
    sample.tap = int32_t(by_offset_groups.Quotient(of_pixel));
    sample.offset_group = of_pixel - sample.tap * sizes.offset_groups;
    strips.Locate(pixel, &sample.row, &sample.column);
    sample.output_pixel = (image * sizes.rows + sample.row) * sizes.columns + sample.column;
    sample.index =
        sizes.first_sample(positions.origin) + SampleIndex(sizes, sample.output_pixel, sample.offset_group, sample.tap);
    return sample;
  }

  template <typename A>
  __device__ BilinearCorners<A> Locate(const TileSample& sample) const {
    const int32_t row = int32_t(by_kernel_columns.Quotient(uint32_t(sample.tap)));
    const int32_t column = sample.tap - row * sizes.window.kernel[1];
    const Vector<int64_t, 2> distance = {
        {int64_t{row} * sizes.window.dilation[0], int64_t{column} * sizes.window.dilation[1]}};
    const FirstTap first_tap(sizes, positions, sample.row, sample.column);
    return LocateSample<A>(sizes, positions, first_tap, sample.index, distance);
  }

  template <typename A>
  __device__ SampleRecord<A> Record(const TileSample& sample, const BilinearCorners<A>& corners) const {
    const int64_t group_start = sample.offset_group * group_bytes;
    SampleRecord<A> record;
    record.column = (sample.output_pixel * sizes.taps() + sample.tap) * tap_bytes + group_start;
    const PixelPair<A> y(corners.y), x(corners.x);
    const bool is_read = y.first >= 0 && x.first >= 0;  // a position in an empty image is inside, too
    const A weight = is_read ? y.weight * x.weight * Mask<A>(positions, sample.index) : corners.unread_value();
    ComputeWeights(y, x, weight, record.weights);
    const int64_t pixel = (int64_t{y.first} * sizes.width + x.first) * pixel_bytes + group_start;
    const int64_t flags = (y.is_far ? kIsFarDown : 0) + (x.is_far ? kIsFarRight : 0);
    record.pixel = is_read ? 4 * pixel + flags : kUnread;
    return record;
  }
};

template <typename T, int N>
__device__ Vector<Accumulator<T>, N> Load(const char* address) {
  return Widened(AsVector<N>(reinterpret_cast<const T*>(address)));
}

// The addresses of a sample's corners, at the first channel of its offset group.
struct CornerChannels {
  const char* address[4];

  template <typename A>
  __device__ CornerChannels(const SampleTiles& tiles, const char* image, const SampleRecord<A>& record) {
    const int64_t right = record.pixel & kIsFarRight ? tiles.far_right : tiles.right;
    const int64_t down = record.pixel & kIsFarDown ? tiles.far_down : tiles.down;
    address[0] = image + (record.pixel >> 2);
    address[1] = address[0] + right;
    address[2] = address[0] + down;
    address[3] = address[2] + right;
  }

  template <typename T, int N>
  __device__ Vector<Accumulator<T>, N> Load(int corner, int64_t channel_bytes) const {
    return dcn::Load<T, N>(address[corner] + channel_bytes);
  }
};

}  // namespace dcn
