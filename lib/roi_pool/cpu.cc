#include "roi_pool/roi_pool.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "attributes.h"
#include "device.h"
#include "element.h"
#include "instruction_sets.h"
#include "large_pages.h"
#include "roi_pool/cpu_weights.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// The index of a part's dx in the offset and in its cotangent; its dy follows.
DCN_INLINE int64_t OffsetIndex(const PoolSizes& sizes, int64_t roi_index, int64_t part, int64_t class_) {
  return ((roi_index * sizes.part[0] * sizes.part[1] + part) * sizes.classes + class_) * 2;
}

// The offset of an RoI's first part, for one class, or null.
template <typename A>
DCN_INLINE const A* OffsetOfRoi(const PoolSizes& sizes, const Rois& rois, int64_t roi_index, int64_t class_) {
  if (!rois.offset) return nullptr;
  return static_cast<const A*>(rois.offset) + OffsetIndex(sizes, roi_index, 0, class_);
}

// Rounds sums to elements.
template <typename A, typename T>
DCN_NOINLINE void StoreSums(const A* sums, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = T(sums[i]);
}

// A task of the forward and of the offset cotangent is one class of one RoI. Tasks go class by class: the channels of
// one class are a small part of x, which stays in the cache while all RoIs read it. `image` and `out` begin at the
// class's features.
template <typename T>
void PoolRoi(const PoolSizes& sizes, const std::vector<BinIndex>& bins, const Roi<Accumulator<T>>& roi,
             const Accumulator<T>* offset, RoiWeights<Accumulator<T>>& weights, const T* image, Accumulator<T>* sum,
             T* out) {
  using A = Accumulator<T>;
  const int64_t class_features = sizes.class_features(), stride = sizes.groups();
  weights.Start(sizes, roi, offset);
  for (size_t i = 0; i < bins.size(); ++i) {
    const auto bin = weights.At(sizes, bins[i]);
    std::fill_n(sum, class_features, bin.scale == bin.scale ? A(0) : bin.scale);
    for (const auto& y : bin.y) {
      for (const auto& x : bin.x) {
        const T* pixel = image + (y.index * sizes.width + x.index) * sizes.channels + bins[i].group;
        const A weight = bin.scale * y.weight * x.weight;
        if (weight == A(0)) continue;  // 0 times an infinite pixel would be NaN
        if (stride == 1) {
          AddProducts(weight, pixel, class_features, sum);
        } else {
          for (int64_t f = 0; f < class_features; ++f) sum[f] += weight * A(pixel[f * stride]);
        }
      }
    }
    StoreSums(sum, class_features, out);
    out += sizes.features();
  }
}

// Whether all bins read every channel, at profiles that rows and columns of bins share. A pooling is then a product of
// two matrices with the image, and takes two passes: along y into sums for each column, and from there along x.
bool IsSeparable(const PoolSizes& sizes, const Rois& rois) { return !rois.offset && sizes.groups() == 1; }

// The columns of the image that the bins of an RoI read, in ascending order, and sums of the channels for each.
template <typename A>
class ColumnSums {
 public:
  DCN_NOINLINE explicit ColumnSums(const PoolSizes& sizes)
      : channels_(sizes.channels), is_read_(sizes.width), sums_(new A[sizes.width * sizes.channels]) {
    indices_.reserve(sizes.width);
  }

  DCN_NOINLINE void Find(const PoolSizes& sizes, const RoiWeights<A>& weights) {
    int32_t first = int32_t(sizes.width), last = -1;
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      for (const auto& x : weights.Shared(0, column).x) {
        first = std::min(first, x.index);
        last = std::max(last, x.index);
        is_read_[x.index] = 1;
      }
    }
    indices_.clear();
    for (int32_t column = first; column <= last; ++column) {
      if (is_read_[column]) indices_.push_back(column);
      is_read_[column] = 0;
    }
  }

  const std::vector<int32_t>& indices() const { return indices_; }
  A* sum(int32_t column) { return sums_.get() + column * channels_; }

  DCN_INLINE void ClearSums() {
    for (const int32_t column : indices_) std::fill_n(sum(column), channels_, A(0));
  }

 private:
  int64_t channels_;
  std::vector<char> is_read_;
  std::vector<int32_t> indices_;
  std::unique_ptr<A[]> sums_;
};

template <typename T>
void PoolSeparably(const PoolSizes& sizes, const Roi<Accumulator<T>>& roi, RoiWeights<Accumulator<T>>& weights,
                   ColumnSums<Accumulator<T>>& columns, const T* image, Accumulator<T>* sum, T* out) {
  using A = Accumulator<T>;
  const int64_t channels = sizes.channels;
  weights.Start(sizes, roi, nullptr);
  columns.Find(sizes, weights);
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    columns.ClearSums();
    for (const auto& y : weights.Shared(row, 0).y) {
      if (y.weight == A(0)) continue;  // 0 times an infinite pixel would be NaN
      for (const int32_t column : columns.indices()) {
        const T* pixel = image + (y.index * sizes.width + column) * channels;
        AddProducts(y.weight, pixel, channels, columns.sum(column));
      }
    }
    for (int64_t column = 0; column < sizes.output[1]; ++column, out += channels) {
      const auto bin = weights.Shared(row, column);
      std::fill_n(sum, channels, A(0));
      for (const auto& x : bin.x) {
        if (x.weight == A(0)) continue;
        AddProducts(bin.scale * x.weight, columns.sum(x.index), channels, sum);
      }
      StoreSums(sum, channels, out);
    }
  }
}

// A band of an image's rows, which one task of the separable cotangent of x computes. `image` counts the images of all
// batches.
struct Band {
  int64_t image, begin, end;
};

// The transpose of PoolSeparably, in the rows of a band.
template <typename T>
void AddSeparably(const PoolSizes& sizes, const Roi<Accumulator<T>>& roi, RoiWeights<Accumulator<T>>& weights,
                  ColumnSums<Accumulator<T>>& columns, const Band& band, const T* d_roi, Accumulator<T>* d_image) {
  using A = Accumulator<T>;
  const int64_t channels = sizes.channels;
  weights.Start(sizes, roi, nullptr);
  columns.Find(sizes, weights);
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    const Profile<A>& profile = weights.Shared(row, 0).y;
    if (profile.first == profile.last) continue;
    if ((profile.last - 1)->index < band.begin || profile.first->index >= band.end) continue;
    columns.ClearSums();
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      const auto bin = weights.Shared(row, column);
      const T* d = d_roi + (row * sizes.output[1] + column) * channels;
      for (const auto& x : bin.x) {
        if (x.weight == A(0)) continue;  // 0 times an infinite cotangent would be NaN
        AddProducts(bin.scale * x.weight, d, channels, columns.sum(x.index));
      }
    }
    for (const auto& y : profile) {
      if (y.weight == A(0) || y.index < band.begin || y.index >= band.end) continue;
      for (const int32_t column : columns.indices()) {
        A* const out = d_image + (y.index * sizes.width + column) * channels;
        AddProducts(y.weight, columns.sum(column), channels, out);
      }
    }
  }
}

template <typename T>
void XCotangentOfBand(const PoolSizes& sizes, const Rois& rois, const T* d_pooled, Accumulator<T>* d_x,
                      const Band& band) {
  using A = Accumulator<T>;
  const int64_t first_roi = band.image / sizes.images * sizes.rois, row_size = sizes.width * sizes.channels;
  A* d_image = d_x + band.image * sizes.height * row_size;
  std::fill(d_image + band.begin * row_size, d_image + band.end * row_size, A(0));
  RoiWeights<A> weights(sizes, rois);
  ColumnSums<A> columns(sizes);
  for (int64_t roi_index = first_roi; roi_index < first_roi + sizes.rois; ++roi_index) {
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    if (roi.state != RoiState::kValid || roi.image != band.image % sizes.images) continue;
    // A point up to one pixel outside the image reads its border; one more pixel covers rounding.
    const A edge = roi.start[0] + roi.size[0];
    const A first = std::min(roi.start[0], edge) - A(2), last = std::max(roi.start[0], edge) + A(2);
    if (last < A(band.begin) || first > A(band.end)) continue;
    AddSeparably(sizes, roi, weights, columns, band, d_pooled + roi_index * sizes.bins() * sizes.features(), d_image);
  }
}

// The channels of d_x that one task computes: some features in some channel groups of one image.
// No two tasks add to the same element. `image` counts the images of all batches.
struct ChannelBlock {
  int64_t image, first_feature, features, first_group, groups;
};

// Writes the sums of a block, which are contiguous, to d_x.
template <typename A>
void StoreBlock(const PoolSizes& sizes, const ChannelBlock& block, const A* sum, A* d_x) {
  const int64_t pixels = sizes.height * sizes.width;
  A* out = d_x + block.image * pixels * sizes.channels + block.first_feature * sizes.groups() + block.first_group;
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t f = 0; f < block.features; ++f) {
      for (int64_t g = 0; g < block.groups; ++g) out[f * sizes.groups() + g] = sum[g * block.features + f];
    }
    sum += block.groups * block.features;
    out += sizes.channels;
  }
}

template <typename T>
void XCotangentOfBlock(const PoolSizes& sizes, const Rois& rois, const std::vector<BinIndex>& all_bins,
                       const T* d_pooled, Accumulator<T>* d_x, const ChannelBlock& block) {
  using A = Accumulator<T>;
  const int64_t class_features = sizes.class_features();
  const int64_t first_roi = block.image / sizes.images * sizes.rois;
  std::vector<A> sums(sizes.height * sizes.width * block.groups * block.features), d_bin(block.features);
  RoiWeights<A> weights(sizes, rois);
  std::vector<BinIndex> bins;
  for (const BinIndex& bin : all_bins) {
    if (bin.group >= block.first_group && bin.group < block.first_group + block.groups) bins.push_back(bin);
  }
  for (int64_t roi_index = first_roi; roi_index < first_roi + sizes.rois; ++roi_index) {
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    if (roi.state != RoiState::kValid || roi.image != block.image % sizes.images) continue;
    const T* d_roi = d_pooled + roi_index * sizes.bins() * sizes.features();
    for (int64_t begin = 0, end; begin < block.features; begin = end) {
      const int64_t class_ = (block.first_feature + begin) / class_features;
      end = std::min(block.features, (class_ + 1) * class_features - block.first_feature);
      weights.Start(sizes, roi, OffsetOfRoi<A>(sizes, rois, roi_index, class_));
      for (const BinIndex& index : bins) {
        const auto bin = weights.At(sizes, index);
        const T* d = d_roi + (index.row * sizes.output[1] + index.column) * sizes.features() + block.first_feature;
        for (int64_t f = begin; f < end; ++f) d_bin[f] = A(d[f]);
        A* const group_sums = sums.data() + (index.group - block.first_group) * block.features;
        for (const auto& y : bin.y) {
          for (const auto& x : bin.x) {
            const A weight = bin.scale * y.weight * x.weight;
            if (weight == A(0)) continue;  // 0 times an infinite cotangent would be NaN
            A* const sum = group_sums + (y.index * sizes.width + x.index) * block.groups * block.features;
            AddProducts(weight, d_bin.data() + begin, end - begin, sum + begin);
          }
        }
      }
    }
  }
  StoreBlock(sizes, block, sums.data(), d_x);
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

// `image`, `d_roi` and `d_offset` begin at the features and the pair of one class.
template <typename T>
void OffsetCotangentOfRoi(const PoolSizes& sizes, const std::vector<BinIndex>& bins, const Roi<Accumulator<T>>& roi,
                          const Accumulator<T>* offset, RoiWeights<Accumulator<T>>& weights, const T* image,
                          const T* d_roi, Accumulator<T>* d_offset) {
  using A = Accumulator<T>;
  weights.Start(sizes, roi, offset);
  for (size_t i = 0; i < bins.size(); ++i) {
    const auto bin = weights.At(sizes, bins[i]);
    if (bin.scale == A(0)) continue;
    A dy = bin.scale == bin.scale ? A(0) : bin.scale, dx = dy;
    for (const auto& y : bin.y) {
      for (const auto& x : bin.x) {
        const T* pixel = image + (y.index * sizes.width + x.index) * sizes.channels + bins[i].group;
        const A dot = Dot<A>(d_roi + i * sizes.features(), pixel, sizes.groups(), sizes.class_features());
        dy += y.slope * x.weight * dot;
        dx += y.weight * x.slope * dot;
      }
    }
    A* out = d_offset + bins[i].part * 2 * sizes.classes;
    const A scale = bin.scale * A(sizes.trans_std);
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
    using A = Accumulator<T>;
    PreferLargePages(static_cast<T*>(pooled), num_rois * sizes.bins() * sizes.features());
    device.ParallelFor(num_rois * sizes.classes, [&](int64_t task) {
      const int64_t roi_index = task % num_rois, class_ = task / num_rois, features = sizes.class_features();
      const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
      T* out = static_cast<T*>(pooled) + roi_index * sizes.bins() * sizes.features() + class_ * features;
      if (roi.state != RoiState::kValid) {
        const A fill = roi.state == RoiState::kNotFinite ? std::numeric_limits<A>::quiet_NaN() : A(0);
        for (int64_t i = 0; i < sizes.bins(); ++i) std::fill_n(out + i * sizes.features(), features, T(fill));
        return;
      }
      const T* image = ImageOfRoi(sizes, static_cast<const T*>(x), roi_index, roi.image);
      RoiWeights<A> weights(sizes, rois);
      std::vector<A> sum(features);
      if (IsSeparable(sizes, rois)) {
        ColumnSums<A> columns(sizes);
        PoolSeparably(sizes, roi, weights, columns, image, sum.data(), out);
        return;
      }
      PoolRoi(sizes, bins, roi, OffsetOfRoi<A>(sizes, rois, roi_index, class_), weights,
              image + class_ * features * sizes.groups(), sum.data(), out);
    });
  });
  return nullptr;
}

const char* PoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* d_pooled,
                           void* d_x) {
  if (sizes.height * sizes.width * sizes.channels == 0) return nullptr;
  const int64_t images = sizes.batches * sizes.images;
  const int64_t elements = images * sizes.height * sizes.width * sizes.channels;
  if (IsSeparable(sizes, rois)) {
    // Several bands per thread, because the RoIs are not evenly spread. Their number does not affect the result.
    const int64_t wanted = std::min(sizes.height, (4 * device.threads() + images - 1) / std::max<int64_t>(images, 1));
    const int64_t height = (sizes.height + wanted - 1) / std::max<int64_t>(wanted, 1);
    const int64_t bands = (sizes.height + height - 1) / height;
    Dispatch<F16, BF16>(dtype, [&](auto tag) {
      using T = decltype(tag);
      auto* const out = static_cast<Accumulator<T>*>(d_x);
      PreferLargePages(out, elements);
      device.ParallelFor(images * bands, [&](int64_t task) {
        const int64_t begin = task % bands * height;
        XCotangentOfBand(sizes, rois, static_cast<const T*>(d_pooled), out,
                         {task / bands, begin, std::min(begin + height, sizes.height)});
      });
    });
    return nullptr;
  }
  // The approximate number of channels per block; fewer where a thread would have less than four. A class is not split
  // into smaller blocks, because each block computes the weights of its bins anew. A row of channel groups is not
  // split, because its channels are contiguous.
  const int64_t threads = device.threads();
  const int64_t channels = std::clamp<int64_t>(images * sizes.channels / (4 * threads), 8, 32);
  const int64_t features = sizes.features(), groups = sizes.groups();
  const int64_t block_features = std::max({int64_t{1}, channels / groups, std::min(channels, sizes.class_features())});
  const int64_t block_groups = std::min(groups, std::max<int64_t>(sizes.group[1], channels / block_features));
  const int64_t feature_blocks = (features + block_features - 1) / block_features;
  const int64_t group_blocks = (groups + block_groups - 1) / block_groups;
  const std::vector<BinIndex> bins = IndexBins(sizes);
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    auto* const out = static_cast<Accumulator<T>*>(d_x);
    PreferLargePages(out, elements);
    device.ParallelFor(images * group_blocks * feature_blocks, [&](int64_t task) {
      const int64_t f = task % feature_blocks * block_features;
      const int64_t g = task / feature_blocks % group_blocks * block_groups;
      const ChannelBlock block = {task / feature_blocks / group_blocks, f, std::min(block_features, features - f), g,
                                  std::min(block_groups, groups - g)};
      XCotangentOfBlock(sizes, rois, bins, static_cast<const T*>(d_pooled), out, block);
    });
  });
  return nullptr;
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                                const void* d_pooled, void* d_offset) {
  const std::vector<BinIndex> bins = IndexBins(sizes);
  const int64_t num_rois = sizes.batches * sizes.rois, parts = int64_t{sizes.part[0]} * sizes.part[1];
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    device.ParallelFor(num_rois * sizes.classes, [&](int64_t task) {
      const int64_t roi_index = task % num_rois, class_ = task / num_rois, features = sizes.class_features();
      A* out = static_cast<A*>(d_offset) + OffsetIndex(sizes, roi_index, 0, class_);
      for (int64_t part = 0; part < parts; ++part) std::fill_n(out + part * 2 * sizes.classes, 2, A(0));
      const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
      if (roi.state != RoiState::kValid) return;
      const T* image = ImageOfRoi(sizes, static_cast<const T*>(x), roi_index, roi.image);
      const T* d_roi = static_cast<const T*>(d_pooled) + roi_index * sizes.bins() * sizes.features();
      RoiWeights<A> weights(sizes, rois);
      OffsetCotangentOfRoi(sizes, bins, roi, OffsetOfRoi<A>(sizes, rois, roi_index, class_), weights,
                           image + class_ * features * sizes.groups(), d_roi + class_ * features, out);
    });
  });
  return nullptr;
}

DCN_END_TARGET
