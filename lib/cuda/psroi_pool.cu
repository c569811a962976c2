#include "psroi_pool.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "device.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

template <typename A>
__device__ Region<A> RegionOf(const PoolSizes& sizes, const Regions& regions, int64_t region) {
  return LocateRegion(sizes, static_cast<const A*>(regions.rois) + region * 5);
}

// The first image row of a region, which counts through all batches, among the rows of all images.
template <typename A>
__device__ int64_t ImageRow(const PoolSizes& sizes, const Region<A>& region, int64_t index) {
  return (index / sizes.regions * sizes.images + region.image) * sizes.height;
}

// The number of a part's offset of one class among those of all regions.
__device__ int64_t PartOf(const PoolSizes& sizes, int64_t region, int64_t row, int64_t column, int64_t class_) {
  const int64_t y = sizes.Scaled(0, row, sizes.part), x = sizes.Scaled(1, column, sizes.part);
  return ((region * sizes.part[0] + y) * sizes.part[1] + x) * sizes.classes + class_;
}

// The cell of the groups that a bin reads, as one number.
__device__ int64_t GroupOf(const PoolSizes& sizes, int64_t row, int64_t column) {
  return sizes.Scaled(0, row, sizes.group) * sizes.group[1] + sizes.Scaled(1, column, sizes.group);
}

// How far the bins of a part move along an axis, as a fraction of the region.
template <typename A>
__device__ A ShiftOf(const PoolSizes& sizes, const Regions& regions, int axis, int64_t part) {
  return regions.offset ? static_cast<const A*>(regions.offset)[2 * part + 1 - axis] * A(sizes.trans_std) : A(0);
}

// Of an axis' bins, those that lie in one of `size` cells: of the parts, or of the groups.
struct Range {
  int64_t begin, end;

  __device__ int64_t size() const { return end - begin; }
};

__device__ Range BinsOf(const PoolSizes& sizes, int axis, const int32_t size[2], int64_t cell) {
  const int64_t bins = sizes.output[axis], cells = size[axis];
  return {(cell * bins + cells - 1) / cells, ((cell + 1) * bins + cells - 1) / cells};
}

// A thread for N features of a bin.
template <typename T, int N>
__global__ void PoolKernel(PoolSizes sizes, Regions regions, const T* x, T* pooled) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.features() / N, n = sizes.batches * sizes.regions * sizes.bins() * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t f = work_item % vectors * N, bin = work_item / vectors % sizes.bins(),
                  index = work_item / vectors / sizes.bins();
    const int64_t row = bin / sizes.output[1], column = bin % sizes.output[1];
    const Region<A> region = RegionOf<A>(sizes, regions, index);
    A sum[N];
    for (int v = 0; v < N; ++v) sum[v] = region.state == RegionState::kNotFinite ? A(NAN) : A(0);
    if (region.state == RegionState::kPooled) {
      const int64_t part = PartOf(sizes, index, row, column, f / sizes.class_features());
      const A shift_y = ShiftOf<A>(sizes, regions, 0, part), shift_x = ShiftOf<A>(sizes, regions, 1, part);
      if (shift_x != shift_x || shift_y != shift_y) {
        for (int v = 0; v < N; ++v) sum[v] = A(NAN);
      }
      const int64_t first_row = ImageRow(sizes, region, index);
      const T* channel = x + f * sizes.groups() + GroupOf(sizes, row, column);
      int32_t kept_x = 0;
      const int32_t kept_y = ForEachTouch(sizes, region, 0, row, shift_y, [&](int32_t y, A weight_y, A) {
        const T* line = channel + (first_row + y) * sizes.width * sizes.channels;
        kept_x = ForEachTouch(sizes, region, 1, column, shift_x, [&](int32_t x_, A weight_x, A) {
          const Vector<T, N> pixel = AsVector<N>(line + x_ * sizes.channels);
          for (int v = 0; v < N; ++v) sum[v] += weight_y * weight_x * A(pixel.value[v]);
        });
      });
      const A count = A(kept_y) * A(kept_x);
      for (int v = 0; v < N; ++v) sum[v] /= count > A(0) ? count : A(1);
    }
    Vector<T, N> out;
    for (int v = 0; v < N; ++v) out.value[v] = T(sum[v]);
    AsVector<N>(pooled + work_item * N) = out;
  }
}

// A warp of the input cotangent owns kColumns pixels of a row, as many as registers have room for, a block kRows by
// kAcross such pieces, and each lane N channels there, so that no two threads add to one value.
template <typename A>
constexpr int kColumns = 32 / sizeof(A);
constexpr int kRows = 4, kAcross = kThreads / kWarp / kRows;

// Where a bin's points begin and end along an axis.
template <typename A>
struct Reach {
  A first, last;

  __device__ Reach(const PoolSizes& sizes, const Region<A>& region, int axis, int64_t p, A shift)
      : first(region.start[axis] + A(p) * region.bin[axis] + shift * region.extent[axis]),
        last(first + A(sizes.points[axis]) * region.step[axis]) {}

  // Whether it may touch pixels from `begin` to `end`; a point that rounds beyond `last` still does.
  __device__ bool Touches(int64_t begin, int64_t end) const { return last > A(begin - 2) && first < A(end + 1); }
};

// The block takes the bins that may touch its pixels in turn, as many as it has threads at a time. Where several groups
// or classes are side by side, a lane's channels have bins and offsets of their own: then the k-th bin of every group
// is taken at once, and each lane looks whether its own touches.
template <typename T, int N>
__global__ __launch_bounds__(kThreads, 2) void InputCotangentKernel(PoolSizes sizes, Regions regions, const T* d_pooled,
                                                                    Accumulator<T>* d_x) {
  using A = Accumulator<T>;
  constexpr int kOwned = kColumns<A>;
  __shared__ int64_t list[kThreads];
  __shared__ int32_t counts[kThreads / kWarp];
  const bool alike = sizes.groups() == 1 && sizes.classes == 1;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t group_rows = (sizes.output[0] + sizes.group[0] - 1) / sizes.group[0];
  const int64_t group_columns = (sizes.output[1] + sizes.group[1] - 1) / sizes.group[1];
  const int64_t group_bins = group_rows * group_columns, items = sizes.regions * group_bins;
  const int64_t chunks = (sizes.channels + kWarp * N - 1) / (kWarp * N);
  const int64_t across = (sizes.width + kOwned * kAcross - 1) / (kOwned * kAcross);
  const int64_t down = (sizes.height + kRows - 1) / kRows;
  const int64_t blocks = sizes.batches * sizes.images * down * across * chunks;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t image = block / chunks / across / down, batch = image / sizes.images;
    const int64_t tile_y = block / chunks / across % down * kRows;
    const int64_t tile_x = block / chunks % across * kOwned * kAcross;
    const int64_t y = tile_y + warp / kAcross, x = tile_x + warp % kAcross * kOwned;
    const int64_t channel = (block % chunks * kWarp + lane) * N;
    const bool owns = channel < sizes.channels && y < sizes.height;
    const int64_t f = channel / sizes.groups(), group = channel % sizes.groups();
    const int64_t class_ = f / sizes.class_features();
    const Range rows = BinsOf(sizes, 0, sizes.group, group / sizes.group[1]);
    const Range columns = BinsOf(sizes, 1, sizes.group, group % sizes.group[1]);
    Vector<A, N> sum[kOwned] = {};
    for (int64_t first_item = 0; first_item < items; first_item += kThreads) {
      const int64_t item = first_item + threadIdx.x, index = batch * sizes.regions + item / group_bins;
      bool touches = false;
      if (item < items) {
        const Region<A> region = RegionOf<A>(sizes, regions, index);
        touches = region.state == RegionState::kPooled && region.image == image % sizes.images;
        if (touches && alike) {
          const int64_t row = item % group_bins / group_columns, column = item % group_columns;
          const int64_t part = PartOf(sizes, index, row, column, 0);
          const Reach<A> reach_y(sizes, region, 0, row, ShiftOf<A>(sizes, regions, 0, part));
          const Reach<A> reach_x(sizes, region, 1, column, ShiftOf<A>(sizes, regions, 1, part));
          touches = reach_y.Touches(tile_y, tile_y + kRows) && reach_x.Touches(tile_x, tile_x + kOwned * kAcross);
        }
      }
      const unsigned votes = __ballot_sync(kWholeWarp, touches);
      if (lane == 0) counts[warp] = __popc(votes);
      __syncthreads();
      int place = __popc(votes & ((1u << lane) - 1)), listed = 0;
      for (int other = 0; other < kThreads / kWarp; ++other) {
        if (other < warp) place += counts[other];
        listed += counts[other];
      }
      if (touches) list[place] = item;
      __syncthreads();
      for (int entry = 0; owns && entry < listed; ++entry) {
        const int64_t index = batch * sizes.regions + list[entry] / group_bins;
        const int64_t row = rows.begin + list[entry] % group_bins / group_columns;
        const int64_t column = columns.begin + list[entry] % group_columns;
        if (row >= rows.end || column >= columns.end) continue;
        const Region<A> region = RegionOf<A>(sizes, regions, index);
        const int64_t part = PartOf(sizes, index, row, column, class_);
        const A shift_y = ShiftOf<A>(sizes, regions, 0, part), shift_x = ShiftOf<A>(sizes, regions, 1, part);
        if (!Reach<A>(sizes, region, 0, row, shift_y).Touches(y, y + 1)) continue;
        if (!Reach<A>(sizes, region, 1, column, shift_x).Touches(x, x + kOwned)) continue;
        A weight_y = 0, weight_x[kOwned] = {};
        const int32_t kept_y = ForEachTouch(sizes, region, 0, row, shift_y, [&](int32_t pixel, A weight, A) {
          if (pixel == y) weight_y = weight;
        });
        if (weight_y == A(0)) continue;
        const int32_t kept_x = ForEachTouch(sizes, region, 1, column, shift_x, [&](int32_t pixel, A weight, A) {
          for (int i = 0; i < kOwned; ++i) weight_x[i] = pixel == x + i ? weight : weight_x[i];
        });
        if (kept_x == 0) continue;
        const int64_t bin = (index * sizes.output[0] + row) * sizes.output[1] + column;
        const Vector<T, N> d = AsVector<N>(d_pooled + bin * sizes.features() + f);
        const A scale = weight_y / (A(kept_y) * A(kept_x));
        for (int i = 0; i < kOwned; ++i) {
          if (weight_x[i] == A(0)) continue;  // which an infinite cotangent would make a NaN
          for (int v = 0; v < N; ++v) sum[i].value[v] += scale * weight_x[i] * A(d.value[v]);
        }
      }
    }
    if (!owns) continue;
    A* out = d_x + ((image * sizes.height + y) * sizes.width + x) * sizes.channels + channel;
    for (int i = 0; i < kOwned; ++i) {
      if (x + i < sizes.width) AsVector<N>(out + i * sizes.channels) = sum[i];
    }
  }
}

// Some lanes of a warp for a part's offset of one class: `team`, a power of two, which share the features.
template <typename T, int N>
__global__ void OffsetCotangentKernel(PoolSizes sizes, Regions regions, const T* x, const T* d_pooled,
                                      Accumulator<T>* d_offset, int team) {
  using A = Accumulator<T>;
  const int64_t parts = int64_t{sizes.part[0]} * sizes.part[1] * sizes.classes;
  const int64_t n = sizes.batches * sizes.regions * parts;
  const int64_t most = (n * team + kWarp - 1) / kWarp * kWarp;  // so that a warp stays together
  for (int64_t thread = global_thread(); thread < most; thread += grid_stride()) {
    const int64_t work_item = thread / team, index = work_item / parts, class_ = work_item % sizes.classes;
    const Region<A> region = RegionOf<A>(sizes, regions, work_item < n ? index : 0);
    A dy = 0, dx = 0;
    if (work_item < n && region.state == RegionState::kPooled) {
      const A shift_y = ShiftOf<A>(sizes, regions, 0, work_item), shift_x = ShiftOf<A>(sizes, regions, 1, work_item);
      const bool nan = shift_x != shift_x || shift_y != shift_y;
      const int64_t part = work_item % parts / sizes.classes, first_row = ImageRow(sizes, region, index);
      const Range rows = BinsOf(sizes, 0, sizes.part, part / sizes.part[1]);
      const Range columns = BinsOf(sizes, 1, sizes.part, part % sizes.part[1]);
      if (nan && rows.size() * columns.size() > 0) dy = dx = A(NAN);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const int64_t bin = (index * sizes.output[0] + row) * sizes.output[1] + column;
          const T* d_bin = d_pooled + bin * sizes.features();
          const T* image = x + first_row * sizes.width * sizes.channels + GroupOf(sizes, row, column);
          A bin_dy = 0, bin_dx = 0;
          int32_t kept_x = 0;
          const int32_t kept_y = ForEachTouch(sizes, region, 0, row, shift_y, [&](int32_t y, A weight_y, A slope_y) {
            kept_x = ForEachTouch(sizes, region, 1, column, shift_x, [&](int32_t x_, A weight_x, A slope_x) {
              const T* pixel = image + (y * sizes.width + x_) * sizes.channels;
              A dot = 0;
              const int64_t end = (class_ + 1) * sizes.class_features();
              for (int64_t f = end - sizes.class_features() + thread % team * N; f < end; f += team * N) {
                const Vector<T, N> d = AsVector<N>(d_bin + f), value = AsVector<N>(pixel + f * sizes.groups());
                for (int v = 0; v < N; ++v) dot += A(d.value[v]) * A(value.value[v]);
              }
              bin_dy += slope_y * weight_x * dot;
              bin_dx += weight_y * slope_x * dot;
            });
          });
          const A count = A(kept_y) * A(kept_x);
          if (count == A(0)) continue;
          dy += bin_dy / count;
          dx += bin_dx / count;
        }
      }
      dy *= region.extent[0] * A(sizes.trans_std);
      dx *= region.extent[1] * A(sizes.trans_std);
    }
    for (int lanes = team / 2; lanes; lanes /= 2) {
      dy += __shfl_xor_sync(kWholeWarp, dy, lanes);
      dx += __shfl_xor_sync(kWholeWarp, dx, lanes);
    }
    if (work_item >= n || thread % team != 0) continue;
    d_offset[2 * work_item] = dx;
    d_offset[2 * work_item + 1] = dy;
  }
}

// How many features of a class stand side by side.
int64_t Neighbours(const PoolSizes& sizes) { return sizes.groups() == 1 ? sizes.class_features() : 1; }

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions, const void* x,
                 void* pooled) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    return DispatchWidth<T>(Neighbours(sizes), [&](auto width) {
      constexpr int N = decltype(width)::value;
      const int64_t n = sizes.batches * sizes.regions * sizes.bins() * sizes.features() / N;
      return Launch(device, PoolKernel<T, N>, BlocksFor(n), sizes, regions, static_cast<const T*>(x),
                    static_cast<T*>(pooled));
    });
  });
}

const char* PoolInputCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                               const void* d_pooled, void* d_x) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    return DispatchWidth<Accumulator<T>>(Neighbours(sizes), [&](auto width) {
      constexpr int N = decltype(width)::value;
      const auto pieces = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
      const int64_t blocks = sizes.batches * sizes.images * pieces(sizes.height, kRows) *
                             pieces(sizes.width, kColumns<Accumulator<T>> * kAcross) *
                             pieces(sizes.channels, kWarp * N);
      return Launch(device, InputCotangentKernel<T, N>, blocks, sizes, regions, static_cast<const T*>(d_pooled),
                    static_cast<Accumulator<T>*>(d_x));
    });
  });
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Regions& regions,
                                const void* x, const void* d_pooled, void* d_offset) {
  if (sizes.features() == 0) {
    const int64_t n = sizes.batches * sizes.regions * sizes.part[0] * sizes.part[1] * sizes.classes * 2;
    const size_t size = DispatchAccumulator(dtype, [](auto tag) { return sizeof tag; });
    return Failure(cudaMemsetAsync(d_offset, 0, n * size, device.stream));
  }
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    return DispatchWidth<T>(Neighbours(sizes), [&](auto width) {
      constexpr int N = decltype(width)::value;
      int team = 1;
      while (team < kWarp && team * N < sizes.class_features()) team *= 2;
      const int64_t n = sizes.batches * sizes.regions * sizes.part[0] * sizes.part[1] * sizes.classes;
      return Launch(device, OffsetCotangentKernel<T, N>, BlocksFor(n * team), sizes, regions, static_cast<const T*>(x),
                    static_cast<const T*>(d_pooled), static_cast<Accumulator<T>*>(d_offset), team);
    });
  });
}

}  // namespace dcn
