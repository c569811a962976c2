// The cotangents of a fused convolution, tile by tile and tap by tap: a product makes the cotangents of the columns;
// one loop over the samples reads their corners for the cotangents of the positions, makes the columns again, and adds
// to the cotangent of x; and a product of the columns and the cotangent of y adds to the cotangent of the weight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "aligned_vector.h"
#include "attributes.h"
#include "fused/kernels.h"
#include "fused/product.h"
#include "fused/samples.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

template <typename Element, typename T>
class Cotangents {
 public:
  // Packs the weight of a tap and a slice of channels, transposed: blocks of features, in panels of channels.
  static void Pack(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays,
                   int64_t task) {
    const int64_t tap = task / plan.slices, features = call.product.group_features();
    const CotangentPlan::Slice slice = plan.slice(task % plan.slices, call);
    const int64_t in_group = slice.channel % call.group_channels();
    const T* const from = static_cast<const T*>(arrays.weight) +
                          (tap * call.group_channels() + in_group) * call.product.features + slice.group * features;
    T* to = PackedWeight(call, plan, arrays, task);
    for (int64_t block = 0; block < features; block += kBlockValues) {
      const int64_t length = std::min(kBlockValues, features - block);
      for (int64_t c = 0; c < slice.channels; c += kPanel, to += length * kPanel) {
        for (int64_t first = 0; first < length; first += kTransposed) {
          for (int64_t n = 0; n < kPanel; ++n) {
            const T* const row = from + Element::Channel(c + n) * call.product.features + block;
            for (int64_t f = first; f < std::min(first + kTransposed, length); ++f) {
              to[(f / kValues * kPanel + n) * kValues + f % kValues] = c + n < slice.channels ? row[f] : T(0.0f);
            }
          }
        }
      }
    }
  }

  // Computes tasks, which it takes from `next` until there are no more.
  static void Compute(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays,
                      const void* zeros, const Tiling& tiling, int64_t slot, FinishedTiles& finished,
                      std::atomic<int64_t>& next) {
    if (next.load() >= plan.tasks()) return;  // other threads have taken all tasks
    Cotangents buffers(call, plan, arrays, static_cast<const T*>(zeros), tiling, slot, finished);
    for (int64_t task; (task = next.fetch_add(1)) < plan.tasks();) buffers.ComputeTask(task);
  }

  // Adds up the parts of the weight's cotangent in the slice of a tap.
  static void SumWeight(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays,
                        int64_t task) {
    const int64_t tap = task / plan.slices, index = task % plan.slices, features = call.product.group_features();
    const CotangentPlan::Slice slice = plan.slice(index, call);
    const int64_t in_group = slice.channel % call.group_channels();
    float* const out =
        arrays.d_weight + (tap * call.group_channels() + in_group) * call.product.features + slice.group * features;
    for (int64_t first = 0; first < features; first += kTransposed) {
      const int64_t end = std::min(first + kTransposed, features);
      for (int64_t part = 0; part < plan.parts; ++part) {
        const float* const sums = WeightSums(call, plan, arrays, part, tap, index);
        for (int64_t c = 0; c < slice.channels; ++c) {
          float* const row = out + Element::Channel(c) * call.product.features;
          for (int64_t f = first; f < end; ++f) {
            const float sum = sums[f * plan.padded_channels + c];
            row[f] = part == 0 ? sum : row[f] + sum;
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t kValues = Element::MatrixProduct::kValues, kBlockValues = kBlockWords * kValues;
  static constexpr int64_t kTransposed = 16;  // features at a time, which are at least a cache line

  Cotangents(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays, const T* zeros,
             const Tiling& tiling, int64_t slot, FinishedTiles& finished)
      : call_(call),
        plan_(plan),
        arrays_(arrays),
        zeros_(zeros),
        tiling_(tiling),
        slot_(slot),
        finished_(finished),
        samples_(call, plan.max_offset_groups(call.sizes)),
        columns_(tiling.max_pixels(), plan.padded_channels),
        d_y_(tiling.max_pixels(), call.product.group_features()),
        d_columns_stride_(plan.padded_channels + kLineFloats),
        d_columns_(Element::MatrixProduct::PaddedRows(tiling.max_pixels()) * d_columns_stride_),
        unread_(plan.padded_channels) {}

  static T* PackedWeight(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays,
                         int64_t task) {
    return reinterpret_cast<T*>(arrays.workspace) + task * plan.padded_channels * call.product.group_features();
  }
  static float* WeightSums(const ConvolutionCall& call, const CotangentPlan& plan, const FusedCotangentArrays& arrays,
                           int64_t part, int64_t tap, int64_t slice) {
    return arrays.workspace + plan.weight_sums +
           ((part * call.sizes.taps() + tap) * plan.slices + slice) * call.product.group_features() *
               plan.padded_channels;
  }

  void ComputeTask(int64_t task) {
    task_ = task;
    part_ = task % plan_.parts;
    index_ = task / plan_.parts;
    slice_ = plan_.slice(index_, call_);
    const int64_t end = plan_.first_image(part_ + 1, call_.sizes), tiles = tiling_.image_tiles();
    int64_t tile_count = 0;
    for (image_ = plan_.first_image(part_, call_.sizes); image_ < end; ++image_) {
      if (plan_.requested.x) BeginInputCotangent();
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (plan_.WaitsForSliceBefore(slice_, call_.sizes)) WaitForSliceBefore(tile_count);
        ComputeTile(tiling_[image_ * tiles + tile], tile_count == 0);
        finished_[task].store(++tile_count, std::memory_order_release);
      }
      if (plan_.requested.x) EndInputCotangent();
    }
  }

  // The cotangent of x adds up in the result if that is float32.
  void BeginInputCotangent() {
    const Sizes& sizes = call_.sizes;
    const int64_t pixels = sizes.height * sizes.width;
    if constexpr (sizeof(T) == sizeof(float)) {
      image_sums_ = InputCotangent();
      image_stride_ = sizes.channels;
    } else {
      image_sums_ = arrays_.workspace + plan_.image_sums + slot_ * pixels * plan_.padded_channels;
      image_stride_ = plan_.padded_channels;
    }
    for (int64_t p = 0; p < pixels; ++p) {
      std::memset(image_sums_ + p * image_stride_, 0, slice_.channels * sizeof(float));
    }
  }

  void EndInputCotangent() {
    if constexpr (sizeof(T) != sizeof(float)) {
      const Sizes& sizes = call_.sizes;
      for (int64_t p = 0; p < sizes.height * sizes.width; ++p) {
        Element::Round(image_sums_ + p * image_stride_, slice_.channels, InputCotangent() + p * sizes.channels);
      }
    }
  }

  T* InputCotangent() const {
    const Sizes& sizes = call_.sizes;
    return static_cast<T*>(arrays_.d_x) + image_ * sizes.height * sizes.width * sizes.channels + slice_.channel;
  }

  void ComputeTile(const OutputTile& tile, bool is_first) {
    const int64_t pixels = tile.pixels(), features = call_.product.group_features();
    const int64_t offset_group_channels = call_.sizes.group_channels();
    samples_.Locate(tile, slice_.channel / offset_group_channels,
                    (slice_.channel + slice_.channels - 1) / offset_group_channels);
    ReadOutputCotangent(pixels);
    if (plan_.requested.weight) d_y_.End(pixels, features);
    for (int32_t tap = 0; tap < call_.sizes.taps(); ++tap) {
      if (plan_.requested.x || plan_.requested.positions) MultiplyByWeight(pixels, tap);
      columns_.Begin(pixels);
      DifferentiateTap(tile, tap);
      if (!plan_.requested.weight) continue;
      columns_.End(pixels, slice_.channels);
      d_y_.AddWeightSums(product_, columns_, features, slice_.channels,
                         WeightSums(call_, plan_, arrays_, part_, tap, index_), plan_.padded_channels, is_first);
    }
  }

  void ReadOutputCotangent(int64_t pixels) {
    const int64_t features = call_.product.group_features();
    const T* const d_y = static_cast<const T*>(arrays_.d_y) + slice_.group * features;
    for (int64_t f = 0; f < features; f += kBlockValues) {
      for (int64_t p = 0; p < pixels; ++p) {
        Element::StoreRow(d_y + samples_.output(p) * call_.product.features + f, std::min(kBlockValues, features - f),
                          d_y_.Row(p, f));
      }
    }
  }

  void MultiplyByWeight(int64_t pixels, int32_t tap) {
    const int64_t features = call_.product.group_features(), panels = (slice_.channels + kPanel - 1) / kPanel;
    const T* packed = PackedWeight(call_, plan_, arrays_, tap * plan_.slices + index_);
    for (int64_t f = 0; f < features; f += kBlockValues) {
      const int64_t length = std::min(kBlockValues, features - f), steps = length / kValues;
      product_.template Multiply<kRowWords, 1>(pixels, slice_.channels, steps, d_y_.Row(0, f),
                                               Element::PackedWeight(packed, steps), d_columns_.data(),
                                               d_columns_stride_, f == 0);
      packed += length * panels * kPanel;
    }
  }

  // Run by run of the channels that share an offset group.
  void DifferentiateTap(const OutputTile& tile, int32_t tap) {
    const int64_t offset_group_channels = call_.sizes.group_channels();
    for (int64_t c = 0, count; c < slice_.channels; c += count) {
      const int64_t offset_group = (slice_.channel + c) / offset_group_channels;
      count = std::min((offset_group + 1) * offset_group_channels - (slice_.channel + c), slice_.channels - c);
      constexpr int kNarrowest = Element::kNarrowest;
      const auto differentiate = count <= kNarrowest ? RunFor<kNarrowest>() : RunFor<kLanes>();
      (this->*differentiate)(tile.pixels(), tap, offset_group, c, count);
    }
  }

  using Run = void (Cotangents::*)(int64_t, int32_t, int64_t, int64_t, int64_t);
  template <int kCount>
  Run RunFor() const {
    constexpr Run kRuns[] = {
        nullptr,
        &Cotangents::DifferentiateRun<false, false, true, kCount>,
        &Cotangents::DifferentiateRun<false, true, false, kCount>,
        &Cotangents::DifferentiateRun<false, true, true, kCount>,
        &Cotangents::DifferentiateRun<true, false, false, kCount>,
        &Cotangents::DifferentiateRun<true, false, true, kCount>,
        &Cotangents::DifferentiateRun<true, true, false, kCount>,
        &Cotangents::DifferentiateRun<true, true, true, kCount>,
    };
    return kRuns[4 * plan_.requested.x + 2 * plan_.requested.positions + plan_.requested.weight];
  }

  template <bool kOfX, bool kOfPositions, bool kOfWeight, int kCount>
  void DifferentiateRun(int64_t pixels, int32_t tap, int64_t offset_group, int64_t c, int64_t count) {
    const Sizes& sizes = call_.sizes;
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
      const bool is_added = c == 0 && plan_.WaitsForSliceBefore(slice_, sizes);
      StorePositions(samples, pixels, offset_group * sizes.taps() + tap, is_added);
    }
  }

  // As CotangentsOfPosition in bilinear.h, but from the sums over the channels.
  void StorePositions(const SampleArrays& samples, int64_t pixels, int64_t sample_in_pixel, bool is_added) {
    const int64_t pixel_samples = call_.sizes.offset_groups * call_.sizes.taps();
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
    const std::atomic<int64_t>& before = finished_[task_ - plan_.parts];
    while (before.load(std::memory_order_acquire) <= tile) std::this_thread::yield();
  }

  const ConvolutionCall& call_;
  const CotangentPlan& plan_;
  const FusedCotangentArrays& arrays_;
  const T* zeros_;
  const Tiling& tiling_;
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

template <typename Element, typename T>
constexpr FusedKernels::Cotangents CotangentKernels() {
  using Kernel = Cotangents<Element, T>;
  return {Kernel::Pack, Kernel::Compute, Kernel::SumWeight};
}

}  // namespace
DCN_END_TARGET
