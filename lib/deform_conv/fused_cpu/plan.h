// How a call of the fused convolution is divided into tiles and channel slices, and the kernels of an instruction set.
// The division does not depend on the number of threads, so results do not either.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "aligned_vector.h"
#include "deform_conv/fused.h"
#include "device.h"
#include "instruction_sets.h"

namespace dcn {

constexpr int64_t kMaxCotangentTilePixels = 256;
constexpr int64_t kSampleBytes = 32;  // of each sample, in the PacketCorners of samples.h

// A rectangle of output pixels.
struct OutputTile {
  int64_t image, row, column, rows, columns;

  int64_t pixels() const { return rows * columns; }
};

// Divides each image of the output into tiles of at most `pixels` pixels, whose sizes are as equal as possible.
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

// The instruction set of a call's kernels: `best`, or its operator set if `best` multiplies pairs of bfloat16 and the
// call does not consist of such pairs.
InstructionSet InstructionSetFor(InstructionSet best, const Convolution&, bool is_forward);

Tiling ForwardTiling(InstructionSet, const Convolution&);

// The channel slices of the cotangents, and how many floats their arrays take in the workspace.
struct ChannelSlices {
  explicit ChannelSlices(const Convolution&);

  int64_t PackedWeightFloats(RequestedCotangents requested) const {
    return requested.x || requested.positions ? packed_size : 0;
  }
  // The packed weight, and the partial sums of the weight's cotangent.
  int64_t BeforePlanes(RequestedCotangents, int64_t num_splits) const;

  static constexpr int64_t kMaxChannels = 64;
  int64_t channels, padded_channels;  // of a slice
  int64_t slices_per_group, count;    // slices of a feature group, and of all
  int64_t weight_size, packed_size;   // of one split of the weight's cotangent, and of the packed weight
  int64_t plane_size;                 // of a plane's sums of the cotangent of x, if that has 16 bits
};

Tiling CotangentTiling(InstructionSet, const Sizes&, const ChannelSlices&);

// How many consecutive tiles add to the same split of the weight's cotangent. They add to different taps at the same
// time. In a longer run, later tiles would wait longer for their first tap; shorter runs need more splits.
inline int64_t SplitRun(const Sizes& sizes) { return (int64_t{sizes.taps()} + 1) / 2; }

// How the cotangents of a call are computed. A plane is one channel slice of one image. A call has a phase for each
// plane: its tasks first prepare the sums of the plane's cotangent of x, band by band, and then compute the plane's
// tiles. Threads take the tasks in order; cotangents.h says what a tile waits for.
struct CotangentPlan {
  const Convolution& convolution;
  RequestedCotangents requested;
  CotangentDivision division;
  Tiling tiling;
  ChannelSlices slices;

  // Planes are counted image by image, and slice by slice.
  int64_t planes() const { return convolution.sizes.images * slices.count; }
  int64_t plane(int64_t image, int64_t slice_index) const { return image * slices.count + slice_index; }
  int64_t image_of(int64_t plane) const { return plane / slices.count; }
  int64_t slice_index_of(int64_t plane) const { return plane % slices.count; }
  int64_t tiles() const { return tiling.image_tiles(); }  // of a plane
  // Tile `i` of an image, in the order in which tiles are computed. Neighbours add to the same pixels, and wait for
  // each other, so consecutive tiles lie far apart: a step near the golden section spreads them evenly.
  OutputTile Tile(int64_t image, int64_t i) const {
    int64_t step = std::max<int64_t>(1, int64_t(0.382 * double(tiles())));
    while (std::gcd(step, tiles()) != 1) ++step;
    return tiling[image * tiles() + i * step % tiles()];
  }

  // The split of the weight's cotangent that a tile adds to; tiles are counted through all images.
  int64_t split(int64_t tile) const { return tile / run() % division.num_splits; }
  // The tile before this one among those that add to the same split; negative if there is none.
  int64_t TileBefore(int64_t tile) const {
    return tile % run() ? tile - 1 : tile - 1 - run() * (division.num_splits - 1);
  }
  // How many splits have tiles that add to them.
  int64_t used_splits() const { return std::min(division.num_splits, 1 + (tiling.count() - 1) / run()); }
  int64_t run() const { return SplitRun(convolution.sizes); }

  // How many planes have sums in the workspace at a time. A float32 cotangent of x adds up in the result.
  int64_t resident_planes() const { return HasPlaneSums() ? std::min(division.num_planes, planes()) : 0; }
  bool HasPlaneSums() const { return requested.x && convolution.dtype != DType::kF32; }

  // Planes share the sums in the workspace: the phase of a plane first rounds the plane that had them before. After the
  // last plane, further phases only round.
  int64_t phases() const { return planes() + resident_planes(); }
  int64_t phase_tasks() const { return bands() + tiles(); }
  // The plane that a phase rounds; negative if there is none.
  int64_t RoundedPlane(int64_t phase) const { return HasPlaneSums() ? phase - resident_planes() : -1; }

  // The bands of a plane's pixels, which are set to zero and rounded one by one.
  static constexpr int64_t kBandPixels = 2048;
  int64_t bands() const {
    const Sizes& sizes = convolution.sizes;
    return requested.x ? (sizes.height * sizes.width + kBandPixels - 1) / kBandPixels : 0;
  }

  // A patch has a tile's own sums of the cotangent of x, in rows of pixels. The stride of a pixel is an odd number of
  // cache lines, so that pixels spread over the sets of a cache. Only the pages that a tile reaches take memory.
  static constexpr int64_t kMaxPatchRows = 64, kMaxPatchFloats = 16 << 20;
  int64_t patch_stride() const { return (slices.channels + kLineFloats - 1) / kLineFloats * kLineFloats | kLineFloats; }
  int64_t patch_rows() const {
    const Sizes& sizes = convolution.sizes;
    const int64_t row_floats = std::max<int64_t>(1, sizes.width) * patch_stride();
    return requested.x ? std::min({sizes.height, kMaxPatchRows, kMaxPatchFloats / row_floats}) : 0;
  }
  int64_t PatchFloats() const { return patch_rows() * convolution.sizes.width * patch_stride(); }

  // How many offset groups a slice has channels of, at most.
  int64_t max_offset_groups() const {
    const Sizes& sizes = convolution.sizes;
    return std::min(sizes.offset_groups, 2 + (slices.channels - 1) / sizes.group_channels());
  }

  struct ChannelSlice {
    int64_t group;              // a feature group
    int64_t channel, channels;  // the first channel of x, and how many
    int64_t first_in_group;     // that channel's index in the feature group
  };
  // Whether the slice adds to cotangents of positions that the slice before also adds to.
  bool SharesPositions(const ChannelSlice& slice) const {
    return slice.channel % convolution.sizes.group_channels() != 0;
  }
  ChannelSlice slice(int64_t index) const {
    const int64_t group = index / slices.slices_per_group;
    const int64_t first_in_group = index % slices.slices_per_group * slices.channels;
    const int64_t group_channels = convolution.group_channels();
    return {group, group * group_channels + first_in_group, std::min(slices.channels, group_channels - first_in_group),
            first_in_group};
  }
};

// The kernels of an instruction set for one type of x.
struct FusedKernels {
  void (*forward)(Device&, const Convolution&, const FusedForwardArrays&, const Tiling&);
  void (*cotangents)(Device&, const CotangentPlan&, const FusedCotangentArrays&);
};

// The kernels of avx512_bf16, amx and neon_bf16 multiply pairs of bfloat16, and are for no other type. The channels of
// a feature group and of an offset group must be multiples of PairChannels; for the cotangents, the features of a
// feature group, too.
#define DCN_DECLARE_KERNELS(set, ...)                          \
  namespace set {                                              \
  const FusedKernels& FusedKernelsFor(DType, bool is_on_grid); \
  }
DCN_INSTRUCTION_SETS(DCN_DECLARE_KERNELS)
constexpr int64_t PairChannels(int vector_bytes) { return vector_bytes / int64_t{sizeof(uint16_t)}; }

}  // namespace dcn
