// The pixels that a block of samples reads, and their weights, for the kernels of the sampling.
//
// cpu_taps.cc is compiled without fused multiply-adds, because the last bit of a position matters. The kernels in
// cpu.cc are compiled with them.
#pragma once

#include <cstdint>

#include "aligned_vector.h"
#include "instruction_sets.h"
#include "sampling/sampling.h"

DCN_BEGIN_TARGET

// The points of a block: enough to amortize the loops over them, and few enough to stay in the L1 cache.
constexpr int kBlockPoints = 64;

constexpr int kMaxTaps = kMaxAxisTaps * kMaxAxisTaps;  // of a cubic sample, which has two axes

// The taps of a block's points on one axis of the image.
template <typename A>
struct alignas(64) BlockAxis {
  A position[kBlockPoints], slope[kBlockPoints];  // the slope: of the position in the coordinate
  A fraction[kBlockPoints];
  int32_t first[kBlockPoints];                // tap, before the rule for those outside
  int32_t pixel[kMaxAxisTaps][kBlockPoints];  // their index in an image whose other indices are 0; negative if none
  A weight[kMaxAxisTaps][kBlockPoints];
};

// The taps of consecutive points of an image.
template <typename A>
class SampleTaps {
 public:
  explicit SampleTaps(const SamplingSizes& sizes);

  // Locates `count` points from `first` on. For points after them, the arrays below hold valid pixels and finite
  // weights, which are unused.
  void Locate(const Coordinates<const A>& locations, int64_t batch, int64_t first, int count);

  int32_t taps() const { return taps_; }
  // The weight of each tap, and the pixel of the image that each sample reads as it, negative if none.
  const int32_t* pixel(int32_t tap) const { return &pixel_[tap * kBlockPoints]; }
  // The same, and some pixel of the image where a sample reads none, so that loops over points need no branches.
  const int32_t* loaded(int32_t tap) const { return &loaded_[tap * kBlockPoints]; }
  const A* weight(int32_t tap) const { return &weight_[tap * kBlockPoints]; }
  // Whether taps 0 and 1, 2 and 3, … of the points p, p + 1, … of a vector read neighbouring pixels.
  bool has_pairs(int p) const { return has_pairs_[p]; }
  // The value of a sample that reads nothing: NaN for a NaN location, else 0.
  const A* unread() const { return unread_; }

  // Writes the cotangents of the located coordinates. dots[tap · kBlockPoints + i]: the product, over the channels, of
  // point i's cotangent and the pixel of its tap.
  void Differentiate(const A* dots, const Coordinates<A>& d_locations) const;

 private:
  void FoldAxis(BlockAxis<A>& axis, int32_t size);
  template <int kAxisTaps>
  bool LocateVectors();
  template <int kDims, int kAxisTaps>
  bool LocateVectorsOf();
  void LocateAxis(BlockAxis<A>& axis, int32_t size, int32_t pixel_stride);
  void Combine();

  const SamplingSizes& sizes_;
  const int32_t taps_;
  int8_t tap_of_axis_[kMaxTaps][kMaxAxes];
  BlockAxis<A> axes_[kMaxAxes];
  AlignedVector<int32_t> pixel_, loaded_;
  AlignedVector<A> weight_;
  alignas(64) A unread_[kBlockPoints];
  int64_t batch_ = 0, first_ = 0;
  int count_ = 0;
  bool has_pairs_[kBlockPoints] = {};
};

DCN_END_TARGET
