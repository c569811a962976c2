#include "psroi_pool.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "device.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {
namespace {

// Where a bin lies, and which cell of the parts and of the groups it takes, as one number each.
struct Cell {
  int64_t row, column, part, group;
};

// Those of all bins in turn, made once a call, for they take divisions. None where no memory says that they are few.
std::vector<Cell> CellsOf(const PoolSizes& sizes) {
  if (sizes.batches * sizes.regions == 0 || sizes.features() == 0) return {};
  const auto within = [&](int64_t row, int64_t column, const int32_t size[2]) {
    return sizes.Scaled(0, row, size) * size[1] + sizes.Scaled(1, column, size);
  };
  std::vector<Cell> cells;
  for (int64_t row = 0; row < sizes.output[0]; ++row) {
    for (int64_t column = 0; column < sizes.output[1]; ++column) {
      cells.push_back({row, column, within(row, column, sizes.part), within(row, column, sizes.group)});
    }
  }
  return cells;
}

// The pixels that a bin touches along an axis.
template <typename A>
class Profile {
 public:
  struct Touch {
    int32_t pixel;
    A weight, slope;  // summed over the points; the slope is in the position
  };

  // Along an axis of `size` pixels.
  Profile(int32_t points, int64_t size) : touches_(std::min(2 * int64_t{points}, size)), end_(touches_.data()) {}

  DCN_INLINE void Fill(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p, A shift) {
    end_ = touches_.data();
    kept_ = ForEachTouch(sizes, region, axis, p, shift,
                         [&](int32_t pixel, A weight, A slope) { *end_++ = {pixel, weight, slope}; });
  }

  const Touch* begin() const { return touches_.data(); }
  const Touch* end() const { return end_; }
  int32_t kept() const { return kept_; }

 private:
  std::vector<Touch> touches_;
  Touch* end_;
  int32_t kept_ = 0;
};

// A bin of a region, for the features of one class.
template <typename A>
struct Bin {
  Profile<A> y, x;
  bool nan = false;
  A scale = 0;  // one over the number of points kept, or 0

  explicit Bin(const PoolSizes& sizes) : y(sizes.points[0], sizes.height), x(sizes.points[1], sizes.width) {}

  // `offset` is that of the bin's part, x before y, or null.
  DCN_INLINE void Locate(const PoolSizes& sizes, const Region<A>& region, const Cell& cell, const A* offset) {
    const A shift_x = offset ? offset[0] * A(sizes.trans_std) : A(0);
    const A shift_y = offset ? offset[1] * A(sizes.trans_std) : A(0);
    nan = shift_x != shift_x || shift_y != shift_y;
    y.Fill(sizes, region, 0, cell.row, shift_y);
    x.Fill(sizes, region, 1, cell.column, shift_x);
    const A count = A(y.kept()) * A(x.kept());
    scale = count > A(0) ? A(1) / count : A(0);
  }
};

// What a task needs beside its operands. Made outside the vectorized functions, for an exception does not come out of
// their clones.
template <typename A>
struct Scratch {
  Bin<A> bin;
  std::vector<A> sums, d;

  Scratch(const PoolSizes& sizes, int64_t sums, int64_t d) : bin(sizes), sums(sums), d(d) {}
};

template <typename A>
DCN_INLINE Region<A> RegionOf(const PoolSizes& sizes, const Regions& regions, int64_t region) {
  return LocateRegion(sizes, static_cast<const A*>(regions.rois) + region * 5);
}

// Where a part's offset stands in the offsets, or in their cotangent, of all regions.
DCN_INLINE int64_t OffsetIndex(const PoolSizes& sizes, int64_t region, int64_t part, int64_t class_) {
  return ((region * sizes.part[0] * sizes.part[1] + part) * sizes.classes + class_) * 2;
}

template <typename A>
DCN_INLINE const A* OffsetOf(const PoolSizes& sizes, const Regions& regions, int64_t region, int64_t part,
                             int64_t class_) {
  if (!regions.offset) return nullptr;
  return static_cast<const A*>(regions.offset) + OffsetIndex(sizes, region, part, class_);
}

// `region` counts through all batches.
template <typename T>
DCN_INLINE const T* ImageOf(const PoolSizes& sizes, const T* x, int64_t region, int64_t image) {
  return x + (region / sizes.regions * sizes.images + image) * sizes.height * sizes.width * sizes.channels;
}

// A task of the result and of the offset cotangent is one class of one region. Tasks go class by class: the channels of
// one are a small part of x, which stays in the cache while all regions read it.
template <typename T>
DCN_VECTORIZED void PoolRegion(const PoolSizes& sizes, const Regions& regions, const std::vector<Cell>& cells,
                               const T* x, T* pooled, int64_t index, int64_t class_, Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  const Region<A> region = RegionOf<A>(sizes, regions, index);
  T* out = pooled + index * sizes.bins() * features + class_ * class_features;
  if (region.state != RegionState::kPooled) {
    const A fill = region.state == RegionState::kNotFinite ? std::numeric_limits<A>::quiet_NaN() : A(0);
    for (int64_t bin = 0; bin < sizes.bins(); ++bin) std::fill_n(out + bin * features, class_features, T(fill));
    return;
  }
  const T* image = ImageOf(sizes, x, index, region.image) + class_ * class_features * stride;
  Bin<A>& bin = scratch.bin;
  A* sum = scratch.sums.data();
  for (const Cell& cell : cells) {
    bin.Locate(sizes, region, cell, OffsetOf<A>(sizes, regions, index, cell.part, class_));
    std::fill_n(sum, class_features, bin.nan ? std::numeric_limits<A>::quiet_NaN() : A(0));
    for (const auto& y : bin.y) {
      for (const auto& x : bin.x) {
        const T* pixel = image + (y.pixel * sizes.width + x.pixel) * sizes.channels + cell.group;
        const A weight = bin.scale * y.weight * x.weight;
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

// What a task of the input cotangent owns, so that no two add to one value: of an image, which counts through all
// batches, some features in some groups.
struct Block {
  int64_t image, first_feature, features, first_group, groups;
};

template <typename T>
DCN_VECTORIZED void GatherBlock(const PoolSizes& sizes, const Regions& regions, const std::vector<Cell>& cells,
                                const T* d_pooled, Accumulator<T>* d_x, const Block& block,
                                Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features();
  const int64_t pixels = sizes.height * sizes.width;
  const int64_t first_region = block.image / sizes.images * sizes.regions;
  A *sums = scratch.sums.data(), *d = scratch.d.data();
  Bin<A>& bin = scratch.bin;
  for (int64_t index = first_region; index < first_region + sizes.regions; ++index) {
    const Region<A> region = RegionOf<A>(sizes, regions, index);
    if (region.state != RegionState::kPooled || region.image != block.image % sizes.images) continue;
    const T* from = d_pooled + index * sizes.bins() * features + block.first_feature;
    for (int64_t i = 0; i < sizes.bins(); ++i) {
      const int64_t group = cells[i].group - block.first_group;
      if (group < 0 || group >= block.groups) continue;
      for (int64_t f = 0; f < block.features; ++f) d[f] = A(from[i * features + f]);
      for (int64_t begin = 0, end; begin < block.features; begin = end) {
        const int64_t class_ = (block.first_feature + begin) / class_features;
        end = std::min(block.features, (class_ + 1) * class_features - block.first_feature);
        bin.Locate(sizes, region, cells[i], OffsetOf<A>(sizes, regions, index, cells[i].part, class_));
        for (const auto& y : bin.y) {
          for (const auto& x : bin.x) {
            A* sum = sums + ((y.pixel * sizes.width + x.pixel) * block.groups + group) * block.features;
            const A weight = bin.scale * y.weight * x.weight;
            for (int64_t f = begin; f < end; ++f) sum[f] += weight * d[f];
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

// The same for every instruction set: a sum for each of 16 lanes, and the lanes' sums in pairs.
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
DCN_VECTORIZED void OffsetCotangentOfRegion(const PoolSizes& sizes, const Regions& regions,
                                            const std::vector<Cell>& cells, const T* x, const T* d_pooled,
                                            Accumulator<T>* d_offset, int64_t index, int64_t class_,
                                            Scratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), class_features = sizes.class_features(), stride = sizes.groups();
  const int64_t parts = int64_t{sizes.part[0]} * sizes.part[1];
  for (int64_t part = 0; part < parts; ++part) {
    std::fill_n(d_offset + OffsetIndex(sizes, index, part, class_), 2, A(0));
  }
  const Region<A> region = RegionOf<A>(sizes, regions, index);
  if (region.state != RegionState::kPooled) return;
  const T* image = ImageOf(sizes, x, index, region.image) + class_ * class_features * stride;
  const T* d = d_pooled + index * sizes.bins() * features + class_ * class_features;
  Bin<A>& bin = scratch.bin;
  for (size_t i = 0; i < cells.size(); ++i) {
    bin.Locate(sizes, region, cells[i], OffsetOf<A>(sizes, regions, index, cells[i].part, class_));
    if (bin.scale == A(0) && !bin.nan) continue;
    A dy = bin.nan ? std::numeric_limits<A>::quiet_NaN() : A(0), dx = dy;
    for (const auto& y : bin.y) {
      for (const auto& x : bin.x) {
        const T* pixel = image + (y.pixel * sizes.width + x.pixel) * sizes.channels + cells[i].group;
        const A dot = Dot<A>(d + i * features, pixel, stride, class_features);
        dy += y.slope * x.weight * dot;
        dx += y.weight * x.slope * dot;
      }
    }
    A* out = d_offset + OffsetIndex(sizes, index, cells[i].part, class_);
    const A scale = bin.scale * A(sizes.trans_std);
    out[0] += dx * region.extent[1] * scale;
    out[1] += dy * region.extent[0] * scale;
  }
}

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions, const void* x,
                 void* pooled) {
  if (sizes.features() == 0) return nullptr;
  const std::vector<Cell> cells = CellsOf(sizes);
  const int64_t n = sizes.batches * sizes.regions;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(n * sizes.classes, [&](int64_t task) {
      Scratch<Accumulator<T>> scratch(sizes, sizes.class_features(), 0);
      PoolRegion(sizes, regions, cells, static_cast<const T*>(x), static_cast<T*>(pooled), task % n, task / n, scratch);
    });
  });
  return nullptr;
}

const char* PoolInputCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                               const void* d_pooled, void* d_x) {
  if (sizes.height * sizes.width == 0) return nullptr;
  // About as many channels make a block, fewer where there would be too few blocks. A class is not cut smaller, for
  // each piece locates its bins anew; nor is a row of groups, whose channels stand side by side.
  const int64_t channels = std::clamp<int64_t>(sizes.batches * sizes.images * sizes.channels / 8, 8, 32);
  const int64_t features = sizes.features(), groups = sizes.groups();
  const int64_t block_features = std::max({int64_t{1}, channels / groups, std::min(channels, sizes.class_features())});
  const int64_t block_groups = std::min(groups, std::max<int64_t>(sizes.group[1], channels / block_features));
  const int64_t across = (features + block_features - 1) / block_features;
  const int64_t down = (groups + block_groups - 1) / block_groups;
  const std::vector<Cell> cells = CellsOf(sizes);
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(sizes.batches * sizes.images * down * across, [&](int64_t task) {
      const int64_t f = task % across * block_features, g = task / across % down * block_groups;
      const Block block = {task / across / down, f, std::min(block_features, features - f), g,
                           std::min(block_groups, groups - g)};
      Scratch<Accumulator<T>> scratch(sizes, sizes.height * sizes.width * block.groups * block.features,
                                      block.features);
      GatherBlock(sizes, regions, cells, static_cast<const T*>(d_pooled), static_cast<Accumulator<T>*>(d_x), block,
                  scratch);
    });
  });
  return nullptr;
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                                const void* x, const void* d_pooled, void* d_offset) {
  const std::vector<Cell> cells = CellsOf(sizes);
  const int64_t n = sizes.batches * sizes.regions;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    device.ParallelFor(n * sizes.classes, [&](int64_t task) {
      Scratch<Accumulator<T>> scratch(sizes, 0, 0);
      OffsetCotangentOfRegion(sizes, regions, cells, static_cast<const T*>(x), static_cast<const T*>(d_pooled),
                              static_cast<Accumulator<T>*>(d_offset), task % n, task / n, scratch);
    });
  });
  return nullptr;
}

}  // namespace dcn
