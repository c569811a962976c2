// How a call of the fused convolution is divided into tiles and tasks: by shapes only, so that results do not depend on
// the number of threads. And the kernels, which obey that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "deform_conv_fused.h"
#include "device.h"
#include "instruction_sets.h"

namespace dcn {

constexpr int64_t kMaxTilePixels = 352, kMaxCotangentTilePixels = 256;
constexpr int64_t kSampleBytes = 44;  // of a sample of a tile, in samples.h

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
InstructionSet InstructionSetFor(InstructionSet best, const Convolution&, bool is_forward);

// The tiles of the kernels of an instruction set.
Tiling ForwardTiling(InstructionSet, const Convolution&);
Tiling CotangentTiling(InstructionSet, const Sizes&);

// The slices that the cotangents divide the channels into, and the floats of their arrays in the workspace.
struct Slices {
  explicit Slices(const Convolution&);

  // The packed weight, and the sums of the weight's cotangent.
  int64_t PackedWeight(RequestedCotangents requested) const {
    return requested.x || requested.positions ? packed_size : 0;
  }
  int64_t BeforeImages(RequestedCotangents, int64_t parts) const;

  int64_t channels, padded_channels;  // of a slice
  int64_t in_group, count;
  int64_t weight_size, packed_size;  // of a part's sums of the weight's cotangent, and of the packed weight
  int64_t image_size;                // of a task's sums of the cotangent of x, if that has 16 bits
};

// Divides the cotangents of one call into tasks, and the workspace among them. A task covers one slice of the channels
// of one part of the images.
//
// Slices that share an offset group add to the same cotangents of positions, tile by tile, each after the slice before.
// Threads take the tasks in the order of the slices, and a task that has been taken allocates nothing, so that it
// always finishes: waiting for it ends.
struct CotangentPlan {
  const Convolution& convolution;
  RequestedCotangents requested;
  FusedTasks division;
  Tiling tiling;
  Slices slices;

  int64_t tasks() const { return slices.count * division.parts; }
  int64_t first_image(int64_t part) const { return part * convolution.sizes.images / division.parts; }

  // How many offset groups a slice has at most.
  int64_t max_offset_groups() const {
    const Sizes& sizes = convolution.sizes;
    return std::min(sizes.offset_groups, 2 + (slices.channels - 1) / sizes.group_channels());
  }

  struct Slice {
    int64_t group, channel, channels;  // a feature group, and channels of x
    int64_t in_group;                  // the first of the channels, in the feature group
  };
  // Whether the slice adds to cotangents of positions that the slice before also adds to.
  bool WaitsForSliceBefore(const Slice& slice) const {
    return requested.positions && slice.channel % convolution.sizes.group_channels() != 0;
  }
  Slice slice(int64_t index) const {
    const int64_t in_group = index % slices.in_group * slices.channels, group = index / slices.in_group;
    const int64_t group_channels = convolution.group_channels();
    return {group, group * group_channels + in_group, std::min(slices.channels, group_channels - in_group), in_group};
  }
};

// The kernels of an instruction set for one type of x.
struct FusedKernels {
  void (*forward)(Device&, const Convolution&, const FusedForwardArrays&, const Tiling&);
  void (*cotangents)(Device&, const CotangentPlan&, const FusedCotangentArrays&);
};

// Those of avx512_bf16, amx and neon_bf16 multiply pairs of bfloat16, and are for no other type. The channels of a
// feature group and of an offset group must be multiples of PairChannels. For the cotangents, the features of a feature
// group must be, too.
#define DCN_DECLARE(set)                      \
  namespace set {                             \
  const FusedKernels& FusedKernelsFor(DType); \
  }
DCN_INSTRUCTION_SETS(DCN_DECLARE)
constexpr int64_t PairChannels(int vector_bytes) { return vector_bytes / int64_t{sizeof(uint16_t)}; }

}  // namespace dcn
