// The forward of a fused convolution: samples of a block of K go to rows of a buffer, which are multiplied at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "fused/kernels.h"
#include "fused/product.h"
#include "fused/samples.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// The blocks that K is divided into; K is ordered by taps, then by channels of a feature group. A block has whole taps
// where it can.
template <typename Element>
struct Blocks {
  int64_t channels, k, length;  // in values

  Blocks(const ConvolutionCall& call) : channels(call.group_channels()), k(channels * call.sizes.taps()) {
    constexpr int64_t kLimit = kBlockWords * Element::MatrixProduct::kValues;
    length = channels > kLimit ? kLimit : kLimit / channels * channels;
  }
  int64_t count() const { return (k + length - 1) / length; }
};

inline int64_t PaddedFeatures(const ConvolutionCall& call) {
  return (call.product.group_features() + kPanel - 1) / kPanel * kPanel;
}

template <typename Element, typename T>
struct Forward {
  static constexpr int64_t kValues = Element::MatrixProduct::kValues;

  // Packs a part of the weight [taps, channels of a group, features]: panel by panel of each block of each group. Only
  // where pairs are multiplied; otherwise the product packs panels when it needs them.
  static int64_t PackingTasks(const ConvolutionCall& call) {
    return call.product.groups * Blocks<Element>(call).count();
  }
  static void Pack(const ConvolutionCall& call, const FusedForwardArrays& arrays, int64_t task) {
    const Blocks<Element> blocks(call);
    const int64_t group = task / blocks.count(), begin = task % blocks.count() * blocks.length;
    const int64_t length = std::min(blocks.length, blocks.k - begin);
    const int64_t group_features = call.product.group_features(), padded = PaddedFeatures(call);
    const T* const from = static_cast<const T*>(arrays.weight) + group * group_features;
    T* to = PackedBlock(arrays, (group * blocks.k + begin) * padded);
    for (int64_t feature = 0; feature < padded; feature += kPanel, to += length * kPanel) {
      const int64_t features = std::min<int64_t>(kPanel, group_features - feature);
      for (int64_t k = 0; k < length; k += kValues) {
        const int64_t channel = (begin + k) % blocks.channels, first = begin + k - channel;
        const T* rows[kValues];
        for (int64_t v = 0; v < kValues; ++v) {
          rows[v] = from + (first + Element::Channel(channel + v)) * call.product.features + feature;
        }
        Element::StorePairs(rows, features, to + k * kPanel);
      }
    }
  }

  static void Compute(const ConvolutionCall& call, const FusedForwardArrays& arrays, const void* zeros,
                      const Tiling& tiling, std::atomic<int64_t>& next) {
    if (next.load() >= tiling.count()) return;  // other threads have taken all tiles
    Buffers buffers(call, tiling.max_pixels());
    for (int64_t tile; (tile = next.fetch_add(1)) < tiling.count();) {
      ComputeTile(call, arrays, static_cast<const T*>(zeros), tiling[tile], buffers);
    }
  }

 private:
  static T* PackedBlock(const FusedForwardArrays& arrays, int64_t offset) {
    return reinterpret_cast<T*>(arrays.workspace) + offset;
  }

  // Values [begin, begin + length) of K.
  static auto Weight(const ConvolutionCall& call, const FusedForwardArrays& arrays, int64_t group, int64_t begin,
                     int64_t length) {
    const Blocks<Element> blocks(call);
    if constexpr (Element::kPacksWeight) {
      return Element::PackedWeight(PackedBlock(arrays, (group * blocks.k + begin) * PaddedFeatures(call)),
                                   length / kValues);
    } else {
      const int64_t features = call.product.features, group_features = call.product.group_features();
      const T* const weight = static_cast<const T*>(arrays.weight);
      return Panels<T>{weight + begin * features + group * group_features, features, kPanel, group_features};
    }
  }

  // Values of a block of K that have the tap and the offset group in common.
  struct Run {
    const SampleArrays* samples;
    int64_t channel, channels;
    float* words;  // of the first row
  };

  struct Buffers {
    Samples samples;
    std::vector<Run> runs;
    int64_t sums_stride;
    AlignedVector<float> rows, sums;
    typename Element::MatrixProduct product;  // the last member, since it may change the thread's state

    Buffers(const ConvolutionCall& call, int64_t max_pixels)
        : samples(call, call.sizes.offset_groups),
          sums_stride(PaddedFeatures(call) + kLineFloats),
          rows(Element::MatrixProduct::PaddedRows(max_pixels) * kRowWords),
          sums(Element::MatrixProduct::PaddedRows(max_pixels) * sums_stride) {
      runs.reserve(kBlockWords * kValues);
    }
  };

  static void ComputeTile(const ConvolutionCall& call, const FusedForwardArrays& arrays, const T* zeros,
                          const OutputTile& tile, Buffers& buffers) {
    const Blocks<Element> blocks(call);
    const int64_t padded = PaddedFeatures(call), group_features = call.product.group_features();
    buffers.samples.Locate(tile, 0, call.sizes.offset_groups - 1);
    for (int64_t group = 0; group < call.product.groups; ++group) {
      for (int64_t begin = 0; begin < blocks.k; begin += blocks.length) {
        const int64_t length = std::min(blocks.length, blocks.k - begin);
        Sample(call, static_cast<const T*>(arrays.x), zeros, tile, group, begin, length, buffers);
        buffers.product.template Multiply<kRowWords, 1>(tile.pixels(), padded, length / kValues, buffers.rows.data(),
                                                        Weight(call, arrays, group, begin, length), buffers.sums.data(),
                                                        buffers.sums_stride, begin == 0);
      }
      const float* const bias = arrays.bias + group * group_features;
      if (arrays.is_y_float) {
        StoreTile(call, bias, buffers, tile.pixels(), group, static_cast<float*>(arrays.y));
      } else {
        StoreTile(call, bias, buffers, tile.pixels(), group, static_cast<T*>(arrays.y));
      }
    }
  }

  // Values [begin, begin + length) of K, row by row of the tile: samples of neighbouring taps share pixels, which stay
  // in the L1 cache.
  static void Sample(const ConvolutionCall& call, const T* x, const T* zeros, const OutputTile& tile, int64_t group,
                     int64_t begin, int64_t length, Buffers& buffers) {
    const Sizes& sizes = call.sizes;
    const int64_t group_channels = call.group_channels();
    buffers.runs.clear();
    for (int64_t k = 0, count; k < length; k += count) {
      const int32_t tap = int32_t((begin + k) / group_channels);
      const int64_t channel = group * group_channels + (begin + k) % group_channels;
      const int64_t offset_group = channel / sizes.group_channels();
      // A run ends with the tap, the offset group or the block.
      count = std::min({(tap + 1) * group_channels - (begin + k), (offset_group + 1) * sizes.group_channels() - channel,
                        length - k});
      buffers.runs.push_back(
          {&buffers.samples.Of(offset_group, tap), channel, count, buffers.rows.data() + k / kValues});
    }
    const T* const image = x + tile.image * sizes.height * sizes.width * sizes.channels;
    for (int64_t first = 0; first < tile.pixels(); first += tile.columns) {
      for (const Run& run : buffers.runs) {
        SampleRun(image + run.channel, sizes.channels, zeros, *run.samples, first, first + tile.columns, run.channels,
                  run.words);
      }
    }
  }

  static void SampleRun(const T* image, int64_t channels, const T* zeros, const SampleArrays& samples, int64_t first,
                        int64_t end, int64_t count, float* words) {
    // A constant number of channels saves the loop over them.
    if (count == kNarrow) {
      BlendPixels(image, channels, zeros, samples, first, end, kNarrow, words);
    } else {
      BlendPixels(image, channels, zeros, samples, first, end, count, words);
    }
  }

  static DCN_INLINE void BlendPixels(const T* image, int64_t channels, const T* zeros, const SampleArrays& samples,
                                     int64_t first, int64_t end, int64_t count, float* words) {
    for (int64_t p = first; p < end; ++p) {
      const T* corner[4];
      float weight[4];
      for (int i = 0; i < 4; ++i) {
        const int32_t pixel = samples.pixel[i][p];
        corner[i] = pixel >= 0 ? image + pixel * channels : zeros;
        weight[i] = samples.weight[i][p];
      }
      Element::Blend(corner, weight, count, words + p * kRowWords);
    }
  }

  template <typename Y>
  static void StoreTile(const ConvolutionCall& call, const float* bias, const Buffers& buffers, int64_t pixels,
                        int64_t group, Y* y) {
    const int64_t features = call.product.group_features();
    for (int64_t p = 0; p < pixels; ++p) {
      const float* const sums = buffers.sums.data() + p * buffers.sums_stride;
      Y* const out = y + buffers.samples.output(p) * call.product.features + group * features;
      for (int64_t f = 0; f < features; f += kLanes) {
        Store(Load(sums + f) + Load(bias + f, features - f), out + f, features - f);
      }
    }
  }
};

template <typename Element, typename T>
constexpr FusedKernels::Forward ForwardKernels() {
  using Kernel = Forward<Element, T>;
  if constexpr (Element::kPacksWeight) {
    return {Kernel::PackingTasks, Kernel::Pack, Kernel::Compute};
  } else {
    return {nullptr, nullptr, Kernel::Compute};
  }
}

}  // namespace
DCN_END_TARGET
