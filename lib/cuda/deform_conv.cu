#include "deform_conv.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "device.h"
#include "launch.h"
#include "positions.h"
#include "scan.h"
#include "vector.h"

namespace dcn {
namespace {

// The address of channel c at corner (i, j) of a sample of output pixel p.
template <typename T, typename A>
__device__ const T* Corner(const Sizes& sizes, const Positions& positions, const T* x, const Sample<A>& sample,
                           int64_t p, int i, int j, int64_t c) {
  const int64_t image = sizes.first_image(positions.origin[0]) + p / (sizes.rows * sizes.columns);
  const int64_t pixel = (image * sizes.height + sample.y.pixel[i]) * sizes.width + sample.x.pixel[j];
  return x + pixel * sizes.channels + c;
}

// A thread for N channels of a tap of an output pixel.
template <typename T, int N>
__global__ void SampleColumnsKernel(Sizes sizes, Positions positions, const T* x, T* columns) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.channels / N, n = sizes.pixels() * sizes.taps() * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t c = work_item % vectors * N, p = work_item / vectors / sizes.taps();
    const int32_t k = int32_t(work_item / vectors % sizes.taps());
    const int64_t position = Position(sizes, p, c / sizes.group_channels(), k);
    const Sample<A> sample = LocateSample<A>(sizes, positions, p, position, k);
    A sum[N];
    for (int v = 0; v < N; ++v) sum[v] = sample.nan() ? A(NAN) : A(0);
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      if (!sample.inside() || !sample.touches(i, j)) continue;
      const Vector<T, N> pixel = AsVector<N>(Corner(sizes, positions, x, sample, p, i, j, c));
      for (int v = 0; v < N; ++v) sum[v] += sample.weight(i, j) * A(pixel.value[v]);
    }
    Vector<T, N> out;
    for (int v = 0; v < N; ++v) out.value[v] = T(sum[v] * Mask<A>(positions, position));
    AsVector<N>(columns + work_item * N) = out;
  }
}

// A warp for a position: its lanes share the sum over channels.
template <typename T, int N>
__global__ void OffsetCotangentKernel(Sizes sizes, Positions positions, const T* x, const Accumulator<T>* d_columns,
                                      Accumulator<T>* d_offset, Accumulator<T>* d_mask) {
  using A = Accumulator<T>;
  const int64_t n = sizes.pixels() * sizes.offset_groups * sizes.taps();
  const int lane = threadIdx.x % kWarp;
  for (int64_t position = global_thread() / kWarp; position < n; position += grid_stride() / kWarp) {
    const int32_t k = int32_t(position % sizes.taps());
    const int64_t g = position / sizes.taps() % sizes.offset_groups;
    const int64_t p = position / sizes.taps() / sizes.offset_groups;
    const Sample<A> sample = LocateSample<A>(sizes, positions, p, position, k);
    A dot[4] = {};
    if (sample.inside()) {
      for (int64_t within = lane * N; within < sizes.group_channels(); within += kWarp * N) {
        const int64_t c = g * sizes.group_channels() + within;
        const Vector<A, N> d = AsVector<N>(d_columns + (p * sizes.taps() + k) * sizes.channels + c);
        for (int corner = 0; corner < 4; ++corner) {
          const int i = corner / 2, j = corner % 2;
          if (!sample.touches(i, j)) continue;
          const Vector<T, N> pixel = AsVector<N>(Corner(sizes, positions, x, sample, p, i, j, c));
          for (int v = 0; v < N; ++v) dot[corner] += d.value[v] * A(pixel.value[v]);
        }
      }
    }
    for (int corner = 0; corner < 4; ++corner) {
      for (int lanes = kWarp / 2; lanes; lanes /= 2) dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], lanes);
    }
    if (lane != 0) continue;
    StorePositionCotangents(positions, position, sample, dot, d_offset, d_mask);
  }
}

// Samples in the order of the cells they touch, so that a pixel can gather what scatters to it.
struct Bins {
  int32_t* order;      // [images, offset_groups, samples]: sample numbers, ascending in each cell
  int32_t* unordered;  // the same, while they are sorted
  int32_t* starts;     // [images, offset_groups, cells + 1]: where each cell's samples start in `order`

  Bins(const Sizes& sizes, int32_t* workspace)
      : order(workspace),
        unordered(order + sizes.images * sizes.offset_groups * sizes.samples()),
        starts(unordered + sizes.images * sizes.offset_groups * sizes.samples()) {}
};

// The sample numbered `work_item` through all images and offset groups.
struct SampleNumber {
  int64_t bin;  // image · offset_groups + group
  int32_t sample;
  int64_t p, position;
  int32_t k;

  __device__ SampleNumber(const Sizes& sizes, int64_t work_item)
      : bin(work_item / sizes.samples()), sample(int32_t(work_item % sizes.samples())) {
    const int64_t image = bin / sizes.offset_groups, g = bin % sizes.offset_groups;
    p = image * sizes.rows * sizes.columns + sample / sizes.taps();
    k = sample % sizes.taps();
    position = Position(sizes, p, g, k);
  }
};

template <typename A>
__device__ int64_t CellOfSample(const Sizes& sizes, const Positions& positions, const SampleNumber& number) {
  return CellOf(LocateSample<A>(sizes, positions, number.p, number.position, number.k), sizes.width);
}

// Counts cell c's samples in starts[c + 1], which is zero before.
template <typename A>
__global__ void CountKernel(Sizes sizes, Positions positions, Bins bins) {
  const int64_t n = sizes.images * sizes.offset_groups * sizes.samples();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const SampleNumber number(sizes, work_item);
    const int64_t cell = CellOfSample<A>(sizes, positions, number);
    if (cell >= 0) atomicAdd(&bins.starts[number.bin * (sizes.cells() + 1) + cell + 1], 1);
  }
}

// Puts every sample into its cell's place, in any order; moves starts[c + 1] on from cell c's start to its end.
template <typename A>
__global__ void FillKernel(Sizes sizes, Positions positions, Bins bins) {
  const int64_t n = sizes.images * sizes.offset_groups * sizes.samples();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const SampleNumber number(sizes, work_item);
    const int64_t cell = CellOfSample<A>(sizes, positions, number);
    if (cell < 0) continue;
    const int32_t place = atomicAdd(&bins.starts[number.bin * (sizes.cells() + 1) + cell + 1], 1);
    bins.unordered[number.bin * sizes.samples() + place] = number.sample;
  }
}

// Orders the samples of each cell: a sample goes behind those of its cell with a smaller number.
template <typename A>
__global__ void RankKernel(Sizes sizes, Positions positions, Bins bins) {
  const int64_t n = sizes.images * sizes.offset_groups * sizes.samples();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const SampleNumber number(sizes, work_item);
    const int64_t cell = CellOfSample<A>(sizes, positions, number);
    if (cell < 0) continue;
    const int32_t* starts = bins.starts + number.bin * (sizes.cells() + 1);
    const int32_t* samples = bins.unordered + number.bin * sizes.samples();
    int32_t rank = starts[cell];
    for (int32_t i = starts[cell]; i < starts[cell + 1]; ++i) rank += samples[i] < number.sample;
    bins.order[number.bin * sizes.samples() + rank] = number.sample;
  }
}

// A thread for N channels of a pixel of the input, which gathers what the samples around it scatter.
template <typename A, int N>
__global__ void InputCotangentKernel(Sizes sizes, Positions positions, Bins bins, const A* d_columns, A* d_x) {
  const int64_t vectors = sizes.channels / N, n = sizes.images * sizes.height * sizes.width * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t c = work_item % vectors * N, pixel = work_item / vectors, g = c / sizes.group_channels();
    const int64_t x = pixel % sizes.width, y = pixel / sizes.width % sizes.height;
    const int64_t image = pixel / sizes.width / sizes.height;
    const int64_t bin = image * sizes.offset_groups + g, first_pixel = image * sizes.rows * sizes.columns;
    const int32_t* order = bins.order + bin * sizes.samples();
    const int32_t* starts = bins.starts + bin * (sizes.cells() + 1);
    Vector<A, N> sum = AsVector<N>(d_x + pixel * sizes.channels + c);
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      const int64_t cell = CellWithCorner(y, x, i, j, sizes.height, sizes.width, sizes.window.circular);
      for (int32_t entry = starts[cell]; entry < starts[cell + 1]; ++entry) {
        const int64_t p = first_pixel + order[entry] / sizes.taps();
        const int32_t k = order[entry] % sizes.taps();
        const int64_t position = Position(sizes, p, g, k);
        const A weight = LocateSample<A>(sizes, positions, p, position, k).weight(i, j) * Mask<A>(positions, position);
        const Vector<A, N> d = AsVector<N>(d_columns + (p * sizes.taps() + k) * sizes.channels + c);
        for (int v = 0; v < N; ++v) sum.value[v] += weight * d.value[v];
      }
    }
    AsVector<N>(d_x + pixel * sizes.channels + c) = sum;
  }
}

template <typename A>
const char* BinSamples(Device& device, const Sizes& sizes, const Positions& positions, const Bins& bins) {
  const int64_t count = sizes.images * sizes.offset_groups, blocks = BlocksFor(count * sizes.samples());
  const char* failure =
      Failure(cudaMemsetAsync(bins.starts, 0, count * (sizes.cells() + 1) * sizeof(int32_t), device.stream));
  if (!failure) failure = Launch(device, CountKernel<A>, blocks, sizes, positions, bins);
  if (!failure) failure = Launch(device, ScanKernel, count, count, sizes.cells(), int64_t{0}, bins.starts);
  if (!failure) failure = Launch(device, FillKernel<A>, blocks, sizes, positions, bins);
  if (!failure) failure = Launch(device, RankKernel<A>, blocks, sizes, positions, bins);
  return failure;
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    return DispatchWidth<T>(sizes.group_channels(), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch(device, SampleColumnsKernel<T, N>, BlocksFor(sizes.pixels() * sizes.taps() * sizes.channels / N),
                    sizes, positions, static_cast<const T*>(x), static_cast<T*>(columns));
    });
  });
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  const char* failure = columns ? SampleColumns(device, dtype, sizes, positions, x, columns) : nullptr;
  if (failure) return failure;
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    return DispatchWidth<T>(sizes.group_channels(), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch(device, OffsetCotangentKernel<T, N>,
                    BlocksFor(sizes.pixels() * sizes.offset_groups * sizes.taps() * kWarp), sizes, positions,
                    static_cast<const T*>(x), static_cast<const A*>(d_columns), static_cast<A*>(d_offset),
                    static_cast<A*>(d_mask));
    });
  });
}

int64_t WorkspaceSize(const Sizes& sizes) {
  return sizes.images * sizes.offset_groups * (2 * sizes.samples() + sizes.cells() + 1);
}

const char* InputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const void* d_columns, void* d_x, int32_t* workspace) {
  if (sizes.images == 0) return nullptr;
  const Bins bins(sizes, workspace);
  return DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    const char* failure = BinSamples<A>(device, sizes, positions, bins);
    if (failure) return failure;
    return DispatchWidth<A>(sizes.group_channels(), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch(device, InputCotangentKernel<A, N>,
                    BlocksFor(sizes.images * sizes.height * sizes.width * sizes.channels / N), sizes, positions, bins,
                    static_cast<const A*>(d_columns), static_cast<A*>(d_x));
    });
  });
}

}  // namespace dcn
