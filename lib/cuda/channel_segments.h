// The channels of a deformable convolution as the fused cotangents of x, offset and mask divide them among block tiles.
#pragma once

#include <cstdint>

#include "deform_conv_fused.h"

namespace dcn {

// A run of channels of one channel segment.
struct ChannelTile {
  int32_t first, count;
};

// The channel segments (see SegmentChannels) and their tiles. A tile never crosses the end of a segment, so that all
// its channels multiply the same features and are sampled at the same locations.
struct ChannelSegments {
  int32_t channels, group_channels, offset_group_channels, segment_channels;
  int32_t features, group_features;
  int32_t tile_channels;                             // of a tile; the last of a segment may have fewer
  int32_t segment_tiles, offset_group_tiles, tiles;  // of a segment, of an offset group, of all channels

  ChannelSegments() = default;
  ChannelSegments(const Convolution& convolution, int32_t tile_channels)
      : channels(int32_t(convolution.sizes.channels)),
        group_channels(int32_t(convolution.group_channels())),
        offset_group_channels(int32_t(convolution.sizes.group_channels())),
        segment_channels(int32_t(SegmentChannels(convolution))),
        features(int32_t(convolution.product.features)),
        group_features(int32_t(convolution.product.group_features())),
        tile_channels(tile_channels),
        segment_tiles((segment_channels + tile_channels - 1) / tile_channels),
        offset_group_tiles(offset_group_channels / segment_channels * segment_tiles),
        tiles(channels / segment_channels * segment_tiles) {}

  DCN_HOST_DEVICE ChannelTile Tile(int32_t tile) const {
    const int32_t in_segment = tile % segment_tiles * tile_channels, left = segment_channels - in_segment;
    return {tile / segment_tiles * segment_channels + in_segment, left < tile_channels ? left : tile_channels};
  }
  DCN_HOST_DEVICE int32_t OffsetGroup(int32_t channel) const { return channel / offset_group_channels; }
  DCN_HOST_DEVICE int32_t FeatureGroup(int32_t channel) const { return channel / group_channels; }
};

}  // namespace dcn
