// What one call of the fused convolution computes, and how its output is divided into tiles: by shapes only, so that
// results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "deform_conv_fused.h"
#include "dtype.h"
#include "instruction_sets.h"

namespace dcn {

constexpr int64_t kMaxTilePixels = 352, kMaxCotangentTilePixels = 256;
constexpr int64_t kSampleBytes = 44;  // of a sample of a tile, in samples.h

struct ConvolutionCall {
  Sizes sizes;
  Product product;
  Positions positions;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

// A rectangle of output pixels.
struct OutputTile {
  int64_t image, row, column, rows, columns;

  int64_t pixels() const { return rows * columns; }
};

// Divides each image of the output into tiles of at most `pixels` pixels, which are as alike as possible.
class Tiling {
 public:
  Tiling(const Sizes& sizes, int64_t pixels) : images_(sizes.images), height_(sizes.rows), width_(sizes.columns) {
    columns_ = EvenSize(width_, std::min(kColumns, pixels));
    rows_ = EvenSize(height_, std::max<int64_t>(1, pixels / columns_));
    across_ = (width_ + columns_ - 1) / columns_;
    down_ = (height_ + rows_ - 1) / rows_;
  }

  int64_t count() const { return images_ * image_tiles(); }
  int64_t image_tiles() const { return down_ * across_; }
  int64_t max_pixels() const { return rows_ * columns_; }

  OutputTile operator[](int64_t tile) const {
    const int64_t row = tile / across_ % down_ * rows_, column = tile % across_ * columns_;
    return {tile / image_tiles(), row, column, std::min(rows_, height_ - row), std::min(columns_, width_ - column)};
  }

 private:
  static constexpr int64_t kColumns = 21;  // neighbouring samples share pixels, so tiles are not single rows

  static int64_t EvenSize(int64_t size, int64_t limit) {
    const int64_t tiles = std::max<int64_t>(1, (size + limit - 1) / limit);
    return std::max<int64_t>(1, (size + tiles - 1) / tiles);
  }

  int64_t images_, height_, width_, rows_, columns_, down_, across_;
};

// The instruction set of a call's kernels: `best`, or a lower one if `best` multiplies pairs of bfloat16 and the call
// does not consist of such pairs.
InstructionSet InstructionSetFor(InstructionSet best, DType, const ConvolutionCall&, bool is_forward);

// The tiles of the kernels of an instruction set.
Tiling ForwardTiling(InstructionSet, DType, const ConvolutionCall&);
Tiling CotangentTiling(InstructionSet, const Sizes&);

// How many tiles each task of the cotangents has finished.
using FinishedTiles = std::vector<std::atomic<int64_t>>;

// Divides the cotangents of one call into tasks, by shapes only, and the workspace among them. A task covers one slice
// of the channels of one part of the images.
//
// Slices that share an offset group add to the same cotangents of positions, tile by tile, each after the slice before.
// Threads take the tasks in the order of the slices, and a task that has been taken allocates nothing, so that it
// always finishes: waiting for it ends.
struct CotangentPlan {
  RequestedCotangents requested;
  int64_t slice_channels, group_slices, slices;
  int64_t padded_channels;  // of a slice
  int64_t parts;            // of the images
  int64_t slots;            // tasks that may run at a time
  // Where each array starts in the workspace, in floats. The first one is the packed weight, which has x's type.
  int64_t weight_sums;  // float[parts, taps, slices, features of a group, padded_channels]
  int64_t image_sums;   // float[slots, height, width, padded_channels], if x has 16 bits
  int64_t size;

  CotangentPlan(DType, const Sizes&, const Product&, RequestedCotangents, FusedTasks);

  int64_t tasks() const { return slices * parts; }
  int64_t first_image(int64_t part, const Sizes& sizes) const { return part * sizes.images / parts; }

  // How many offset groups a slice has at most.
  int64_t max_offset_groups(const Sizes& sizes) const {
    return std::min(sizes.offset_groups, 2 + (slice_channels - 1) / sizes.group_channels());
  }

  struct Slice {
    int64_t group, channel, channels;  // a feature group, and channels of x
  };
  // Whether the slice adds to cotangents of positions that the slice before also adds to.
  bool WaitsForSliceBefore(const Slice& slice, const Sizes& sizes) const {
    return requested.positions && slice.channel % sizes.group_channels() != 0;
  }
  Slice slice(int64_t index, const ConvolutionCall& call) const {
    const int64_t in_group = index % group_slices * slice_channels, group = index / group_slices;
    return {group, group * call.group_channels() + in_group,
            std::min(slice_channels, call.group_channels() - in_group)};
  }
};

}  // namespace dcn
