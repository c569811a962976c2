// The cotangents of a fused convolution, tile by tile and tap by tap. First a product makes the cotangents of the
// columns. Then one loop over the samples reads their corners for the cotangents of the positions, makes the columns
// again, and adds to the cotangent of x. At last a product of the columns and the cotangent of y adds to the cotangent
// of the weight.
//
// Threads take the tiles in order: image by image, and channel slice by channel slice. Three results are sums over
// several tiles, which are added in this order, too. For the cotangents of positions and of the weight, a tile waits
// for earlier tiles tap by tap. For the cotangent of x, it adds up in a patch of its own, and waits before it adds the
// patch to the sums of the plane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "deform_conv/fused_cpu/plan.h"
#include "deform_conv/fused_cpu/product.h"
#include "deform_conv/fused_cpu/progress.h"
#include "deform_conv/fused_cpu/samples.h"
#include "device.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

template <typename Element, typename T, int kCorners>
class Cotangents {
 public:
  static void Run(Device& device, const CotangentPlan& plan, const FusedCotangentArrays& arrays) {
    const Sizes& sizes = plan.convolution.sizes;
    const RequestedCotangents requested = plan.requested;
    const int64_t weight_tasks = sizes.taps() * plan.slices.count;
    if (requested.x || requested.positions) {
      device.ParallelFor(weight_tasks, [&](int64_t task) { PackWeight(plan, arrays, task); });
    }
    RunPhases(device, plan, arrays);
    if (!requested.weight) return;
    if (sizes.pixels() == 0) {
      const int64_t size = sizes.taps() * plan.convolution.group_channels() * plan.convolution.product.features;
      std::memset(arrays.d_weight, 0, size * sizeof(float));
    } else {
      device.ParallelFor(weight_tasks, [&](int64_t task) { SumWeight(plan, arrays, task); });
    }
  }

 private:
  static constexpr int64_t kValues = Element::MatrixProduct::kValues, kBlockValues = kBlockWords * kValues;
  static constexpr int64_t kPrefetchPixels = 8;
  static constexpr int64_t kTransposed = 16;  // features at a time, which are at least a cache line

  // Sums of the cotangent of x, for some pixels of a plane.
  struct XSums {
    float* data;
    int64_t stride;  // floats of a pixel
    int64_t first_pixel = 0;

    DCN_INLINE float* At(int64_t pixel) const { return data + (pixel - first_pixel) * stride; }
  };

  Cotangents(const CotangentPlan& plan, const FusedCotangentArrays& arrays, const T* zeros, Progress& progress)
      : convolution_(plan.convolution),
        plan_(plan),
        arrays_(arrays),
        zeros_(zeros),
        progress_(progress),
        samples_(plan.convolution, plan.max_offset_groups(), plan.tiling.max_pixels()),
        columns_(plan.tiling.max_pixels(), plan.slices.padded_channels),
        d_y_(plan.tiling.max_pixels(), plan.convolution.product.group_features()),
        d_columns_stride_(plan.slices.padded_channels + kLineFloats),
        d_columns_(Element::MatrixProduct::PaddedRows(plan.tiling.max_pixels()) * d_columns_stride_),
        unread_(plan.slices.padded_channels),
        patch_(plan.PatchFloats()) {}

  static void RunPhases(Device& device, const CotangentPlan& plan, const FusedCotangentArrays& arrays) {
    const std::vector<T> zeros(plan.convolution.sizes.group_channels());
    Progress progress(plan.planes(), plan.tiles(), plan.phases());
    const auto make = [&] { return Cotangents(plan, arrays, zeros.data(), progress); };
    device.ParallelFor(plan.phases() * plan.phase_tasks(), make, [&](Cotangents& worker, int64_t task) {
      const int64_t phase = task / plan.phase_tasks(), in_phase = task % plan.phase_tasks();
      if (in_phase < plan.bands()) {
        worker.PrepareBand(phase, in_phase);
      } else if (phase < plan.planes()) {
        worker.ComputeTile(phase, in_phase - plan.bands());
      }
    });
  }

  static T* PackedWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    return reinterpret_cast<T*>(arrays.workspace) +
           task * plan.slices.padded_channels * plan.convolution.product.group_features();
  }
  static float* WeightSums(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t split, int64_t tap,
                           int64_t slice) {
    const ChannelSlices& slices = plan.slices;
    return arrays.workspace + slices.PackedWeightFloats(plan.requested) +
           ((split * plan.convolution.sizes.taps() + tap) * slices.count + slice) *
               plan.convolution.product.group_features() * slices.padded_channels;
  }
  // The index of the first element of a tap and a slice in the weight and its cotangent.
  static int64_t WeightIndex(const CotangentPlan& plan, int64_t tap, const CotangentPlan::ChannelSlice& slice) {
    const Product& product = plan.convolution.product;
    return (tap * plan.convolution.group_channels() + slice.first_in_group) * product.features +
           slice.group * product.group_features();
  }

  // Packs the weight of a tap and a channel slice, transposed: blocks of features, in panels of channels.
  static void PackWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    const Product& product = plan.convolution.product;
    const int64_t features = product.group_features();
    const CotangentPlan::ChannelSlice slice = plan.slice(task % plan.slices.count);
    const T* const from = static_cast<const T*>(arrays.weight) + WeightIndex(plan, task / plan.slices.count, slice);
    T* to = PackedWeight(plan, arrays, task);
    for (int64_t block = 0; block < features; block += kBlockValues) {
      const int64_t length = std::min(kBlockValues, features - block);
      for (int64_t c = 0; c < slice.channels; c += kPanel, to += length * kPanel) {
        for (int64_t first = 0; first < length; first += kTransposed) {
          for (int64_t n = 0; n < kPanel; ++n) {
            const T* const row = from + Element::Channel(c + n) * product.features + block;
            for (int64_t f = first; f < std::min(first + kTransposed, length); ++f) {
              to[(f / kValues * kPanel + n) * kValues + f % kValues] = c + n < slice.channels ? row[f] : T(0.0f);
            }
          }
        }
      }
    }
  }

  // Adds up the splits of the weight's cotangent in the slice of a tap.
  static void SumWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    const int64_t tap = task / plan.slices.count, index = task % plan.slices.count;
    const Product& product = plan.convolution.product;
    const CotangentPlan::ChannelSlice slice = plan.slice(index);
    float* const out = arrays.d_weight + WeightIndex(plan, tap, slice);
    for (int64_t first = 0; first < product.group_features(); first += kTransposed) {
      const int64_t end = std::min(first + kTransposed, product.group_features());
      for (int64_t split = 0; split < plan.used_splits(); ++split) {
        const float* const sums = WeightSums(plan, arrays, split, tap, index);
        for (int64_t c = 0; c < slice.channels; ++c) {
          float* const row = out + Element::Channel(c) * product.features;
          for (int64_t f = first; f < end; ++f) {
            const float sum = sums[f * plan.slices.padded_channels + c];
            row[f] = split == 0 ? sum : row[f] + sum;
          }
        }
      }
    }
  }

  // The sums of a plane are in the result if that is float32. Otherwise they are in a buffer of the workspace, which
  // several planes have one after the other.
  XSums PlaneSums(int64_t plane) const {
    if constexpr (sizeof(T) == sizeof(float)) return {XCotangent(plane), convolution_.sizes.channels};
    const int64_t buffer = plane % plan_.resident_planes();
    return {arrays_.workspace + plan_.slices.BeforePlanes(plan_.requested, plan_.division.num_splits) +
                buffer * plan_.slices.plane_size,
            plan_.slices.padded_channels};
  }

  CotangentPlan::ChannelSlice SliceOf(int64_t plane) const { return plan_.slice(plan_.slice_index_of(plane)); }

  T* XCotangent(int64_t plane) const {
    const Sizes& sizes = convolution_.sizes;
    return static_cast<T*>(arrays_.d_x) + plan_.image_of(plane) * sizes.height * sizes.width * sizes.channels +
           SliceOf(plane).channel;
  }

  // Prepares a band of the sums of the phase's plane: rounds the plane that had them before, and sets them to zero.
  void PrepareBand(int64_t phase, int64_t band) {
    const int64_t first = band * plan_.kBandPixels;
    const int64_t end = std::min(first + plan_.kBandPixels, convolution_.sizes.height * convolution_.sizes.width);
    if (const int64_t plane = plan_.RoundedPlane(phase); plane >= 0) RoundPixels(plane, first, end);
    if (phase < plan_.planes()) ClearPixels(phase, first, end);
    progress_.prepared_bands.Increment(phase);
  }

  // Rounds the sums of pixels [first, end) of a plane to the result, when all of the plane's tiles have added to them.
  void RoundPixels(int64_t plane, int64_t first, int64_t end) {
    progress_.prepared_bands.WaitFor(plane, plan_.bands());  // tiles that read no pixel have not waited
    progress_.finished_tiles.WaitFor(plane, plan_.tiles());
    const XSums sums = PlaneSums(plane);
    const int64_t channels = SliceOf(plane).channels;
    T* const out = XCotangent(plane);
    for (int64_t p = first; p < end; ++p) Element::Round(sums.At(p), channels, out + p * convolution_.sizes.channels);
  }

  void ClearPixels(int64_t plane, int64_t first, int64_t end) {
    const int64_t channels = SliceOf(plane).channels;
    const XSums sums = PlaneSums(plane);
    for (int64_t p = first; p < end; ++p) std::memset(sums.At(p), 0, channels * sizeof(float));
  }

  void ComputeTile(int64_t plane, int64_t tile_in_plane) {
    plane_ = plane;
    tile_in_plane_ = tile_in_plane;
    image_ = plan_.image_of(plane);
    slice_index_ = plan_.slice_index_of(plane);
    slice_ = SliceOf(plane);
    const RequestedCotangents& requested = plan_.requested;
    const int64_t tile_index = image_ * plan_.tiles() + tile_in_plane, taps = convolution_.sizes.taps();
    const OutputTile tile = plan_.Tile(image_, tile_in_plane);
    const int64_t pixels = tile.pixels(), features = convolution_.product.group_features();
    const int64_t offset_group_channels = convolution_.sizes.group_channels();
    samples_.Locate(tile, slice_.channel / offset_group_channels,
                    (slice_.channel + slice_.channels - 1) / offset_group_channels);
    TileProgress& progress = progress_.Of(plane, tile_in_plane);
    progress.SetLocated(samples_.box());
    ReadOutputCotangent(pixels);
    if (requested.weight) d_y_.End(pixels, features);
    if (requested.x) BeginXSums();
    const int64_t split = plan_.split(tile_index), tile_before = plan_.TileBefore(tile_index);
    for (int32_t tap = 0; tap < taps; ++tap) {
      if (requested.x || requested.positions) MultiplyByWeight(pixels, tap);
      columns_.Begin(pixels);
      DifferentiateTap(tile, tap);
      progress.Set(TileProgress::PositionsStored(tap));
      if (!requested.weight) continue;
      columns_.End(pixels, slice_.channels);
      if (tile_before >= 0) {
        progress_.Of(plan_.plane(tile_before / plan_.tiles(), slice_index_), tile_before % plan_.tiles())
            .WaitFor(TileProgress::WeightAdded(tap));
      }
      d_y_.AddWeightSums(product_, columns_, features, slice_.channels,
                         WeightSums(plan_, arrays_, split, tap, slice_index_), plan_.slices.padded_channels,
                         tile_before < 0);
      progress.Set(TileProgress::WeightAdded(tap));
    }
    if (requested.x) EndXSums();
    progress.Set(TileProgress::Finished(taps));
    progress_.finished_tiles.Increment(plane);
  }

  // The tile adds up in its patch, which has the rows and the columns that its samples read. If these are too many
  // rows, the tile adds to the sums of the plane.
  void BeginXSums() {
    const PixelBox& box = samples_.box();
    has_patch_ = box.is_empty() || box.rows() <= plan_.patch_rows();
    if (!has_patch_) {
      WaitForPixels();
      sums_ = PlaneSums(plane_);
      return;
    }
    sums_ = {patch_.data(), plan_.patch_stride()};
    if (box.is_empty()) return;
    const int64_t width = convolution_.sizes.width;
    sums_.first_pixel = box.first_row * width + box.first_column;
    for (int64_t row = 0; row < box.rows(); ++row) {
      std::memset(patch_.data() + row * width * sums_.stride, 0, box.columns() * sums_.stride * sizeof(float));
    }
  }

  void EndXSums() {
    const PixelBox& box = samples_.box();
    if (!has_patch_ || box.is_empty()) return;
    WaitForPixels();
    const XSums plane = PlaneSums(plane_);
    const int64_t channels = slice_.channels;
    for (int64_t row = box.first_row; row <= box.last_row; ++row) {
      const int64_t first = row * convolution_.sizes.width + box.first_column;
      for (int64_t p = first; p < first + box.columns(); ++p) {
        const float* const from = sums_.At(p);
        float* const to = plane.At(p);
        // Rows of a patch are short, and a slice has only some channels of each pixel, so hardware prefetches little.
        // A prefetch past the end of an array does nothing.
        const float* const ahead = plane.At(p + kPrefetchPixels);
        for (int64_t c = 0; c < channels; c += kLineFloats) __builtin_prefetch(ahead + c, 1);
        DCN_INDEPENDENT_ITERATIONS
        for (int64_t c = 0; c < channels; ++c) to[c] += from[c];
      }
    }
  }

  // Waits until the plane's sums have been set to zero, and the tiles before have added to the pixels of this one.
  void WaitForPixels() {
    const int64_t finished = TileProgress::Finished(convolution_.sizes.taps());
    progress_.prepared_bands.WaitFor(plane_, plan_.bands());
    if (settled_plane_ != plane_) settled_plane_ = plane_, settled_tiles_ = 0;
    while (settled_tiles_ < tile_in_plane_ && progress_.Of(plane_, settled_tiles_).Has(finished)) ++settled_tiles_;
    for (int64_t tile = settled_tiles_; tile < tile_in_plane_; ++tile) {
      const TileProgress& before = progress_.Of(plane_, tile);
      before.WaitFor(TileProgress::kLocated);
      if (before.box().Overlaps(samples_.box())) before.WaitFor(finished);
    }
  }

  void ReadOutputCotangent(int64_t pixels) {
    const int64_t features = convolution_.product.group_features();
    const T* const d_y = static_cast<const T*>(arrays_.d_y) + slice_.group * features;
    for (int64_t f = 0; f < features; f += kBlockValues) {
      for (int64_t p = 0; p < pixels; ++p) {
        Element::StoreRow(d_y + samples_.output(p) * convolution_.product.features + f,
                          std::min(kBlockValues, features - f), d_y_.Row(p, f));
      }
    }
  }

  void MultiplyByWeight(int64_t pixels, int32_t tap) {
    const int64_t features = convolution_.product.group_features(), panels = (slice_.channels + kPanel - 1) / kPanel;
    const T* packed = PackedWeight(plan_, arrays_, tap * plan_.slices.count + slice_index_);
    for (int64_t f = 0; f < features; f += kBlockValues) {
      const int64_t length = std::min(kBlockValues, features - f), steps = length / kValues;
      product_.template Multiply<kRowWords, 1>(pixels, slice_.channels, steps, d_y_.Row(0, f),
                                               Element::WeightPanels(packed, steps), d_columns_.data(),
                                               d_columns_stride_, f == 0);
      packed += length * panels * kPanel;
    }
  }

  // Segment by segment: the channels of the slice that share an offset group.
  void DifferentiateTap(const OutputTile& tile, int32_t tap) {
    const int64_t offset_group_channels = convolution_.sizes.group_channels();
    for (int64_t c = 0, count; c < slice_.channels; c += count) {
      const int64_t offset_group = (slice_.channel + c) / offset_group_channels;
      count = std::min((offset_group + 1) * offset_group_channels - (slice_.channel + c), slice_.channels - c);
      constexpr int kNarrowest = Element::kNarrowest;
      count <= kNarrowest ? Differentiate<kNarrowest>(tile.pixels(), tap, offset_group, c, count)
                          : Differentiate<kLanes>(tile.pixels(), tap, offset_group, c, count);
    }
  }

  // Makes template arguments of the flags of what is requested, one after the other.
  template <int kCount, bool... kFlags>
  void Differentiate(int64_t pixels, int32_t tap, int64_t offset_group, int64_t c, int64_t count) {
    constexpr int kKnown = sizeof...(kFlags);
    const bool flags[] = {plan_.requested.x, plan_.requested.positions, plan_.requested.weight};
    if constexpr (kKnown < 3) {
      flags[kKnown] ? Differentiate<kCount, kFlags..., true>(pixels, tap, offset_group, c, count)
                    : Differentiate<kCount, kFlags..., false>(pixels, tap, offset_group, c, count);
    } else if constexpr ((kFlags || ...)) {
      DifferentiateSegment<kCount, kFlags...>(pixels, tap, offset_group, c, count);
    }
  }

  template <int kCount, bool kOfX, bool kPositionsRequested, bool kOfWeight>
  DCN_NOINLINE void DifferentiateSegment(int64_t pixels, int32_t tap, int64_t offset_group, int64_t c, int64_t count) {
    const Sizes& sizes = convolution_.sizes;
    const int64_t channels = sizes.channels, d_columns_stride = d_columns_stride_;
    const int64_t sample = offset_group * sizes.taps() + tap;
    const T* const image =
        static_cast<const T*>(arrays_.x) + image_ * sizes.height * sizes.width * channels + slice_.channel + c;
    const T* const zeros = zeros_;
    const XSums sums = sums_;
    constexpr bool kOfPositions = kPositionsRequested && kCorners > 1, kReadsX = kOfPositions || kOfWeight;
    float *const unread = unread_.data(), *const dots = dots_;
    const float* const d_columns = d_columns_.data() + c;
    const auto differentiate = [&](const auto count) DCN_INLINED {
      for (int64_t first = 0; first < pixels; first += kPacketPixels) {
        const PacketCorners<kCorners>& corners = samples_.Corners(first / kPacketPixels, sample);
        PacketAddresses<const T, kCorners> addresses;
        PacketAddresses<float, kCorners> sum_addresses;
        if constexpr (kReadsX) addresses.Compute(corners, image, channels, zeros);
        if constexpr (kOfX) sum_addresses.Compute(corners, sums.data + c, sums.stride, unread, sums.first_pixel);
        for (int64_t i = 0; i < PixelsOfPacket(first, pixels); ++i) {
          const int64_t p = first + i;
          const T* corner[kCorners] = {};
          float *sum[kCorners] = {}, weight[kCorners];
          FloatsOf<kCount> dot[kCorners] = {};
          for (int k = 0; k < kCorners; ++k) {
            if constexpr (kReadsX) corner[k] = addresses(k, i);
            if constexpr (kOfX) sum[k] = sum_addresses(k, i);
            weight[k] = corners.weight(k, i);
          }
          Element::template Differentiate<kOfX, kOfPositions, kOfWeight, kCount>(
              corner, weight, d_columns + p * d_columns_stride, count, sum, dot, columns_, p, c);
          if constexpr (kOfPositions) Store<4>(Sums<kCount>(dot), dots + 4 * p);
        }
      }
    };
    // A constant number of channels saves the loop over them.
    constexpr int64_t kVectorChannels = Element::VectorChannels(kCount);
    if (count == kVectorChannels) {
      differentiate(std::integral_constant<int64_t, kVectorChannels>());
    } else {
      differentiate(count);
    }
    if constexpr (kOfPositions) {
      const bool is_added = c == 0 && plan_.SharesPositions(slice_);
      if (is_added) progress_.Of(plane_ - 1, tile_in_plane_).WaitFor(TileProgress::PositionsStored(tap));
      StorePositions(pixels, sample, is_added);
    }
  }

  // As CotangentsOfPosition in bilinear.h, but from the sums over the channels.
  void StorePositions(int64_t pixels, int64_t sample_in_pixel, bool is_added) {
    const int64_t pixel_samples = convolution_.sizes.pixel_samples();
    float *const d_offset = arrays_.d_offset, *const d_mask = arrays_.d_mask;
    for (int64_t p = 0; p < pixels; ++p) {
      const int64_t packet = p / kPacketPixels, i = p % kPacketPixels;
      const PacketOperands& operands = samples_.Operands(packet, sample_in_pixel);
      const float y = operands.y[i], x = operands.x[i], mask = operands.mask[i];
      float d_row = 0 * (y + x), d_column = d_row, d_mask_value = d_row;  // NaN where the location is
      if (samples_.Corners(packet, sample_in_pixel).is_inside(i)) {
        const float* const dot = dots_ + 4 * p;
        const float top = (1 - x) * dot[0] + x * dot[1], bottom = (1 - x) * dot[2] + x * dot[3];
        const float left = (1 - y) * dot[0] + y * dot[2], right = (1 - y) * dot[1] + y * dot[3];
        d_row = mask * (bottom - top);
        d_column = mask * (right - left);
        d_mask_value = (1 - y) * top + y * bottom;
      }
      const int64_t sample = samples_.output(p) * pixel_samples + sample_in_pixel;
      if (d_offset) {
        float* const out = d_offset + 2 * sample;
        out[0] = is_added ? out[0] + d_row : d_row;
        out[1] = is_added ? out[1] + d_column : d_column;
      }
      if (d_mask) d_mask[sample] = is_added ? d_mask[sample] + d_mask_value : d_mask_value;
    }
  }

  const Convolution& convolution_;
  const CotangentPlan& plan_;
  const FusedCotangentArrays& arrays_;
  const T* zeros_;
  Progress& progress_;

  int64_t plane_ = 0, tile_in_plane_ = 0, image_ = 0, slice_index_ = 0;
  CotangentPlan::ChannelSlice slice_ = {};
  XSums sums_ = {};
  bool has_patch_ = true;
  int64_t settled_plane_ = -1, settled_tiles_ = 0;  // the first tiles of a plane, all of which are finished

  TileSamples<false, kCorners> samples_;
  typename Element::Columns columns_;
  typename Element::OutputCotangent d_y_;
  int64_t d_columns_stride_;
  AlignedVector<float> d_columns_, unread_;
  UninitializedFloats patch_;
  alignas(64) float dots_[4 * kMaxCotangentTilePixels];  // of a sample's corners and the cotangent of its column
  typename Element::MatrixProduct product_;              // the last member, since it may change the thread's state
};

}  // namespace
DCN_END_TARGET
