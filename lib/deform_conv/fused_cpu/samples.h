// Computes the sampling locations of a tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "bilinear.h"
#include "deform_conv/fused_cpu/plan.h"
#include "deform_conv/fused_cpu/progress.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// A packet is a run of kPacketPixels neighbouring pixels of a tile. Its samples are located together, for one tap and
// one offset group at a time.
constexpr int kPacketPixels = 16;
static_assert(kPacketPixels % kLanes == 0, "the last vector would not fit");

// How many pixels of the tile are in the packet that begins at pixel `first`. The rest of the last packet is padding.
DCN_INLINE int64_t PixelsOfPacket(int64_t first, int64_t tile_pixels) {
  return std::min<int64_t>(kPacketPixels, tile_pixels - first);
}

struct PacketOperands {
  float mask[kPacketPixels];
  float y[kPacketPixels], x[kPacketPixels];  // the offset, which locating replaces by the fraction of the location
};

// The pixels that samples read: the four corners around each, or the one pixel of a sample that lies on the grid.
template <int kCorners>
struct PacketCorners {
  float weights[kCorners][kPacketPixels];  // bilinear weight · mask
  int32_t pixel[kCorners][kPacketPixels];  // in the image, or -1 if the corner is not read

  DCN_INLINE float weight(int corner, int64_t i) const { return weights[corner][i]; }
  // Whether any corner is read.
  DCN_INLINE bool is_inside(int64_t i) const { return (pixel[0][i] & pixel[1][i] & pixel[2][i] & pixel[3][i]) >= 0; }
};
template <>
struct PacketCorners<1> {
  int32_t pixel[1][kPacketPixels];

  static DCN_INLINE float weight(int, int64_t) { return 1; }
};

static_assert(sizeof(PacketCorners<4>) == kSampleBytes * kPacketPixels, "plan.cc would choose other tiles");

// -1 if the row or the column is negative: outside the image.
DCN_INLINE int32_t PixelIndex(int32_t row, int32_t column, int32_t width) {
  return (row | column) < 0 ? -1 : int32_t(uint32_t(row) * uint32_t(width)) + column;
}

// The pixels of the image that the samples of each pixel of a packet may read. A sample that is outside on only one
// axis counts, too.
struct PacketBox {
  // As unsigned numbers, pixels outside are larger than all others.
  uint32_t first_row[kPacketPixels], first_column[kPacketPixels];
  int32_t last_row[kPacketPixels], last_column[kPacketPixels];

  DCN_INLINE void Include(int i, int32_t row, int32_t column) {
    first_row[i] = std::min(first_row[i], uint32_t(row));
    first_column[i] = std::min(first_column[i], uint32_t(column));
    last_row[i] = std::max(last_row[i], row);
    last_column[i] = std::max(last_column[i], column);
  }
  void Clear() {
    std::fill_n(first_row, kPacketPixels, INT32_MAX);
    std::fill_n(first_column, kPacketPixels, INT32_MAX);
    std::fill_n(last_row, kPacketPixels, -1);
    std::fill_n(last_column, kPacketPixels, -1);
  }
  PixelBox box() const {
    return {int32_t(*std::min_element(first_row, first_row + kPacketPixels)),
            *std::max_element(last_row, last_row + kPacketPixels),
            int32_t(*std::min_element(first_column, first_column + kPacketPixels)),
            *std::max_element(last_column, last_column + kPacketPixels)};
  }
};

// The distance of a tap from the first one.
struct TapDistance {
  double y, x;
};

// The position of the first tap of each pixel of a packet.
struct PacketStart {
  double y[kPacketPixels], x[kPacketPixels];
};

// Locates the samples of a tap. Whole numbers are added as double, which is exact, and rounded once: only AVX-512 has
// vectors of 64-bit integers. The arrays do not overlap, so no iteration reads what another one writes.
template <bool kIsCircular, bool kHasBox>
DCN_INLINE void LocateSamples(int64_t height, int64_t width, double tap_y, double tap_x, const PacketStart& start,
                              PacketOperands& operands, PacketCorners<4>& corners, PacketBox& box) {
  const int32_t row_pixels = int32_t(width);
  DCN_INDEPENDENT_ITERATIONS
  for (int i = 0; i < kPacketPixels; ++i) {
    const AxisLocation<float> y = LocateOnAxis(float(start.y[i] + tap_y) + operands.y[i], height, kIsCircular);
    const AxisLocation<float> x = LocateOnAxis(float(start.x[i] + tap_x) + operands.x[i], width, kIsCircular);
    operands.y[i] = y.fraction;
    operands.x[i] = x.fraction;
    const float mask = operands.mask[i], top = y.weight(0) * mask, bottom = y.weight(1) * mask;
    corners.weights[0][i] = top * x.weight(0);
    corners.weights[1][i] = top * x.weight(1);
    corners.weights[2][i] = bottom * x.weight(0);
    corners.weights[3][i] = bottom * x.weight(1);
    corners.pixel[0][i] = PixelIndex(y.pixel[0], x.pixel[0], row_pixels);
    corners.pixel[1][i] = PixelIndex(y.pixel[0], x.pixel[1], row_pixels);
    corners.pixel[2][i] = PixelIndex(y.pixel[1], x.pixel[0], row_pixels);
    corners.pixel[3][i] = PixelIndex(y.pixel[1], x.pixel[1], row_pixels);
    if constexpr (!kHasBox) continue;
    DCN_UNROLL for (int k = 0; k < 2; ++k) box.Include(i, y.pixel[k], x.pixel[k]);
  }
}

// Locates the samples of a tap that no offsets move.
template <bool kIsCircular, bool kHasBox>
DCN_INLINE void LocateOnGrid(int64_t height, int64_t width, double tap_y, double tap_x, const PacketStart& start,
                             PacketCorners<1>& corners, PacketBox& box) {
  const int32_t row_pixels = int32_t(width);
  DCN_INDEPENDENT_ITERATIONS
  for (int i = 0; i < kPacketPixels; ++i) {
    const int32_t row = LocateOnAxis(start.y[i] + tap_y, height, kIsCircular).pixel[0];
    const int32_t column = LocateOnAxis(start.x[i] + tap_x, width, kIsCircular).pixel[0];
    corners.pixel[0][i] = PixelIndex(row, column, row_pixels);
    if constexpr (kHasBox) box.Include(i, row, column);
  }
}

// The addresses of a packet's corners in an array of pixels. They are computed before they are used, in a loop that the
// compiler vectorizes, and which is compiled once for all kernels.
template <typename T, int kCorners>
class PacketAddresses {
 public:
  // `first`: the address of pixel `first_pixel`. `stride`: elements of a pixel. `unread`: the address for corners
  // outside of the image.
  DCN_NOINLINE void Compute(const PacketCorners<kCorners>& corners, T* first, int64_t stride, T* unread,
                            int64_t first_pixel = 0) {
    const int32_t elements = int32_t(stride);  // a product of 64-bit factors takes several instructions
    const uintptr_t base = reinterpret_cast<uintptr_t>(first) - first_pixel * elements * int64_t{sizeof(T)};
    const uintptr_t other = reinterpret_cast<uintptr_t>(unread);
    for (int k = 0; k < kCorners; ++k) {
      for (int i = 0; i < kPacketPixels; ++i) {
        const int32_t pixel = corners.pixel[k][i];
        const uintptr_t read = base + int64_t{pixel} * elements * int64_t{sizeof(T)};
        address_[k][i] = pixel >= 0 ? read : other;
      }
    }
  }

  DCN_INLINE T* operator()(int corner, int64_t i) const { return reinterpret_cast<T*>(address_[corner][i]); }

 private:
  alignas(64) uintptr_t address_[kCorners][kPacketPixels];
};

// The samples of a tile, of all taps and some offset groups. For the cotangents, it also keeps the operands of the
// samples and the rectangle of pixels that they read. With one corner, samples lie on the grid and have no operands.
template <bool kIsForward, int kCorners>
class TileSamples {
 public:
  TileSamples(const Convolution& convolution, int64_t max_offset_groups, int64_t max_pixels)
      : convolution_(convolution),
        offset_(static_cast<const float*>(convolution.positions.offset)),
        mask_(static_cast<const float*>(convolution.positions.mask)),
        taps_(convolution.sizes.taps()),
        max_samples_(max_offset_groups * taps_),
        operands_(kIsOnGrid ? 0 : max_samples_ * (kIsForward ? 1 : Packets(max_pixels))),
        corners_(max_samples_ * Packets(max_pixels)),
        outputs_(Packets(max_pixels) * kPacketPixels) {
    distances_.reserve(max_samples_);
    for (int64_t s = 0; s < max_samples_; ++s) {
      const Window& window = convolution.sizes.window;
      const int32_t tap = int32_t(s % taps_);
      distances_.push_back({double(window.distance(0, tap)), double(window.distance(1, tap))});
    }
    if (mask_) return;
    for (PacketOperands& operands : operands_) std::fill_n(operands.mask, kPacketPixels, 1.0f);
  }

  // Locates the samples of offset groups `first` to `last`, inclusive.
  void Locate(const OutputTile& tile, int64_t first, int64_t last) {
    const Sizes& sizes = convolution_.sizes;
    first_ = first * taps_;
    count_ = (last + 1) * taps_ - first_;
    PacketBox box;
    box.Clear();
    for (int64_t packet = 0; packet < Packets(tile.pixels()); ++packet) {
      const PacketStart start = FindOutputs(tile, packet * kPacketPixels);
      if constexpr (!kIsOnGrid) ReadOperands(packet, PixelsOfPacket(packet * kPacketPixels, tile.pixels()));
      for (int64_t s = 0; s < count_; ++s) {
        if (sizes.window.circular) {
          LocateSample<true>(packet, s, start, box);
        } else {
          LocateSample<false>(packet, s, start, box);
        }
      }
    }
    if constexpr (!kIsForward) box_ = box.box();
  }

  // The output pixel of pixel `p` of the tile, counted through all images.
  DCN_INLINE int64_t output(int64_t p) const { return outputs_[p]; }
  // The pixels that the located samples may read.
  const PixelBox& box() const {
    static_assert(!kIsForward, "not computed");
    return box_;
  }

  // `sample`: of an output pixel, counted through all offset groups.
  const PacketCorners<kCorners>& Corners(int64_t packet, int64_t sample) const {
    return corners_[packet * max_samples_ + sample - first_];
  }
  const PacketOperands& Operands(int64_t packet, int64_t sample) const {
    static_assert(!kIsForward, "not kept");
    return operands_[OperandsIndex(packet, sample - first_)];
  }

 private:
  using Four = FloatsOf<4>;
  static constexpr int64_t kSquare = 4;
  static constexpr bool kIsOnGrid = kCorners == 1;

  static int64_t Packets(int64_t pixels) { return (pixels + kPacketPixels - 1) / kPacketPixels; }

  // `s` counts the located samples of a pixel.
  int64_t OperandsIndex(int64_t packet, int64_t s) const { return kIsForward ? s : packet * max_samples_ + s; }

  template <bool kIsCircular>
  DCN_INLINE void LocateSample(int64_t packet, int64_t s, const PacketStart& start, PacketBox& box) {
    const Sizes& sizes = convolution_.sizes;
    const auto [tap_y, tap_x] = distances_[s];
    PacketCorners<kCorners>& corners = corners_[packet * max_samples_ + s];
    if constexpr (kIsOnGrid) {
      LocateOnGrid<kIsCircular, !kIsForward>(sizes.height, sizes.width, tap_y, tap_x, start, corners, box);
    } else {
      LocateSamples<kIsCircular, !kIsForward>(sizes.height, sizes.width, tap_y, tap_x, start,
                                              operands_[OperandsIndex(packet, s)], corners, box);
    }
  }

  // Finds the output pixels of the packet that begins at pixel `first`. Padding pixels are outside of the image.
  PacketStart FindOutputs(const OutputTile& tile, int64_t first) {
    const Sizes& sizes = convolution_.sizes;
    PacketStart start;
    std::fill_n(start.y, kPacketPixels, -INFINITY);
    std::fill_n(start.x, kPacketPixels, -INFINITY);
    for (int64_t i = 0; i < PixelsOfPacket(first, tile.pixels()); ++i) {
      const int64_t p = first + i, row = tile.row + p / tile.columns, column = tile.column + p % tile.columns;
      outputs_[p] = (tile.image * sizes.rows + row) * sizes.columns + column;
      start.y[i] = double(sizes.window.start(0, convolution_.positions.origin[1] + row));
      start.x[i] = double(sizes.window.start(1, convolution_.positions.origin[2] + column));
    }
    return start;
  }

  // Reads squares of samples and pixels, and transposes them.
  void ReadOperands(int64_t packet, int64_t pixels) {
    PacketOperands* const operands = &operands_[OperandsIndex(packet, 0)];
    for (int64_t p = 0; p < pixels; p += kSquare) {
      const int64_t* const outputs = outputs_.data() + packet * kPacketPixels + p;
      for (int64_t s = 0; s < count_; s += kSquare) {
        if (p + kSquare <= pixels && s + kSquare <= count_) {
          ReadSquare(outputs, first_ + s, p, operands + s);
        } else {
          ReadTail(outputs, first_ + s, p, std::min(kSquare, pixels - p), std::min(kSquare, count_ - s), operands + s);
        }
      }
    }
  }

  // Reads a square that lacks some of its pixels or samples.
  void ReadTail(const int64_t* outputs, int64_t first, int64_t p, int64_t pixels, int64_t samples,
                PacketOperands* operands) {
    for (int64_t i = 0; i < pixels; ++i) {
      for (int64_t j = 0; j < samples; ++j) {
        const int64_t sample = outputs[i] * convolution_.sizes.pixel_samples() + first + j;
        operands[j].y[p + i] = offset_[2 * sample];
        operands[j].x[p + i] = offset_[2 * sample + 1];
        if (mask_) operands[j].mask[p + i] = mask_[sample];
      }
    }
  }

  DCN_INLINE void ReadSquare(const int64_t* outputs, int64_t first, int64_t p, PacketOperands* operands) {
    const int64_t pixel_samples = convolution_.sizes.pixel_samples();
    Four low[kSquare], high[kSquare], mask[kSquare];
    for (int i = 0; i < kSquare; ++i) {
      const float* const offset = offset_ + 2 * (outputs[i] * pixel_samples + first);
      low[i] = Load<4>(offset);
      high[i] = Load<4>(offset + 4);
    }
    Transpose(low);  // its rows are y and x of one sample, and of the next
    Transpose(high);
    for (int i = 0; i < 2; ++i) {
      Store<4>(low[2 * i], operands[i].y + p);
      Store<4>(low[2 * i + 1], operands[i].x + p);
      Store<4>(high[2 * i], operands[2 + i].y + p);
      Store<4>(high[2 * i + 1], operands[2 + i].x + p);
    }
    if (!mask_) return;
    for (int i = 0; i < kSquare; ++i) mask[i] = Load<4>(mask_ + outputs[i] * pixel_samples + first);
    Transpose(mask);
    for (int i = 0; i < kSquare; ++i) Store<4>(mask[i], operands[i].mask + p);
  }

  const Convolution& convolution_;
  const float *offset_, *mask_;
  int64_t taps_, max_samples_, first_ = 0, count_ = 0;
  std::vector<TapDistance> distances_;  // of each sample
  AlignedVector<PacketOperands> operands_;
  AlignedVector<PacketCorners<kCorners>> corners_;
  AlignedVector<int64_t> outputs_;
  PixelBox box_;
};

}  // namespace
DCN_END_TARGET
