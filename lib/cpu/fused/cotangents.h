// The cotangents of a fused convolution, tile by tile and tap by tap: a product makes the cotangents of the columns;
// one loop over the samples reads their corners for the cotangents of the positions, makes the columns again, and adds
// to the cotangent of x; and a product of the columns and the cotangent of y adds to the cotangent of the weight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "device.h"
#include "fused/plan.h"
#include "fused/product.h"
#include "fused/samples.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

template <typename Element, typename T>
class Cotangents {
 public:
  static void Run(Device& device, const CotangentPlan& plan, const FusedCotangentArrays& arrays) {
    const Sizes& sizes = plan.convolution.sizes;
    const RequestedCotangents requested = plan.requested;
    const int64_t weight_tasks = sizes.taps() * plan.slices.count;
    if (requested.x || requested.positions) {
      device.ParallelFor(weight_tasks, [&](int64_t task) { PackWeight(plan, arrays, task); });
    }
    const std::vector<T> zeros(sizes.group_channels());
    FinishedTiles finished(plan.tasks());
    std::atomic<int64_t> next{0};
    device.ParallelFor(std::clamp(device.threads(), int64_t{1}, plan.division.concurrent), [&](int64_t slot) {
      if (next.load() >= plan.tasks()) return;  // other threads have taken all tasks
      Cotangents buffers(plan, arrays, zeros.data(), slot, finished);
      for (int64_t task; (task = next.fetch_add(1)) < plan.tasks();) buffers.ComputeTask(task);
    });
    if (!requested.weight) return;
    if (sizes.pixels() == 0) {
      const int64_t size = sizes.taps() * plan.convolution.group_channels() * plan.convolution.product.features;
      std::memset(arrays.d_weight, 0, size * sizeof(float));
    } else {
      device.ParallelFor(weight_tasks, [&](int64_t task) { SumWeight(plan, arrays, task); });
    }
  }

 private:
  // How many tiles each task has finished.
  using FinishedTiles = std::vector<std::atomic<int64_t>>;

  static constexpr int64_t kValues = Element::MatrixProduct::kValues, kBlockValues = kBlockWords * kValues;
  static constexpr int64_t kTransposed = 16;  // features at a time, which are at least a cache line

  Cotangents(const CotangentPlan& plan, const FusedCotangentArrays& arrays, const T* zeros, int64_t slot,
             FinishedTiles& finished)
      : convolution_(plan.convolution),
        plan_(plan),
        arrays_(arrays),
        zeros_(zeros),
        slot_(slot),
        finished_(finished),
        samples_(plan.convolution, plan.max_offset_groups()),
        columns_(plan.tiling.max_pixels(), plan.slices.padded_channels),
        d_y_(plan.tiling.max_pixels(), plan.convolution.product.group_features()),
        d_columns_stride_(plan.slices.padded_channels + kLineFloats),
        d_columns_(Element::MatrixProduct::PaddedRows(plan.tiling.max_pixels()) * d_columns_stride_),
        unread_(plan.slices.padded_channels) {}

  static T* PackedWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    return reinterpret_cast<T*>(arrays.workspace) +
           task * plan.slices.padded_channels * plan.convolution.product.group_features();
  }
  static float* WeightSums(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t part, int64_t tap,
                           int64_t slice) {
    const Slices& slices = plan.slices;
    return arrays.workspace + slices.PackedWeight(plan.requested) +
           ((part * plan.convolution.sizes.taps() + tap) * slices.count + slice) *
               plan.convolution.product.group_features() * slices.padded_channels;
  }
  // The index of the first element of a tap and a slice in the weight and its cotangent.
  static int64_t WeightIndex(const CotangentPlan& plan, int64_t tap, const CotangentPlan::Slice& slice) {
    const Product& product = plan.convolution.product;
    return (tap * plan.convolution.group_channels() + slice.in_group) * product.features +
           slice.group * product.group_features();
  }

  // Packs the weight of a tap and a slice of channels, transposed: blocks of features, in panels of channels.
  static void PackWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    const Product& product = plan.convolution.product;
    const int64_t features = product.group_features();
    const CotangentPlan::Slice slice = plan.slice(task % plan.slices.count);
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

  // Adds up the parts of the weight's cotangent in the slice of a tap.
  static void SumWeight(const CotangentPlan& plan, const FusedCotangentArrays& arrays, int64_t task) {
    const int64_t tap = task / plan.slices.count, index = task % plan.slices.count;
    const Product& product = plan.convolution.product;
    const CotangentPlan::Slice slice = plan.slice(index);
    float* const out = arrays.d_weight + WeightIndex(plan, tap, slice);
    for (int64_t first = 0; first < product.group_features(); first += kTransposed) {
      const int64_t end = std::min(first + kTransposed, product.group_features());
      for (int64_t part = 0; part < plan.division.parts; ++part) {
        const float* const sums = WeightSums(plan, arrays, part, tap, index);
        for (int64_t c = 0; c < slice.channels; ++c) {
          float* const row = out + Element::Channel(c) * product.features;
          for (int64_t f = first; f < end; ++f) {
            const float sum = sums[f * plan.slices.padded_channels + c];
            row[f] = part == 0 ? sum : row[f] + sum;
          }
        }
      }
    }
  }

  void ComputeTask(int64_t task) {
    task_ = task;
    part_ = task % plan_.division.parts;
    index_ = task / plan_.division.parts;
    slice_ = plan_.slice(index_);
    const int64_t end = plan_.first_image(part_ + 1), tiles = plan_.tiling.image_tiles();
    int64_t tile_count = 0;
    for (image_ = plan_.first_image(part_); image_ < end; ++image_) {
      if (plan_.requested.x) BeginInputCotangent();
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (plan_.WaitsForSliceBefore(slice_)) WaitForSliceBefore(tile_count);
        ComputeTile(plan_.tiling[image_ * tiles + tile], tile_count == 0);
        finished_[task].store(++tile_count, std::memory_order_release);
      }
      if (plan_.requested.x) EndInputCotangent();
    }
  }

  // The cotangent of x adds up in the result if that is float32.
  void BeginInputCotangent() {
    const Sizes& sizes = convolution_.sizes;
    const int64_t pixels = sizes.height * sizes.width;
    if constexpr (sizeof(T) == sizeof(float)) {
      image_sums_ = InputCotangent();
      image_stride_ = sizes.channels;
    } else {
      const int64_t first = plan_.slices.BeforeImages(plan_.requested, plan_.division.parts);
      image_stride_ = plan_.slices.padded_channels;
      image_sums_ = arrays_.workspace + first + slot_ * pixels * image_stride_;
    }
    for (int64_t p = 0; p < pixels; ++p) {
      std::memset(image_sums_ + p * image_stride_, 0, slice_.channels * sizeof(float));
    }
  }

  void EndInputCotangent() {
    if constexpr (sizeof(T) != sizeof(float)) {
      const Sizes& sizes = convolution_.sizes;
      for (int64_t p = 0; p < sizes.height * sizes.width; ++p) {
        Element::Round(image_sums_ + p * image_stride_, slice_.channels, InputCotangent() + p * sizes.channels);
      }
    }
  }

  T* InputCotangent() const {
    const Sizes& sizes = convolution_.sizes;
    return static_cast<T*>(arrays_.d_x) + image_ * sizes.height * sizes.width * sizes.channels + slice_.channel;
  }

  void ComputeTile(const OutputTile& tile, bool is_first) {
    const int64_t pixels = tile.pixels(), features = convolution_.product.group_features();
    const int64_t offset_group_channels = convolution_.sizes.group_channels();
    samples_.Locate(tile, slice_.channel / offset_group_channels,
                    (slice_.channel + slice_.channels - 1) / offset_group_channels);
    ReadOutputCotangent(pixels);
    if (plan_.requested.weight) d_y_.End(pixels, features);
    for (int32_t tap = 0; tap < convolution_.sizes.taps(); ++tap) {
      if (plan_.requested.x || plan_.requested.positions) MultiplyByWeight(pixels, tap);
      columns_.Begin(pixels);
      DifferentiateTap(tile, tap);
      if (!plan_.requested.weight) continue;
      columns_.End(pixels, slice_.channels);
      d_y_.AddWeightSums(product_, columns_, features, slice_.channels, WeightSums(plan_, arrays_, part_, tap, index_),
                         plan_.slices.padded_channels, is_first);
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
    const T* packed = PackedWeight(plan_, arrays_, tap * plan_.slices.count + index_);
    for (int64_t f = 0; f < features; f += kBlockValues) {
      const int64_t length = std::min(kBlockValues, features - f), steps = length / kValues;
      product_.template Multiply<kRowWords, 1>(pixels, slice_.channels, steps, d_y_.Row(0, f),
                                               Element::PackedWeight(packed, steps), d_columns_.data(),
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
      const auto differentiate = count <= kNarrowest ? DifferentiateFor<kNarrowest>() : DifferentiateFor<kLanes>();
      (this->*differentiate)(tile.pixels(), tap, offset_group, c, count);
    }
  }

  using Differentiate = void (Cotangents::*)(int64_t, int32_t, int64_t, int64_t, int64_t);
  template <int kCount>
  Differentiate DifferentiateFor() const {
    constexpr Differentiate kFunctions[] = {
        nullptr,
        &Cotangents::DifferentiateSegment<false, false, true, kCount>,
        &Cotangents::DifferentiateSegment<false, true, false, kCount>,
        &Cotangents::DifferentiateSegment<false, true, true, kCount>,
        &Cotangents::DifferentiateSegment<true, false, false, kCount>,
        &Cotangents::DifferentiateSegment<true, false, true, kCount>,
        &Cotangents::DifferentiateSegment<true, true, false, kCount>,
        &Cotangents::DifferentiateSegment<true, true, true, kCount>,
    };
    return kFunctions[4 * plan_.requested.x + 2 * plan_.requested.positions + plan_.requested.weight];
  }

  template <bool kOfX, bool kOfPositions, bool kOfWeight, int kCount>
  void DifferentiateSegment(int64_t pixels, int32_t tap, int64_t offset_group, int64_t c, int64_t count) {
    const Sizes& sizes = convolution_.sizes;
    const int64_t channels = sizes.channels, sums_stride = image_stride_, d_columns_stride = d_columns_stride_;
    const SampleArrays& samples = samples_.Of(offset_group, tap);
    const T* const image =
        static_cast<const T*>(arrays_.x) + image_ * sizes.height * sizes.width * channels + slice_.channel + c;
    const T* const zeros = zeros_;
    float *const sums = kOfX ? image_sums_ + c : nullptr, *const unread = unread_.data(), *const dots = dots_;
    const float* const d_columns = d_columns_.data() + c;
    for (int64_t p = 0; p < pixels; ++p) {
      const T* corner[4];
      float weight[4];
      FloatsOf<kCount> dot[4] = {};
      float* sum[4] = {};
      for (int k = 0; k < 4; ++k) {
        const int64_t pixel = samples.pixel[k][p];
        corner[k] = pixel >= 0 ? image + pixel * channels : zeros;
        if constexpr (kOfX) sum[k] = pixel >= 0 ? sums + pixel * sums_stride : unread;
        weight[k] = samples.weight[k][p];
      }
      Element::template Differentiate<kOfX, kOfPositions, kOfWeight, kCount>(
          corner, weight, d_columns + p * d_columns_stride, count, sum, dot, columns_, p, c);
      if constexpr (kOfPositions) Store<4>(Sums<kCount>(dot), dots + 4 * p);
    }
    if constexpr (kOfPositions) {
      const bool is_added = c == 0 && plan_.WaitsForSliceBefore(slice_);
      StorePositions(samples, pixels, offset_group * sizes.taps() + tap, is_added);
    }
  }

  // As CotangentsOfPosition in bilinear.h, but from the sums over the channels.
  void StorePositions(const SampleArrays& samples, int64_t pixels, int64_t sample_in_pixel, bool is_added) {
    const int64_t pixel_samples = convolution_.sizes.pixel_samples();
    float *const d_offset = arrays_.d_offset, *const d_mask = arrays_.d_mask;
    for (int64_t p = 0; p < pixels; ++p) {
      const float y = samples.fraction_y[p], x = samples.fraction_x[p], mask = samples.mask[p];
      float d_row = 0 * (y + x), d_column = d_row, d_mask_value = d_row;  // NaN where the location is
      if (samples.is_inside(p)) {
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

  void WaitForSliceBefore(int64_t tile) const {
    const std::atomic<int64_t>& before = finished_[task_ - plan_.division.parts];
    while (before.load(std::memory_order_acquire) <= tile) std::this_thread::yield();
  }

  const Convolution& convolution_;
  const CotangentPlan& plan_;
  const FusedCotangentArrays& arrays_;
  const T* zeros_;
  int64_t slot_;
  FinishedTiles& finished_;

  int64_t task_ = 0, part_ = 0, index_ = 0, image_ = 0;
  CotangentPlan::Slice slice_ = {};
  float* image_sums_ = nullptr;
  int64_t image_stride_ = 0;

  Samples samples_;
  typename Element::Columns columns_;
  typename Element::OutputCotangent d_y_;
  int64_t d_columns_stride_;
  AlignedVector<float> d_columns_, unread_;
  alignas(64) float dots_[4 * kMaxCotangentTilePixels];  // of a sample's corners and the cotangent of its column
  typename Element::MatrixProduct product_;              // the last member, since it may change the thread's state
};

}  // namespace
DCN_END_TARGET
