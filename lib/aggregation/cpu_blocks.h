// How the value of an aggregation, and its cotangent, are divided among tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/aggregation.h"

namespace dcn {

// Some consecutive heads, channels and pixels of the value of one batch.
struct Block {
  int64_t batch;
  int64_t first_head, heads;
  int64_t first_channel, channels;
  int64_t first_pixel, pixels;
};

// The elements of a block in memory. Strides are in bytes.
struct BlockArray {
  uintptr_t first;   // the address of the first element
  uintptr_t unread;  // the address of the channels that stand for those of a corner outside the block
  int64_t pixel_stride, head_stride;

  // Strides are in elements.
  template <typename T>
  BlockArray(T* first, T* unread, int64_t pixel_stride, int64_t head_stride)
      : first(reinterpret_cast<uintptr_t>(first)),
        unread(reinterpret_cast<uintptr_t>(unread)),
        pixel_stride(pixel_stride * int64_t(sizeof(T))),
        head_stride(head_stride * int64_t(sizeof(T))) {}
};

// How value's cotangent is divided into blocks, each of which one task computes.
struct BlockGrid {
  const AggregationSizes& sizes;
  int64_t heads, channels, pixels;  // of a block

  // A block has as many heads as fit in the L2 cache, because the taps of a query's heads are consecutive in memory. It
  // has fewer heads, then fewer channels, if there would be too few blocks, and fewer pixels only for the limit on
  // memory, because each block of a head locates all of its taps.
  BlockGrid(const AggregationSizes& sizes, int64_t threads, int64_t element_bytes) : sizes(sizes) {
    constexpr int64_t kCache = 2 << 20, kMemory = 48 << 20;
    constexpr int64_t kMinChannels = 8;  // each block locates all taps again
    const int64_t head_bytes = sizes.pixels * sizes.channels * element_bytes;
    const int64_t heads_per_thread = sizes.batches * sizes.heads / threads;
    heads = std::clamp<int64_t>(std::min(kCache / head_bytes, heads_per_thread), 1, sizes.heads);
    const int64_t max_blocks = (sizes.channels + kMinChannels - 1) / kMinChannels;
    const int64_t blocks = std::clamp<int64_t>(threads / (sizes.batches * sizes.heads), 1, max_blocks);
    channels = std::min(sizes.channels, (max_blocks + blocks - 1) / blocks * kMinChannels);
    const int64_t max_elements = std::max<int64_t>(kMemory / threads / element_bytes, channels);
    if (heads * channels * sizes.pixels > max_elements) heads = 1;
    pixels = std::min(sizes.pixels, max_elements / channels);
  }

  int64_t size() const { return sizes.batches * HeadBlocks() * ChannelBlocks() * PixelBlocks(); }

  Block operator[](int64_t i) const {
    const int64_t c = i % ChannelBlocks() * channels;
    i /= ChannelBlocks();
    const int64_t p = i % PixelBlocks() * pixels;
    i /= PixelBlocks();
    const int64_t h = i % HeadBlocks() * heads;
    return {i / HeadBlocks(),
            h,
            std::min(heads, sizes.heads - h),
            c,
            std::min(channels, sizes.channels - c),
            p,
            std::min(pixels, sizes.pixels - p)};
  }

 private:
  int64_t HeadBlocks() const { return (sizes.heads + heads - 1) / heads; }
  int64_t ChannelBlocks() const { return (sizes.channels + channels - 1) / channels; }
  int64_t PixelBlocks() const { return (sizes.pixels + pixels - 1) / pixels; }
};

}  // namespace dcn
