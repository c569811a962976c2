// The CUDA kernels of a deformable convolution that leave the matrix products to XLA: sampling the columns, and the
// cotangents of their operands. The input cotangent sorts the samples by location first; then each pixel of x gathers
// its sum in a fixed order and without atomics.
#include "deform_conv.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "counting_sort.h"
#include "device.h"
#include "launch.h"
#include "positions.h"
#include "vector.h"

namespace dcn {
namespace {

// The address of channel c at a corner of a sample of output pixel p.
template <typename T, typename A>
__device__ const T* CornerAddress(const Sizes& sizes, const Positions& positions, const T* x,
                                  const BilinearCorners<A>& corners, int64_t p, int corner, int64_t c) {
  const int64_t image = sizes.first_image(positions.origin[0]) + p / (sizes.rows * sizes.columns);
  return x + corners.pixel(corner, image * sizes.height, sizes.width) * sizes.channels + c;
}

// A thread computes N channels of a tap of an output pixel.
template <typename T, int N>
__global__ void SampleColumnsKernel(Sizes sizes, Positions positions, const T* x, T* columns) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.channels / N, n = sizes.pixels() * sizes.taps() * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t c = work_item % vectors * N, p = work_item / vectors / sizes.taps();
    const int32_t k = int32_t(work_item / vectors % sizes.taps());
    const int64_t sample_index = SampleIndex(sizes, p, c / sizes.group_channels(), k);
    const BilinearCorners<A> corners = LocateSample<A>(sizes, positions, p, sample_index, k);
    A sum[N];
    for (int v = 0; v < N; ++v) sum[v] = corners.unread_value();
    for (int corner = 0; corner < 4; ++corner) {
      if (!corners.is_read(corner)) continue;
      const Vector<T, N> pixel = AsVector<N>(CornerAddress(sizes, positions, x, corners, p, corner, c));
      for (int v = 0; v < N; ++v) sum[v] += corners.weight(corner) * A(pixel.value[v]);
    }
    Vector<T, N> out;
    for (int v = 0; v < N; ++v) out.value[v] = T(sum[v] * Mask<A>(positions, sample_index));
    AsVector<N>(columns + work_item * N) = out;
  }
}

// A warp computes the cotangents of one sample's offset and mask: its lanes share the sum over channels.
template <typename T, int N>
__global__ void OffsetCotangentKernel(Sizes sizes, Positions positions, const T* x, const T* d_columns,
                                      Accumulator<T>* d_offset, Accumulator<T>* d_mask) {
  using A = Accumulator<T>;
  const int64_t n = sizes.pixels() * sizes.offset_groups * sizes.taps();
  const int lane = threadIdx.x % kWarp;
  for (int64_t sample_index = global_thread() / kWarp; sample_index < n; sample_index += grid_stride() / kWarp) {
    const int32_t k = int32_t(sample_index % sizes.taps());
    const int64_t g = sample_index / sizes.taps() % sizes.offset_groups;
    const int64_t p = sample_index / sizes.taps() / sizes.offset_groups;
    const BilinearCorners<A> corners = LocateSample<A>(sizes, positions, p, sample_index, k);
    A dot[4] = {};
    if (corners.is_inside()) {
      for (int64_t in_group = lane * N; in_group < sizes.group_channels(); in_group += kWarp * N) {
        const int64_t c = g * sizes.group_channels() + in_group;
        const Vector<T, N> d = AsVector<N>(d_columns + (p * sizes.taps() + k) * sizes.channels + c);
        for (int corner = 0; corner < 4; ++corner) {
          if (!corners.is_read(corner)) continue;
          const Vector<T, N> pixel = AsVector<N>(CornerAddress(sizes, positions, x, corners, p, corner, c));
          for (int v = 0; v < N; ++v) dot[corner] += A(d.value[v]) * A(pixel.value[v]);
        }
      }
    }
    for (int corner = 0; corner < 4; ++corner) {
      for (int lanes = kWarp / 2; lanes; lanes /= 2) dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], lanes);
    }
    if (lane != 0) continue;
    StorePositionCotangents(positions, sample_index, corners, dot, d_offset, d_mask);
  }
}

// A cell is the square between four neighbouring pixels: all samples in it have the same corners. Its index follows
// from its top left pixel. An image has one row and one column more of cells than of pixels. Without circular padding,
// the top left pixels of the first row and column of cells are outside the image; with it, these cells stay empty.

// -1 if the sample is outside.
template <typename A>
__device__ int64_t CellOf(const BilinearCorners<A>& corners, int64_t width) {
  if (!corners.is_inside()) return -1;
  return (corners.y.pixel[0] + 1) * (width + 1) + corners.x.pixel[0] + 1;
}

// The cell that has the pixel at (y, x) as a corner.
__device__ int64_t CellWithCorner(int64_t y, int64_t x, int corner, const Sizes& sizes) {
  int64_t top = y - corner / 2, left = x - corner % 2;
  if (sizes.window.circular && top < 0) top += sizes.height;
  if (sizes.window.circular && left < 0) left += sizes.width;
  return (top + 1) * (sizes.width + 1) + left + 1;
}

// The samples of each image and offset group by cell, so that a pixel can gather what they scatter to it. A sample is
// an entry whose id and value are both output pixel · taps + tap. row_start is local to a table.
CsrTables<int32_t> SamplesByCell(const Sizes& sizes, int32_t* workspace) {
  const int64_t tables = sizes.images * sizes.offset_groups, samples = tables * sizes.samples();
  return {tables, sizes.cells(), workspace + 2 * samples, workspace, workspace + samples};
}

template <typename A>
struct CellEntries {
  Sizes sizes;
  Positions positions;

  DCN_HOST_DEVICE int64_t work_items() const { return sizes.images * sizes.offset_groups * sizes.samples(); }

  template <typename F>
  __device__ void ForEach(int64_t work_item, const F& f) const {
    const int64_t table = work_item / sizes.samples(), image = table / sizes.offset_groups;
    const int32_t id = int32_t(work_item % sizes.samples()), k = id % sizes.taps();
    const int64_t p = image * sizes.rows * sizes.columns + id / sizes.taps();
    const int64_t sample_index = SampleIndex(sizes, p, table % sizes.offset_groups, k);
    const int64_t cell = CellOf(LocateSample<A>(sizes, positions, p, sample_index, k), sizes.width);
    if (cell < 0) return;
    f(Entry{table * (sizes.cells() + 1) + cell, table * sizes.samples(), id}, [&] { return id; });
  }
};

// A thread computes N channels of a pixel of x: it gathers the cotangents of the samples in the four cells around it.
template <typename T, int N>
__global__ void InputCotangentKernel(Sizes sizes, Positions positions, const int32_t* row_start,
                                     const int32_t* samples_by_cell, const T* d_columns, Accumulator<T>* d_x) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.channels / N, n = sizes.images * sizes.height * sizes.width * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t c = work_item % vectors * N, pixel = work_item / vectors, g = c / sizes.group_channels();
    const int64_t x = pixel % sizes.width, y = pixel / sizes.width % sizes.height;
    const int64_t image = pixel / sizes.width / sizes.height;
    const int64_t first_pixel_of_x = sizes.first_image(positions.origin[0]) * sizes.height * sizes.width;
    A* const out = d_x + (first_pixel_of_x + pixel) * sizes.channels + c;
    const int64_t table = image * sizes.offset_groups + g, first_pixel = image * sizes.rows * sizes.columns;
    const int32_t* samples = samples_by_cell + table * sizes.samples();
    const int32_t* starts = row_start + table * (sizes.cells() + 1);
    Vector<A, N> sum = AsVector<N>(out);
    for (int corner = 0; corner < 4; ++corner) {
      const int64_t cell = CellWithCorner(y, x, corner, sizes);
      for (int32_t i = starts[cell]; i < starts[cell + 1]; ++i) {
        const int64_t p = first_pixel + samples[i] / sizes.taps();
        const int32_t k = samples[i] % sizes.taps();
        const int64_t sample_index = SampleIndex(sizes, p, g, k);
        const A weight =
            LocateSample<A>(sizes, positions, p, sample_index, k).weight(corner) * Mask<A>(positions, sample_index);
        const Vector<T, N> d = AsVector<N>(d_columns + (p * sizes.taps() + k) * sizes.channels + c);
        for (int v = 0; v < N; ++v) sum.value[v] += weight * A(d.value[v]);
      }
    }
    AsVector<N>(out) = sum;
  }
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    return DispatchWidth<T>(sizes.group_channels(), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch<SampleColumnsKernel<T, N>>(device, BlocksFor(sizes.pixels() * sizes.taps() * sizes.channels / N),
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
      return Launch<OffsetCotangentKernel<T, N>>(
          device, BlocksFor(sizes.pixels() * sizes.offset_groups * sizes.taps() * kWarp), sizes, positions,
          static_cast<const T*>(x), static_cast<const T*>(d_columns), static_cast<A*>(d_offset),
          static_cast<A*>(d_mask));
    });
  });
}

int64_t WorkspaceSize(const Sizes& sizes) {
  return sizes.images * sizes.offset_groups * (2 * sizes.samples() + sizes.cells() + 1);
}

const char* InputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const void* d_columns, void* d_x, int32_t* workspace) {
  const CsrTables<int32_t> samples = SamplesByCell(sizes, workspace);
  return Dispatch<__half, __nv_bfloat16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const char* failure = SortByRow(device, CellEntries<A>{sizes, positions}, samples, 0);
    if (failure) return failure;
    return DispatchWidth<T>(sizes.group_channels(), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch<InputCotangentKernel<T, N>>(
          device, BlocksFor(sizes.images * sizes.height * sizes.width * sizes.channels / N), sizes, positions,
          samples.row_start, samples.values, static_cast<const T*>(d_columns), static_cast<A*>(d_x));
    });
  });
}

}  // namespace dcn
