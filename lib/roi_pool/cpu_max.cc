#include <algorithm>
#include <limits>
#include <vector>

#include "device.h"
#include "element.h"
#include "instruction_sets.h"
#include "large_pages.h"
#include "roi_pool/cpu_weights.h"
#include "roi_pool/roi_pool.h"

DCN_BEGIN_TARGET
namespace {

// The visited points of an RoI's rows of bins (axis 0) or columns of bins (axis 1).
template <typename A>
class LocatedPoints {
 public:
  DCN_NOINLINE LocatedPoints(const PoolSizes& sizes, const Roi<A>& roi, int axis) {
    for (int64_t bin = 0; bin < sizes.output[axis]; ++bin) {
      const BinPoints<A> points(sizes, roi, axis, bin, A(0));
      for (int32_t i = 0; i < points.count; ++i) points_.push_back(points.Locate(sizes, roi, axis, i));
      bounds_.push_back(points_.size());
    }
  }

  const PoolPoint<A>* OfBin(int64_t bin) const { return points_.data() + bounds_[bin]; }
  int64_t Count(int64_t bin) const { return bounds_[bin + 1] - bounds_[bin]; }

 private:
  std::vector<PoolPoint<A>> points_;
  std::vector<size_t> bounds_ = {0};
};

template <typename T>
void FindLargest(const PoolSizes& sizes, const LocatedPoints<Accumulator<T>>& points_y,
                 const LocatedPoints<Accumulator<T>>& points_x, const T* image, int64_t row, int64_t column,
                 Largest<Accumulator<T>>* largest) {
  using A = Accumulator<T>;
  std::fill_n(largest, sizes.channels, Largest<A>());
  const PoolPoint<A>*ys = points_y.OfBin(row), *xs = points_x.OfBin(column);
  for (int32_t i = 0; i < points_y.Count(row); ++i) {
    for (int32_t j = 0; j < points_x.Count(column); ++j) {
      const PoolPoint<A>&y = ys[i], &x = xs[j];
      const bool is_valid = y.is_valid && x.is_valid;
      A weights[4];
      const T* corners[4];
      int num_corners = 0;  // that have a weight, because 0 times an infinite pixel would be NaN
      for (int k = 0; is_valid && k < 4; ++k) {
        weights[num_corners] = y.weight(k / 2) * x.weight(k % 2);
        corners[num_corners] = image + (y.pixel[k / 2] * sizes.width + x.pixel[k % 2]) * sizes.channels;
        num_corners += weights[num_corners] != A(0);
      }
      for (int64_t f = 0; f < sizes.channels; ++f) {
        A value = 0;
        for (int k = 0; k < num_corners; ++k) value += weights[k] * A(corners[k][f]);
        largest[f].Add(value, is_valid, i, j);
      }
    }
  }
}

// Calls store(index, largest) for each bin and feature of the valid RoIs, and fill(index, state) for those of the other
// RoIs. `index` counts the elements of the result.
template <typename T, typename Store, typename Fill>
void ForEachLargest(Device& device, const PoolSizes& sizes, const Rois& rois, const T* x, const Store& store,
                    const Fill& fill) {
  using A = Accumulator<T>;
  if (sizes.channels == 0) return;  // no array bounds the number of bins then
  device.ParallelFor(sizes.batches * sizes.rois, [&](int64_t roi_index) {
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    const int64_t roi_size = sizes.bins() * sizes.channels;
    int64_t index = roi_index * roi_size;
    if (roi.state != RoiState::kValid) {
      for (int64_t i = 0; i < roi_size; ++i) fill(index++, roi.state);
      return;
    }
    const LocatedPoints<A> points_y(sizes, roi, 0), points_x(sizes, roi, 1);
    std::vector<Largest<A>> largest(sizes.channels);
    for (int64_t bin = 0; bin < sizes.bins(); ++bin) {
      FindLargest(sizes, points_y, points_x, ImageOfRoi(sizes, x, roi_index, roi.image), bin / sizes.output[1],
                  bin % sizes.output[1], largest.data());
      for (const Largest<A>& found : largest) store(index++, found);
    }
  });
}

// Adds the cotangents of an RoI's bins, for channels [begin, end), to the pixels that their largest points read.
template <typename T>
void AddToArgmax(const PoolSizes& sizes, const Roi<Accumulator<T>>& roi, int64_t roi_index, int64_t begin, int64_t end,
                 const T* d_pooled, const int32_t* argmax, Accumulator<T>* d_image) {
  using A = Accumulator<T>;
  const LocatedPoints<A> points_y(sizes, roi, 0), points_x(sizes, roi, 1);
  const int64_t count = sizes.batches * sizes.rois * sizes.bins() * sizes.channels;
  for (int64_t bin = 0; bin < sizes.bins(); ++bin) {
    const int64_t first = (roi_index * sizes.bins() + bin) * sizes.channels;
    for (int64_t f = begin; f < end; ++f) {
      const int32_t row = argmax[first + f], column = argmax[count + first + f];
      const int64_t bin_row = bin / sizes.output[1], bin_column = bin % sizes.output[1];
      // `argmax` is an operand, so it could be anything.
      if (row < 0 || row >= points_y.Count(bin_row) || column < 0 || column >= points_x.Count(bin_column)) continue;
      const PoolPoint<A>&y = points_y.OfBin(bin_row)[row], &x = points_x.OfBin(bin_column)[column];
      if (!y.is_valid || !x.is_valid) continue;
      for (int k = 0; k < 4; ++k) {
        const A weight = y.weight(k / 2) * x.weight(k % 2);
        if (weight == A(0)) continue;  // 0 times an infinite cotangent would be NaN
        d_image[(y.pixel[k / 2] * sizes.width + x.pixel[k % 2]) * sizes.channels + f] +=
            weight * A(d_pooled[first + f]);
      }
    }
  }
}

}  // namespace

const char* MaxPool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                    void* pooled) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    T* out = static_cast<T*>(pooled);
    PreferLargePages(out, sizes.batches * sizes.rois * sizes.bins() * sizes.channels);
    ForEachLargest(
        device, sizes, rois, static_cast<const T*>(x),
        [&](int64_t index, const Largest<A>& largest) { out[index] = T(largest.value); },
        [&](int64_t index, RoiState state) {
          out[index] = T(state == RoiState::kNotFinite ? std::numeric_limits<A>::quiet_NaN() : A(0));
        });
  });
  return nullptr;
}

const char* MaxPoolArgmax(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                          int32_t* argmax) {
  const int64_t count = sizes.batches * sizes.rois * sizes.bins() * sizes.channels;
  PreferLargePages(argmax, 2 * count);
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto store = [&](int64_t index, int32_t row, int32_t column) {
      argmax[index] = row;
      argmax[count + index] = column;
    };
    ForEachLargest(
        device, sizes, rois, static_cast<const T*>(x),
        [&](int64_t index, const Largest<Accumulator<T>>& largest) { store(index, largest.row, largest.column); },
        [&](int64_t index, RoiState) { store(index, -1, -1); });
  });
  return nullptr;
}

const char* MaxPoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois,
                              const void* d_pooled, const int32_t* argmax, void* d_x) {
  constexpr int64_t kChannels = 32;  // of a block
  const int64_t blocks = (sizes.channels + kChannels - 1) / kChannels;
  const int64_t image_size = sizes.height * sizes.width * sizes.channels;
  if (image_size == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    PreferLargePages(static_cast<A*>(d_x), sizes.batches * sizes.images * image_size);
    device.ParallelFor(sizes.batches * sizes.images * blocks, [&](int64_t task) {
      const int64_t image = task / blocks, begin = task % blocks * kChannels;
      const int64_t end = std::min(begin + kChannels, sizes.channels);
      A* d_image = static_cast<A*>(d_x) + image * image_size;
      for (int64_t pixel = 0; pixel < sizes.height * sizes.width; ++pixel) {
        std::fill(d_image + pixel * sizes.channels + begin, d_image + pixel * sizes.channels + end, A(0));
      }
      const int64_t first_roi = image / sizes.images * sizes.rois;
      for (int64_t roi_index = first_roi; roi_index < first_roi + sizes.rois; ++roi_index) {
        const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
        if (roi.state != RoiState::kValid || roi.image != image % sizes.images) continue;
        AddToArgmax(sizes, roi, roi_index, begin, end, static_cast<const T*>(d_pooled), argmax, d_image);
      }
    });
  });
  return nullptr;
}

DCN_END_TARGET
