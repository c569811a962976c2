#include "psroi_pool.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "device.h"
#include "launch.h"

namespace dcn {
namespace {

template <typename A>
__device__ Region<A> RegionOf(const PoolSizes& sizes, const Regions& regions, int64_t region) {
  return LocateRegion(sizes, static_cast<const A*>(regions.rois) + region * 5);
}

// Where the offset of a bin stands in the offsets of all, by two.
__device__ int64_t PartOf(const PoolSizes& sizes, int64_t region, int64_t row, int64_t column, int64_t class_) {
  const int64_t y = sizes.Scaled(0, row, sizes.part), x = sizes.Scaled(1, column, sizes.part);
  return ((region * sizes.part[0] + y) * sizes.part[1] + x) * sizes.classes + class_;
}

// How far the bin moves along an axis, as a fraction of the region.
template <typename A>
__device__ A ShiftOf(const PoolSizes& sizes, const Regions& regions, int axis, int64_t part) {
  return regions.offset ? static_cast<const A*>(regions.offset)[2 * part + 1 - axis] * A(sizes.trans_std) : A(0);
}

template <typename A>
__device__ int32_t CountKept(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p, A shift) {
  int32_t kept = 0;
  for (int32_t i = 0; i < sizes.points[axis]; ++i) kept += LocatePoint(sizes, region, axis, p, i, shift).kept;
  return kept;
}

// The cell of the groups that a bin reads, as one number.
__device__ int64_t GroupOf(const PoolSizes& sizes, int64_t row, int64_t column) {
  return sizes.Scaled(0, row, sizes.group) * sizes.group[1] + sizes.Scaled(1, column, sizes.group);
}

// A thread for a feature of a bin.
template <typename T>
__global__ void PoolKernel(PoolSizes sizes, Regions regions, const T* x, T* pooled) {
  using A = Accumulator<T>;
  const int64_t features = sizes.features(), n = sizes.batches * sizes.regions * sizes.bins() * features;
  for (int64_t thing = FirstThing(); thing < n; thing += ThingsAtOnce()) {
    const int64_t f = thing % features, bin = thing / features % sizes.bins(), index = thing / features / sizes.bins();
    const int64_t row = bin / sizes.output[1], column = bin % sizes.output[1];
    const Region<A> region = RegionOf<A>(sizes, regions, index);
    if (region.state != RegionState::kPooled) {
      pooled[thing] = T(region.state == RegionState::kNotFinite ? A(NAN) : A(0));
      continue;
    }
    const int64_t part = PartOf(sizes, index, row, column, f / sizes.class_features());
    const A shift_y = ShiftOf<A>(sizes, regions, 0, part), shift_x = ShiftOf<A>(sizes, regions, 1, part);
    const int64_t image = (index / sizes.regions * sizes.images + region.image) * sizes.height;
    const int64_t channel = f * sizes.groups() + GroupOf(sizes, row, column);
    A sum = shift_x != shift_x || shift_y != shift_y ? A(NAN) : A(0);
    int32_t count = 0;
    for (int32_t iy = 0; iy < sizes.points[0]; ++iy) {
      const PoolPoint<A> y = LocatePoint(sizes, region, 0, row, iy, shift_y);
      if (!y.kept) continue;
      for (int32_t ix = 0; ix < sizes.points[1]; ++ix) {
        const PoolPoint<A> x_ = LocatePoint(sizes, region, 1, column, ix, shift_x);
        if (!x_.kept) continue;
        ++count;
        for (int corner = 0; corner < 4; ++corner) {
          const int i = corner / 2, j = corner % 2;
          const int64_t pixel = (image + y.pixel[i]) * sizes.width + x_.pixel[j];
          sum += y.weight(i) * x_.weight(j) * A(x[pixel * sizes.channels + channel]);
        }
      }
    }
    pooled[thing] = T(sum / A(count > 0 ? count : 1));
  }
}

// A thread for a channel of a row of pixels, which it alone adds to, region by region.
template <typename T>
__global__ void InputCotangentKernel(PoolSizes sizes, Regions regions, const T* d_pooled, Accumulator<T>* d_x) {
  using A = Accumulator<T>;
  const int64_t n = sizes.batches * sizes.images * sizes.height * sizes.channels;
  for (int64_t thing = FirstThing(); thing < n; thing += ThingsAtOnce()) {
    const int64_t channel = thing % sizes.channels, line = thing / sizes.channels, image_row = line % sizes.height;
    const int64_t image = line / sizes.height % sizes.images, batch = line / sizes.height / sizes.images;
    const int64_t f = channel / sizes.groups(), group = channel % sizes.groups();
    A* out = d_x + line * sizes.width * sizes.channels + channel;
    for (int64_t x = 0; x < sizes.width; ++x) out[x * sizes.channels] = A(0);
    for (int64_t index = batch * sizes.regions; index < (batch + 1) * sizes.regions; ++index) {
      const Region<A> region = RegionOf<A>(sizes, regions, index);
      if (region.state != RegionState::kPooled || region.image != image) continue;
      for (int64_t bin = 0; bin < sizes.bins(); ++bin) {
        const int64_t row = bin / sizes.output[1], column = bin % sizes.output[1];
        if (GroupOf(sizes, row, column) != group) continue;
        const int64_t part = PartOf(sizes, index, row, column, f / sizes.class_features());
        const A shift_y = ShiftOf<A>(sizes, regions, 0, part), shift_x = ShiftOf<A>(sizes, regions, 1, part);
        A weight_y = 0;
        int32_t kept_y = 0;
        for (int32_t iy = 0; iy < sizes.points[0]; ++iy) {
          const PoolPoint<A> y = LocatePoint(sizes, region, 0, row, iy, shift_y);
          kept_y += y.kept;
          for (int i = 0; i < 2; ++i) {
            if (y.kept && y.pixel[i] == image_row) weight_y += y.weight(i);
          }
        }
        if (weight_y == A(0)) continue;
        const int32_t kept_x = CountKept(sizes, region, 1, column, shift_x);
        const A d = A(d_pooled[(index * sizes.bins() + bin) * sizes.features() + f]) * weight_y;
        for (int32_t ix = 0; ix < sizes.points[1]; ++ix) {
          const PoolPoint<A> x = LocatePoint(sizes, region, 1, column, ix, shift_x);
          for (int j = 0; j < 2; ++j) {
            if (x.kept) out[x.pixel[j] * sizes.channels] += d * x.weight(j) / (A(kept_y) * A(kept_x));
          }
        }
      }
    }
  }
}

// A thread for a part's offset of one class.
template <typename T>
__global__ void OffsetCotangentKernel(PoolSizes sizes, Regions regions, const T* x, const T* d_pooled,
                                      Accumulator<T>* d_offset) {
  using A = Accumulator<T>;
  const int64_t parts = int64_t{sizes.part[0]} * sizes.part[1] * sizes.classes;
  const int64_t n = sizes.batches * sizes.regions * parts;
  for (int64_t thing = FirstThing(); thing < n; thing += ThingsAtOnce()) {
    const int64_t index = thing / parts, class_ = thing % sizes.classes;
    const Region<A> region = RegionOf<A>(sizes, regions, index);
    if (region.state != RegionState::kPooled) {
      d_offset[2 * thing] = d_offset[2 * thing + 1] = A(0);
      continue;
    }
    const A shift_y = ShiftOf<A>(sizes, regions, 0, thing), shift_x = ShiftOf<A>(sizes, regions, 1, thing);
    const bool nan = shift_x != shift_x || shift_y != shift_y;
    const int64_t image = (index / sizes.regions * sizes.images + region.image) * sizes.height;
    A dy = 0, dx = 0;
    for (int64_t bin = 0; bin < sizes.bins(); ++bin) {
      const int64_t row = bin / sizes.output[1], column = bin % sizes.output[1];
      if (PartOf(sizes, index, row, column, class_) != thing) continue;
      if (nan) dy = dx = A(NAN);
      const A count = A(CountKept(sizes, region, 0, row, shift_y)) * A(CountKept(sizes, region, 1, column, shift_x));
      if (count == A(0)) continue;
      const T* d = d_pooled + (index * sizes.bins() + bin) * sizes.features();
      for (int32_t iy = 0; iy < sizes.points[0]; ++iy) {
        const PoolPoint<A> y = LocatePoint(sizes, region, 0, row, iy, shift_y);
        if (!y.kept) continue;
        for (int32_t ix = 0; ix < sizes.points[1]; ++ix) {
          const PoolPoint<A> x_ = LocatePoint(sizes, region, 1, column, ix, shift_x);
          if (!x_.kept) continue;
          for (int corner = 0; corner < 4; ++corner) {
            const int i = corner / 2, j = corner % 2;
            const T* pixel =
                x + ((image + y.pixel[i]) * sizes.width + x_.pixel[j]) * sizes.channels + GroupOf(sizes, row, column);
            A dot = 0;
            for (int64_t f = class_ * sizes.class_features(); f < (class_ + 1) * sizes.class_features(); ++f) {
              dot += A(d[f]) * A(pixel[f * sizes.groups()]);
            }
            dy += y.slope(i) * x_.weight(j) * dot / count;
            dx += y.weight(i) * x_.slope(j) * dot / count;
          }
        }
      }
    }
    d_offset[2 * thing] = dx * region.extent[1] * A(sizes.trans_std);
    d_offset[2 * thing + 1] = dy * region.extent[0] * A(sizes.trans_std);
  }
}

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions, const void* x,
                 void* pooled) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t n = sizes.batches * sizes.regions * sizes.bins() * sizes.features();
    return Launch(device, PoolKernel<T>, BlocksFor(n), sizes, regions, static_cast<const T*>(x),
                  static_cast<T*>(pooled));
  });
}

const char* PoolInputCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                               const void* d_pooled, void* d_x) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t n = sizes.batches * sizes.images * sizes.height * sizes.channels;
    return Launch(device, InputCotangentKernel<T>, BlocksFor(n), sizes, regions, static_cast<const T*>(d_pooled),
                  static_cast<Accumulator<T>*>(d_x));
  });
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                                const void* x, const void* d_pooled, void* d_offset) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t n = sizes.batches * sizes.regions * sizes.part[0] * sizes.part[1] * sizes.classes;
    return Launch(device, OffsetCotangentKernel<T>, BlocksFor(n), sizes, regions, static_cast<const T*>(x),
                  static_cast<const T*>(d_pooled), static_cast<Accumulator<T>*>(d_offset));
  });
}

}  // namespace dcn
