#include "psroi_pool.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "device.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {
namespace {

// The row and column of a bin, and the flat indices of the part and the channel group that it belongs to.
struct BinIndex {
  int64_t row, column, part, group;
};

// The indices of all bins, row by row. They are computed once per call because they take integer divisions. Empty if
// there is no output: then no array bounds the number of bins, and this one might not fit in memory.
std::vector<BinIndex> IndexBins(const PoolSizes& sizes) {
  if (sizes.batches * sizes.rois == 0 || sizes.features() == 0) return {};
  const auto flat_cell = [&](int64_t row, int64_t column, const int32_t grid[2]) {
    return sizes.GridCellOfBin(0, row, grid) * grid[1] + sizes.GridCellOfBin(1, column, grid);
  };
  std::vector<BinIndex> bins;
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      bins.push_back({row, column, flat_cell(row, column, sizes.part), flat_cell(row, column, sizes.group)});
    }
  }
  return bins;
}

// The pixels that a bin reads along one axis, with their weights.
template <typename A>
class AxisWeights {
 public:
  struct Pixel {
    int32_t index;
    A weight, slope;  // sums over the sample points; slope is the derivative with respect to the position
  };

  // `size` is the number of pixels along the axis.
  AxisWeights(int32_t points, int64_t size) : pixels_(std::min(2 * int64_t{points}, size)), end_(pixels_.data()) {}

  DCN_INLINE void Compute(const PoolSizes& sizes, const Roi<A>& roi, int axis, int64_t bin, A shift) {
    end_ = pixels_.data();
    num_valid_ = ForEachPixel(sizes, roi, axis, bin, shift,
                              [&](int32_t index, A weight, A slope) { *end_++ = {index, weight, slope}; });
  }

  const Pixel* begin() const { return pixels_.data(); }
  const Pixel* end() const { return end_; }
  int32_t num_valid() const { return num_valid_; }

 private:
  std::vector<Pixel> pixels_;
  Pixel* end_;
  int32_t num_valid_ = 0;
};

// The pixels and weights of a bin of an RoI, for the features of one class.
template <typename A>
struct BinWeights {
  AxisWeights<A> y, x;
  bool is_nan = false;  // the offset is NaN
  A scale = 0;          // 1 / number of valid points, or 0 if there are none

  explicit BinWeights(const PoolSizes& sizes) : y(sizes.points[0], sizes.height), x(sizes.points[1], sizes.width) {}

  // `offset` is the (dx, dy) of the bin's part, or null.
  DCN_INLINE void Compute(const PoolSizes& sizes, const Roi<A>& roi, const BinIndex& bin, const A* offset) {
    const A shift_x = offset ? offset[0] * A(sizes.trans_std) : A(0);
    const A shift_y = offset ? offset[1] * A(sizes.trans_std) : A(0);
    is_nan = shift_x != shift_x || shift_y != shift_y;
    y.Compute(sizes, roi, 0, bin.row, shift_y);
    x.Compute(sizes, roi, 1, bin.column, shift_x);
    const A num_valid = A(y.num_valid()) * A(x.num_valid());
    scale = num_valid > A(0) ? A(1) / num_valid : A(0);
  }
};

// The temporary memory of one task. It is allocated outside the vectorized functions, because exceptions do not
// propagate out of their clones.
template <typename A>
struct Scratch {
  BinWeights<A> weights;
  std::vector<A> sums, d_bin;

  Scratch(const PoolSizes& sizes, int64_t sums, int64_t d_bin) : weights(sizes), sums(sums), d_bin(d_bin) {}
};

// Below, `roi_index` counts the RoIs of all batches.
template <typename A>
DCN_INLINE Roi<A> LocateRoi(const PoolSizes& sizes, const Rois& rois, int64_t roi_index) {
  return LocateRoi(sizes, static_cast<const A*>(rois.boxes) + roi_index * 5);
}

// The index of a part's dx in the offset and in its cotangent; its dy follows.
DCN_INLINE int64_t OffsetIndex(const PoolSizes& sizes, int64_t roi_index, int64_t part, int64_t class_) {
  return ((roi_index * sizes.part[0] * sizes.part[1] + part) * sizes.classes + class_) * 2;
}

template <typename A>
DCN_INLINE const A* PartOffset(const PoolSizes& sizes, const Rois& rois, int64_t roi_index, int64_t part,
                               int64_t class_) {
  if (!rois.offset) return nullptr;
  return static_cast<const A*>(rois.offset) + OffsetIndex(sizes, roi_index, part, class_);
}

// The image that an RoI reads; `image` is its index within the RoI's batch.
template <typename T>
DCN_INLINE const T* ImageOfRoi(const PoolSizes& sizes, const T* x, int64_t roi_index, int64_t image) {
  return x + (roi_index / sizes.rois * sizes.images + image) * sizes.height * sizes.width * sizes.channels;
}

// A task of the forward and of the offset cotangent is one class of one RoI. Tasks go class by class: the channels of
// one class are a small part of x, which stays in the cache while all RoIs read it.
template <typename T>
DCN_VECTORIZED void PoolRoi(const PoolSizes& sizes, const Rois& rois, const std::vector<BinIndex>& bins, const T* x,
                            T* pooled, int64_t roi_index, int64_t class_, Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
  T* out = pooled + roi_index * sizes.bins() * features + class_ * class_features;
  if (roi.state != RoiState::kValid) {
    const A fill = roi.state == RoiState::kNotFinite ? std::numeric_limits<A>::quiet_NaN() : A(0);
    for (int64_t i = 0; i < sizes.bins(); ++i) std::fill_n(out + i * features, class_features, T(fill));
    return;
  }
  const T* image = ImageOfRoi(sizes, x, roi_index, roi.image) + class_ * class_features * stride;
  BinWeights<A>& weights = scratch.weights;
  A* sum = scratch.sums.data();
  for (const BinIndex& bin : bins) {
    weights.Compute(sizes, roi, bin, PartOffset<A>(sizes, rois, roi_index, bin.part, class_));
    std::fill_n(sum, class_features, weights.is_nan ? std::numeric_limits<A>::quiet_NaN() : A(0));
    for (const auto& y : weights.y) {
      for (const auto& x : weights.x) {
        const T* pixel = image + (y.index * sizes.width + x.index) * sizes.channels + bin.group;
        const A weight = weights.scale * y.weight * x.weight;
        if (stride == 1) {
          for (int64_t f = 0; f < class_features; ++f) sum[f] += weight * A(pixel[f]);
        } else {
          for (int64_t f = 0; f < class_features; ++f) sum[f] += weight * A(pixel[f * stride]);
        }
      }
    }
    for (int64_t f = 0; f < class_features; ++f) out[f] = T(sum[f]);
    out += features;
  }
}

// The channels of d_x that one task of the input cotangent computes: some features in some channel groups of one image.
// No two tasks add to the same element. `image` counts the images of all batches.
struct ChannelBlock {
  int64_t image, first_feature, features, first_group, groups;
};

template <typename T>
DCN_VECTORIZED void InputCotangentOfBlock(const PoolSizes& sizes, const Rois& rois, const std::vector<BinIndex>& bins,
                                          const T* d_pooled, Accumulator<T>* d_x, const ChannelBlock& block,
                                          Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features();
  const int64_t pixels = sizes.height * sizes.width;
  const int64_t first_roi = block.image / sizes.images * sizes.rois;
  A *sums = scratch.sums.data(), *d_bin = scratch.d_bin.data();
  BinWeights<A>& weights = scratch.weights;
  for (int64_t roi_index = first_roi; roi_index < first_roi + sizes.rois; ++roi_index) {
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    if (roi.state != RoiState::kValid || roi.image != block.image % sizes.images) continue;
    const T* d_roi = d_pooled + roi_index * sizes.bins() * features + block.first_feature;
    for (int64_t i = 0; i < sizes.bins(); ++i) {
      const int64_t group = bins[i].group - block.first_group;
      if (group < 0 || group >= block.groups) continue;
      for (int64_t f = 0; f < block.features; ++f) d_bin[f] = A(d_roi[i * features + f]);
      for (int64_t begin = 0, end; begin < block.features; begin = end) {
        const int64_t class_ = (block.first_feature + begin) / class_features;
        end = std::min(block.features, (class_ + 1) * class_features - block.first_feature);
        weights.Compute(sizes, roi, bins[i], PartOffset<A>(sizes, rois, roi_index, bins[i].part, class_));
        for (const auto& y : weights.y) {
          for (const auto& x : weights.x) {
            A* sum = sums + ((y.index * sizes.width + x.index) * block.groups + group) * block.features;
            const A weight = weights.scale * y.weight * x.weight;
            for (int64_t f = begin; f < end; ++f) sum[f] += weight * d_bin[f];
          }
        }
      }
    }
  }
  const A* sum = sums;
  A* out = d_x + block.image * pixels * sizes.channels + block.first_feature * sizes.groups() + block.first_group;
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t f = 0; f < block.features; ++f) {
      for (int64_t g = 0; g < block.groups; ++g) out[f * sizes.groups() + g] = sum[g * block.features + f];
    }
    sum += block.groups * block.features;
    out += sizes.channels;
  }
}

// A dot product whose order of summation is the same for every instruction set: 16 lanes, which are added in pairs.
template <typename A, typename T>
DCN_INLINE A Dot(const T* d, const T* pixel, int64_t stride, int64_t n) {
  constexpr int kLanes = 16;
  A dot = 0;
  int64_t f = 0;
  if (stride == 1 && n >= kLanes) {
    A lanes[kLanes] = {};
    for (; f + kLanes <= n; f += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += A(d[f + lane]) * A(pixel[f + lane]);
    }
    for (int half = kLanes / 2; half; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    dot = lanes[0];
  }
  for (; f < n; ++f) dot += A(d[f]) * A(pixel[f * stride]);
  return dot;
}

template <typename T>
DCN_VECTORIZED void OffsetCotangentOfRoi(const PoolSizes& sizes, const Rois& rois, const std::vector<BinIndex>& bins,
                                         const T* x, const T* d_pooled, Accumulator<T>* d_offset, int64_t roi_index,
                                         int64_t class_, Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  const int64_t parts = int64_t{sizes.part[0]} * sizes.part[1];
  for (int64_t part = 0; part < parts; ++part) {
    std::fill_n(d_offset + OffsetIndex(sizes, roi_index, part, class_), 2, A(0));
  }
  const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
  if (roi.state != RoiState::kValid) return;
  const T* image = ImageOfRoi(sizes, x, roi_index, roi.image) + class_ * class_features * stride;
  const T* d_roi = d_pooled + roi_index * sizes.bins() * features + class_ * class_features;
  BinWeights<A>& weights = scratch.weights;
  for (size_t i = 0; i < bins.size(); ++i) {
    weights.Compute(sizes, roi, bins[i], PartOffset<A>(sizes, rois, roi_index, bins[i].part, class_));
    if (weights.scale == A(0) && !weights.is_nan) continue;
    A dy = weights.is_nan ? std::numeric_limits<A>::quiet_NaN() : A(0), dx = dy;
    for (const auto& y : weights.y) {
      for (const auto& x : weights.x) {
        const T* pixel = image + (y.index * sizes.width + x.index) * sizes.channels + bins[i].group;
        const A dot = Dot<A>(d_roi + i * features, pixel, stride, class_features);
        dy += y.slope * x.weight * dot;
        dx += y.weight * x.slope * dot;
      }
    }
    A* out = d_offset + OffsetIndex(sizes, roi_index, bins[i].part, class_);
    const A scale = weights.scale * A(sizes.trans_std);
    out[0] += dx * roi.size[1] * scale;
    out[1] += dy * roi.size[0] * scale;
  }
}

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x, void* pooled) {
  if (sizes.features() == 0) return nullptr;
  const std::vector<BinIndex> bins = IndexBins(sizes);
  const int64_t num_rois = sizes.batches * sizes.rois;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(num_rois * sizes.classes, [&](int64_t task) {
      Scratch<Accumulator<T>> scratch(sizes, sizes.class_features(), 0);
      PoolRoi(sizes, rois, bins, static_cast<const T*>(x), static_cast<T*>(pooled), task % num_rois, task / num_rois,
              scratch);
    });
  });
  return nullptr;
}

const char* PoolInputCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois,
                               const void* d_pooled, void* d_x) {
  if (sizes.height * sizes.width == 0) return nullptr;
  // The approximate number of channels per block; fewer if there would be too few blocks. A class is not split into
  // smaller blocks, because each block computes the weights of its bins anew. A row of channel groups is not split,
  // because its channels are contiguous.
  const int64_t channels = std::clamp<int64_t>(sizes.batches * sizes.images * sizes.channels / 8, 8, 32);
  const int64_t features = sizes.features(), groups = sizes.groups();
  const int64_t block_features = std::max({int64_t{1}, channels / groups, std::min(channels, sizes.class_features())});
  const int64_t block_groups = std::min(groups, std::max<int64_t>(sizes.group[1], channels / block_features));
  const int64_t feature_blocks = (features + block_features - 1) / block_features;
  const int64_t group_blocks = (groups + block_groups - 1) / block_groups;
  const std::vector<BinIndex> bins = IndexBins(sizes);
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.images * group_blocks * feature_blocks, [&](int64_t task) {
      const int64_t f = task % feature_blocks * block_features;
      const int64_t g = task / feature_blocks % group_blocks * block_groups;
      const ChannelBlock block = {task / feature_blocks / group_blocks, f, std::min(block_features, features - f), g,
                                  std::min(block_groups, groups - g)};
      Scratch<Accumulator<T>> scratch(sizes, sizes.height * sizes.width * block.groups * block.features,
                                      block.features);
      InputCotangentOfBlock(sizes, rois, bins, static_cast<const T*>(d_pooled), static_cast<Accumulator<T>*>(d_x),
                            block, scratch);
    });
  });
  return nullptr;
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                                const void* d_pooled, void* d_offset) {
  const std::vector<BinIndex> bins = IndexBins(sizes);
  const int64_t num_rois = sizes.batches * sizes.rois;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(num_rois * sizes.classes, [&](int64_t task) {
      Scratch<Accumulator<T>> scratch(sizes, 0, 0);
      OffsetCotangentOfRoi(sizes, rois, bins, static_cast<const T*>(x), static_cast<const T*>(d_pooled),
                           static_cast<Accumulator<T>*>(d_offset), task % num_rois, task / num_rois, scratch);
    });
  });
  return nullptr;
}

}  // namespace dcn
