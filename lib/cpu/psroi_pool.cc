#include "psroi_pool.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "device.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {
namespace {

// The points of a bin are the product of those along its two axes, and so are their weights: a bin is a sum over the
// pixels touched along y by those touched along x, however many points there are.
template <typename A>
class Profile {
 public:
  struct Touch {
    int32_t pixel;
    A weight, slope;  // summed over the points; the slope is in the position
  };

  explicit Profile(int32_t points) { touches_.reserve(2 * points); }

  DCN_INLINE void Fill(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p, A shift) {
    touches_.clear();
    kept_ = 0;
    for (int32_t i = 0; i < sizes.points[axis]; ++i) {
      const PoolPoint<A> point = LocatePoint(sizes, region, axis, p, i, shift);
      if (!point.kept) continue;
      ++kept_;
      for (int side = 0; side < 2; ++side) Add(point.pixel[side], point.weight(side), point.slope(side));
    }
  }

  const std::vector<Touch>& touches() const { return touches_; }
  int32_t kept() const { return kept_; }

 private:
  // Points go up, so only the last two pixels can come again.
  DCN_INLINE void Add(int32_t pixel, A weight, A slope) {
    const size_t n = touches_.size();
    for (size_t i = n < 2 ? 0 : n - 2; i < n; ++i) {
      if (touches_[i].pixel != pixel) continue;
      touches_[i].weight += weight;
      touches_[i].slope += slope;
      return;
    }
    touches_.push_back({pixel, weight, slope});
  }

  std::vector<Touch> touches_;
  int32_t kept_ = 0;
};

// The bin at (row, column) of a region, for the features of one class.
template <typename A>
struct Bin {
  Profile<A> y, x;
  bool nan = false;
  int64_t part = 0;  // where the bin's shift stands in the region's offsets, by two

  explicit Bin(const PoolSizes& sizes) : y(sizes.points[0]), x(sizes.points[1]) {}

  // `offset` are the region's, or null.
  DCN_INLINE void Locate(const PoolSizes& sizes, const Region<A>& region, const A* offset, int64_t row, int64_t column,
                         int64_t class_) {
    A shift[2] = {0, 0};  // x, y
    if (offset) {
      const int64_t cell = sizes.Scaled(0, row, sizes.part) * sizes.part[1] + sizes.Scaled(1, column, sizes.part);
      part = cell * sizes.classes + class_;
      for (int axis = 0; axis < 2; ++axis) shift[axis] = offset[2 * part + axis] * A(sizes.trans_std);
    }
    nan = shift[0] != shift[0] || shift[1] != shift[1];
    y.Fill(sizes, region, 0, row, shift[1]);
    x.Fill(sizes, region, 1, column, shift[0]);
  }

  A count() const { return A(y.kept()) * A(x.kept()); }
};

// The cell of the groups, (gh, gw) as one number, that a bin reads.
DCN_INLINE int64_t GroupOf(const PoolSizes& sizes, int64_t row, int64_t column) {
  return sizes.Scaled(0, row, sizes.group) * sizes.group[1] + sizes.Scaled(1, column, sizes.group);
}

template <typename A>
DCN_INLINE const A* OffsetsOf(const PoolSizes& sizes, const Regions& regions, int64_t region) {
  if (!regions.offset) return nullptr;
  return static_cast<const A*>(regions.offset) + region * sizes.part[0] * sizes.part[1] * sizes.classes * 2;
}

template <typename A>
DCN_INLINE Region<A> RegionOf(const PoolSizes& sizes, const Regions& regions, int64_t region) {
  return LocateRegion(sizes, static_cast<const A*>(regions.rois) + region * 5);
}

// `region` counts through all batches.
template <typename T>
DCN_INLINE const T* ImageOf(const PoolSizes& sizes, const T* x, int64_t region, int64_t image) {
  return x + (region / sizes.regions * sizes.images + image) * sizes.height * sizes.width * sizes.channels;
}

template <typename T>
DCN_VECTORIZED void PoolRegion(const PoolSizes& sizes, const Regions& regions, const T* x, T* pooled, int64_t index) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  T* out = pooled + index * sizes.bins() * features;
  const Region<A> region = RegionOf<A>(sizes, regions, index);
  if (region.state != RegionState::kPooled) {
    const A fill = region.state == RegionState::kNotFinite ? std::numeric_limits<A>::quiet_NaN() : A(0);
    std::fill_n(out, sizes.bins() * features, T(fill));
    return;
  }
  const T* image = ImageOf(sizes, x, index, region.image);
  const A* offset = OffsetsOf<A>(sizes, regions, index);
  Bin<A> bin(sizes);
  std::vector<A> sums(class_features);
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      for (int64_t class_ = 0; class_ < sizes.classes; ++class_, out += class_features) {
        bin.Locate(sizes, region, offset, row, column, class_);
        std::fill(sums.begin(), sums.end(), bin.nan ? std::numeric_limits<A>::quiet_NaN() : A(0));
        A* sum = sums.data();
        for (const auto& y : bin.y.touches()) {
          for (const auto& x : bin.x.touches()) {
            const T* pixel = image + (y.pixel * sizes.width + x.pixel) * sizes.channels +
                             class_ * class_features * stride + GroupOf(sizes, row, column);
            const A weight = y.weight * x.weight / bin.count();
            if (stride == 1) {
              for (int64_t f = 0; f < class_features; ++f) sum[f] += weight * A(pixel[f]);
            } else {
              for (int64_t f = 0; f < class_features; ++f) sum[f] += weight * A(pixel[f * stride]);
            }
          }
        }
        for (int64_t f = 0; f < class_features; ++f) out[f] = T(sum[f]);
      }
    }
  }
}

// Features that are gathered at once; a task owns these of one image and group, so that no two tasks add to one value.
constexpr int64_t kBlock = 32;

template <typename T>
DCN_VECTORIZED void GatherFeatures(const PoolSizes& sizes, const Regions& regions, const T* d_pooled,
                                   Accumulator<T>* d_x, int64_t batch, int64_t image, int64_t group, int64_t first) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features();
  const int64_t block = std::min(kBlock, features - first), pixels = sizes.height * sizes.width;
  std::vector<A> sums(pixels * block, A(0));
  Bin<A> bin(sizes);
  for (int64_t index = batch * sizes.regions; index < (batch + 1) * sizes.regions; ++index) {
    const Region<A> region = RegionOf<A>(sizes, regions, index);
    if (region.state != RegionState::kPooled || region.image != image) continue;
    const A* offset = OffsetsOf<A>(sizes, regions, index);
    for (int64_t row = 0; row < sizes.output[0]; ++row) {
      for (int64_t column = 0; column < sizes.output[1]; ++column) {
        if (GroupOf(sizes, row, column) != group) continue;
        const T* d = d_pooled + ((index * sizes.output[0] + row) * sizes.output[1] + column) * features;
        for (int64_t class_ = first / class_features; class_ * class_features < first + block; ++class_) {
          const int64_t begin = std::max(first, class_ * class_features);
          const int64_t end = std::min(first + block, (class_ + 1) * class_features);
          bin.Locate(sizes, region, offset, row, column, class_);
          for (const auto& y : bin.y.touches()) {
            for (const auto& x : bin.x.touches()) {
              A* sum = sums.data() + (y.pixel * sizes.width + x.pixel) * block;
              const A weight = y.weight * x.weight / bin.count();
              for (int64_t f = begin; f < end; ++f) sum[f - first] += weight * A(d[f]);
            }
          }
        }
      }
    }
  }
  A* out = d_x + (batch * sizes.images + image) * pixels * sizes.channels + first * sizes.groups() + group;
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t f = 0; f < block; ++f) {
      out[pixel * sizes.channels + f * sizes.groups()] = sums[pixel * block + f];
    }
  }
}

template <typename T>
DCN_VECTORIZED void OffsetCotangentOfRegion(const PoolSizes& sizes, const Regions& regions, const T* x,
                                            const T* d_pooled, Accumulator<T>* d_offset, int64_t index) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  const int64_t offsets = int64_t{sizes.part[0]} * sizes.part[1] * sizes.classes * 2;
  A* out = d_offset + index * offsets;
  std::fill_n(out, offsets, A(0));
  const Region<A> region = RegionOf<A>(sizes, regions, index);
  if (region.state != RegionState::kPooled) return;
  const T* image = ImageOf(sizes, x, index, region.image);
  const T* d = d_pooled + index * sizes.bins() * features;
  const A* offset = OffsetsOf<A>(sizes, regions, index);
  Bin<A> bin(sizes);
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      for (int64_t class_ = 0; class_ < sizes.classes; ++class_, d += class_features) {
        bin.Locate(sizes, region, offset, row, column, class_);
        A dy = 0, dx = 0;
        for (const auto& y : bin.y.touches()) {
          for (const auto& x : bin.x.touches()) {
            const T* pixel = image + (y.pixel * sizes.width + x.pixel) * sizes.channels +
                             class_ * class_features * stride + GroupOf(sizes, row, column);
            A dot = 0;
            for (int64_t f = 0; f < class_features; ++f) dot += A(d[f]) * A(pixel[f * stride]);
            dy += y.slope * x.weight * dot;
            dx += y.weight * x.slope * dot;
          }
        }
        if (bin.nan) {
          dy = dx = std::numeric_limits<A>::quiet_NaN();
        } else if (bin.count() == A(0)) {
          continue;
        }
        const A scale = A(sizes.trans_std) / std::max(bin.count(), A(1));
        out[2 * bin.part] += dx * region.extent[1] * scale;
        out[2 * bin.part + 1] += dy * region.extent[0] * scale;
      }
    }
  }
}

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions, const void* x,
                 void* pooled) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.regions, [&](int64_t region) {
      PoolRegion(sizes, regions, static_cast<const T*>(x), static_cast<T*>(pooled), region);
    });
  });
  return nullptr;
}

const char* PoolInputCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                               const void* d_pooled, void* d_x) {
  const int64_t groups = sizes.groups(), blocks = (sizes.features() + kBlock - 1) / kBlock;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.images * groups * blocks, [&](int64_t task) {
      const int64_t first = task % blocks * kBlock, group = task / blocks % groups, image = task / blocks / groups;
      GatherFeatures(sizes, regions, static_cast<const T*>(d_pooled), static_cast<Accumulator<T>*>(d_x),
                     image / sizes.images, image % sizes.images, group, first);
    });
  });
  return nullptr;
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                                const void* x, const void* d_pooled, void* d_offset) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.regions, [&](int64_t region) {
      OffsetCotangentOfRegion(sizes, regions, static_cast<const T*>(x), static_cast<const T*>(d_pooled),
                              static_cast<Accumulator<T>*>(d_offset), region);
    });
  });
  return nullptr;
}

}  // namespace dcn
