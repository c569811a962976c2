// The forward of a fused convolution: the samples of a block of K go to rows of a buffer, and are multiplied at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "deform_conv/fused_cpu/plan.h"
#include "deform_conv/fused_cpu/product.h"
#include "deform_conv/fused_cpu/samples.h"
#include "device.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

template <typename Element, typename T, int kCorners>
class Forward {
 public:
  static void Run(Device& device, const Convolution& convolution, const FusedForwardArrays& arrays,
                  const Tiling& tiling) {
    const Forward forward(convolution, arrays);
    if constexpr (Element::kPacksWeight) {
      const int64_t blocks = (forward.k_ + forward.block_ - 1) / forward.block_;
      device.ParallelFor(convolution.product.groups * blocks,
                         [&](int64_t task) { forward.PackBlock(task / blocks, task % blocks * forward.block_); });
    }
    const auto make = [&] { return Buffers(forward, tiling.max_pixels()); };
    device.ParallelFor(tiling.count(), make,
                       [&](Buffers& buffers, int64_t tile) { forward.ComputeTile(tiling[tile], buffers); });
  }

 private:
  static constexpr int64_t kValues = Element::MatrixProduct::kValues;

  // K is ordered by taps, then by channels of a feature group. A block of K has whole taps where possible.
  Forward(const Convolution& convolution, const FusedForwardArrays& arrays)
      : convolution_(convolution),
        arrays_(arrays),
        group_channels_(convolution.group_channels()),
        group_features_(convolution.product.group_features()),
        padded_features_((group_features_ + kPanel - 1) / kPanel * kPanel),
        k_(group_channels_ * convolution.sizes.taps()),
        zeros_(convolution.sizes.group_channels()) {
    constexpr int64_t kLimit = kBlockWords * kValues;
    block_ = group_channels_ > kLimit ? kLimit : kLimit / group_channels_ * group_channels_;
  }

  int64_t BlockLength(int64_t begin) const { return std::min(block_, k_ - begin); }

  T* PackedWeight(int64_t group, int64_t begin) const {
    return reinterpret_cast<T*>(arrays_.workspace) + (group * k_ + begin) * padded_features_;
  }

  // Packs a block of K of the weight [taps, channels of a group, features], panel by panel, for products of pairs.
  // Other products pack a panel when they need it.
  void PackBlock(int64_t group, int64_t begin) const {
    const int64_t length = BlockLength(begin), all_features = convolution_.product.features;
    const T* const from = static_cast<const T*>(arrays_.weight) + group * group_features_;
    T* to = PackedWeight(group, begin);
    for (int64_t feature = 0; feature < padded_features_; feature += kPanel, to += length * kPanel) {
      const int64_t features = std::min<int64_t>(kPanel, group_features_ - feature);
      for (int64_t k = 0; k < length; k += kValues) {
        const int64_t channel = (begin + k) % group_channels_, first = begin + k - channel;
        const T* rows[kValues];
        for (int64_t v = 0; v < kValues; ++v) {
          rows[v] = from + (first + Element::Channel(channel + v)) * all_features + feature;
        }
        Element::StorePairs(rows, features, to + k * kPanel);
      }
    }
  }

  // The weight of a block of K.
  auto Weight(int64_t group, int64_t begin) const {
    if constexpr (Element::kPacksWeight) {
      return Element::WeightPanels(PackedWeight(group, begin), BlockLength(begin) / kValues);
    } else {
      const int64_t features = convolution_.product.features;
      const T* const weight = static_cast<const T*>(arrays_.weight);
      return Panels<T>{weight + begin * features + group * group_features_, features, kPanel, group_features_};
    }
  }

  // Channels of one tap and one offset group in a block of K.
  struct Segment {
    int64_t sample;  // of an output pixel
    int64_t channel, channels;
    float* words;  // of the first row
  };

  struct Buffers {
    TileSamples<true, kCorners> samples;
    std::vector<Segment> segments;
    int64_t sums_stride;
    AlignedVector<float> rows, sums;
    typename Element::MatrixProduct product;  // the last member, since it may change the thread's state

    Buffers(const Forward& forward, int64_t max_pixels)
        : samples(forward.convolution_, forward.convolution_.sizes.offset_groups, max_pixels),
          sums_stride(forward.padded_features_ + kLineFloats),
          rows(Element::MatrixProduct::PaddedRows(max_pixels) * kRowWords),
          sums(Element::MatrixProduct::PaddedRows(max_pixels) * sums_stride) {
      segments.reserve(kBlockWords * kValues);
    }
  };

  void ComputeTile(const OutputTile& tile, Buffers& buffers) const {
    buffers.samples.Locate(tile, 0, convolution_.sizes.offset_groups - 1);
    for (int64_t group = 0; group < convolution_.product.groups; ++group) {
      for (int64_t begin = 0; begin < k_; begin += block_) {
        SampleBlock(tile, group, begin, buffers);
        buffers.product.template Multiply<kRowWords, 1>(tile.pixels(), padded_features_, BlockLength(begin) / kValues,
                                                        buffers.rows.data(), Weight(group, begin), buffers.sums.data(),
                                                        buffers.sums_stride, begin == 0);
      }
      if (arrays_.is_y_float) {
        StoreTile(buffers, tile.pixels(), group, static_cast<float*>(arrays_.y));
      } else {
        StoreTile(buffers, tile.pixels(), group, static_cast<T*>(arrays_.y));
      }
    }
  }

  // Packet by packet, because the samples of neighbouring taps share pixels of x, which stay in the caches.
  void SampleBlock(const OutputTile& tile, int64_t group, int64_t begin, Buffers& buffers) const {
    const Sizes& sizes = convolution_.sizes;
    const int64_t length = BlockLength(begin);
    buffers.segments.clear();
    for (int64_t k = 0, count; k < length; k += count) {
      const int32_t tap = int32_t((begin + k) / group_channels_);
      const int64_t channel = group * group_channels_ + (begin + k) % group_channels_;
      const int64_t offset_group = channel / sizes.group_channels();
      // A segment ends with the tap, the offset group or the block.
      count = std::min({(tap + 1) * group_channels_ - (begin + k),
                        (offset_group + 1) * sizes.group_channels() - channel, length - k});
      buffers.segments.push_back(
          {offset_group * sizes.taps() + tap, channel, count, buffers.rows.data() + k / kValues});
    }
    const T* const image = static_cast<const T*>(arrays_.x) + tile.image * sizes.height * sizes.width * sizes.channels;
    for (int64_t first = 0; first < tile.pixels(); first += kPacketPixels) {
      const int64_t pixels = PixelsOfPacket(first, tile.pixels());
      for (const Segment& segment : buffers.segments) {
        const PacketCorners<kCorners>& corners = buffers.samples.Corners(first / kPacketPixels, segment.sample);
        SampleSegment(segment, corners, image, pixels, segment.words + first * kRowWords);
      }
    }
  }

  void SampleSegment(const Segment& segment, const PacketCorners<kCorners>& corners, const T* image, int64_t pixels,
                     float* words) const {
    // A constant number of channels saves the loop over them.
    constexpr int64_t kFew = Element::VectorChannels(kNarrow), kMany = Element::VectorChannels(kLanes);
    image += segment.channel;
    if (segment.channels == kMany) {
      BlendPixels(corners, image, pixels, kMany, words);
    } else if (segment.channels == kFew) {
      BlendPixels(corners, image, pixels, kFew, words);
    } else {
      BlendPixels(corners, image, pixels, segment.channels, words);
    }
  }

  DCN_INLINE void BlendPixels(const PacketCorners<kCorners>& corners, const T* image, int64_t pixels, int64_t count,
                              float* words) const {
    PacketAddresses<const T, kCorners> addresses;
    addresses.Compute(corners, image, convolution_.sizes.channels, zeros_.data());
    for (int64_t p = 0; p < pixels; ++p) {
      const T* corner[kCorners];
      float weight[kCorners];
      for (int i = 0; i < kCorners; ++i) {
        corner[i] = addresses(i, p);
        weight[i] = corners.weight(i, p);
      }
      Element::Blend(corner, weight, count, words + p * kRowWords);
    }
  }

  template <typename Y>
  void StoreTile(const Buffers& buffers, int64_t pixels, int64_t group, Y* y) const {
    const float* const bias = arrays_.bias + group * group_features_;
    for (int64_t p = 0; p < pixels; ++p) {
      const float* const sums = buffers.sums.data() + p * buffers.sums_stride;
      Y* const out = y + buffers.samples.output(p) * convolution_.product.features + group * group_features_;
      for (int64_t f = 0; f < group_features_; f += kLanes) {
        Store(Load(sums + f) + Load(bias + f, group_features_ - f), out + f, group_features_ - f);
      }
    }
  }

  const Convolution& convolution_;
  const FusedForwardArrays& arrays_;
  int64_t group_channels_, group_features_, padded_features_;
  int64_t k_, block_;  // in values
  std::vector<T> zeros_;
};

}  // namespace
DCN_END_TARGET
