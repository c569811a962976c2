// The CUDA kernels of a deformable convolution that leave the matrix products to XLA: sampling the columns, and the
// cotangents of their operands. The input cotangent sorts the samples by location first; then each pixel of x gathers
// its sum in a fixed order and without atomics.
#include "deform_conv.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "counting_sort.h"
#include "device.h"
#include "launch.h"
#include "samples.h"
#include "vector.h"

namespace dcn {
namespace {

// A subwarp (a tile of the warp's lanes, as in CUDA's cooperative groups) shares a sample. Eight lanes load 128
// contiguous bytes, and locate the sample as often as it has more.
constexpr int kMaxLog2Subwarp = 3;

// The logarithm of the number of its lanes, 0 where the channels of an offset group are one vector.
int Log2Subwarp(const Sizes& sizes, int64_t vector) {
  int log2_subwarp = 0;
  while (log2_subwarp < kMaxLog2Subwarp && (vector << log2_subwarp) < sizes.group_channels()) ++log2_subwarp;
  return log2_subwarp;
}

// The number of threads whose subwarps have a sample each.
DCN_HOST_DEVICE int64_t SubwarpThreads(const Sizes& sizes, int log2_subwarp) {
  return sizes.pixels() * sizes.offset_groups * sizes.taps() << log2_subwarp;
}

// The indices of a sample: `index` is that of `mask`, and of `offset` as pairs.
struct SampleIndices {
  int64_t index, output_pixel, image;
  int64_t group_channels, first_channel;  // of the offset group
  int32_t row, column, tap;               // row and column of the tile

  __device__ SampleIndices(const Sizes& sizes, int64_t sample_index)
      : index(sample_index), group_channels(Quotient(sizes.channels, sizes.offset_groups)) {
    const int64_t pair = Quotient(index, sizes.taps());  // of output pixel and offset group
    tap = int32_t(index - pair * sizes.taps());
    output_pixel = Quotient(pair, sizes.offset_groups);
    first_channel = (pair - output_pixel * sizes.offset_groups) * group_channels;
    const int64_t row_of_all = Quotient(output_pixel, sizes.columns);
    column = int32_t(output_pixel - row_of_all * sizes.columns);
    image = Quotient(row_of_all, sizes.rows);
    row = int32_t(row_of_all - image * sizes.rows);
  }

  // `id`: output pixel of the image · taps + tap.
  __device__ SampleIndices(const Sizes& sizes, int64_t image, int64_t offset_group, int64_t group_channels, int32_t id)
      : image(image), group_channels(group_channels), first_channel(offset_group * group_channels) {
    const int32_t pixel = id / sizes.taps();
    tap = id - pixel * sizes.taps();
    row = pixel / int32_t(sizes.columns);
    column = pixel - row * int32_t(sizes.columns);
    output_pixel = image * sizes.rows * sizes.columns + pixel;
    index = SampleIndex(sizes, output_pixel, offset_group, tap);
  }

  // The first of its columns.
  __device__ int64_t Column(const Sizes& sizes) const {
    return (output_pixel * sizes.taps() + tap) * sizes.channels + first_channel;
  }
};

template <typename A>
__device__ BilinearCorners<A> Locate(const Sizes& sizes, const Positions& positions, const SampleIndices& sample) {
  const FirstTap first_tap(sizes, positions, sample.row, sample.column);
  return LocateSample<A>(sizes, positions, first_tap, sample.index, sample.tap);
}

// The first channel of the sample's offset group at each corner of the sample.
template <typename T>
struct CornerChannels {
  const T* address[4];

  template <typename A>
  __device__ CornerChannels(const Sizes& sizes, const Positions& positions, const T* x, const SampleIndices& sample,
                            const BilinearCorners<A>& corners) {
    const int64_t image = sizes.first_image(positions.origin[0]) + sample.image;
    for (int corner = 0; corner < 4; ++corner) {
      address[corner] = nullptr;
      if (!corners.is_read(corner)) continue;
      const int64_t pixel = corners.pixel(corner, image * sizes.height, sizes.width);
      address[corner] = x + pixel * sizes.channels + sample.first_channel;
    }
  }
};

// Calls f(indices, corners, channels at the corners, mask) for the samples of the calling thread's subwarp.
template <typename T, typename F>
__device__ void ForEachSample(const Sizes& sizes, const Positions& positions, int log2_subwarp, const T* x,
                              const F& f) {
  using A = Accumulator<T>;
  const int64_t n = SubwarpThreads(sizes, log2_subwarp);
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const SampleIndices sample(sizes, work_item >> log2_subwarp);
    const BilinearCorners<A> corners = Locate<A>(sizes, positions, sample);
    f(sample, corners, CornerChannels<T>(sizes, positions, x, sample, corners), Mask<A>(positions, sample.index));
  }
}

// A subwarp computes the columns of a sample: the channels of its offset group, N at a time.
template <typename T, int N>
__global__ void SampleColumnsKernel(Sizes sizes, Positions positions, int log2_subwarp, const T* x, T* columns) {
  using A = Accumulator<T>;
  const int subwarp = 1 << log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  const auto sample_columns = [&](const SampleIndices& sample, const BilinearCorners<A>& corners,
                                  const CornerChannels<T>& pixels, A mask) {
    T* const out = columns + sample.Column(sizes);
    for (int64_t c = lane * N; c < sample.group_channels; c += subwarp * N) {
      A sum[N];
      for (int v = 0; v < N; ++v) sum[v] = corners.unread_value();
      for (int corner = 0; corner < 4; ++corner) {
        if (!pixels.address[corner]) continue;
        const Vector<T, N> pixel = AsVector<N>(pixels.address[corner] + c);
        for (int v = 0; v < N; ++v) sum[v] += corners.weight(corner) * A(pixel.value[v]);
      }
      Vector<T, N> vector;
      for (int v = 0; v < N; ++v) vector.value[v] = T(sum[v] * mask);
      AsVector<N>(out + c) = vector;
    }
  };
  ForEachSample(sizes, positions, log2_subwarp, x, sample_columns);
}

// A subwarp computes the tangents of the columns of a sample, and its columns if requested.
template <typename T, int N>
__global__ void SampleTangentsKernel(Sizes sizes, Positions positions, Tangents tangents, int log2_subwarp, const T* x,
                                     bool columns_requested, T* columns) {
  using A = Accumulator<T>;
  const T* const d_x = static_cast<const T*>(tangents.x);
  const A* const d_offset = static_cast<const A*>(tangents.offset);
  const A* const d_mask = static_cast<const A*>(tangents.mask);
  const int subwarp = 1 << log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  const auto sample_tangents = [&](const SampleIndices& sample, const BilinearCorners<A>& corners,
                                   const CornerChannels<T>& pixels, A mask) {
    A weight_tangent[4] = {};
    for (int corner = 0; corner < 4 && d_offset; ++corner) {
      const A* const d_position = d_offset + 2 * sample.index;
      weight_tangent[corner] = corners.weight_tangent(corner, d_position[0], d_position[1]);
    }
    // The columns follow the tangents of the same tap.
    T* const out =
        columns + sample.Column(sizes) + (columns_requested ? sample.Column(sizes) - sample.first_channel : 0);
    for (int64_t c = lane * N; c < sample.group_channels; c += subwarp * N) {
      A value[N], tangent[N];
      for (int v = 0; v < N; ++v) value[v] = tangent[v] = corners.unread_value();
      for (int corner = 0; corner < 4; ++corner) {
        if (!pixels.address[corner]) continue;
        const T* const address = pixels.address[corner] + c;
        const Vector<T, N> pixel = AsVector<N>(address);
        for (int v = 0; v < N; ++v) value[v] += corners.weight(corner) * A(pixel.value[v]);
        // A tangent that is zero has no term, which would be NaN for an infinite factor.
        if (d_offset) {
          for (int v = 0; v < N; ++v) tangent[v] += weight_tangent[corner] * A(pixel.value[v]);
        }
        if (d_x) {
          const Vector<T, N> d_pixel = AsVector<N>(d_x + (address - x));
          for (int v = 0; v < N; ++v) tangent[v] += corners.weight(corner) * A(d_pixel.value[v]);
        }
      }
      Vector<T, N> vector;
      for (int v = 0; v < N; ++v) {
        if (d_x || d_offset) tangent[v] *= mask;
        if (d_mask) tangent[v] += d_mask[sample.index] * value[v];
        vector.value[v] = T(tangent[v]);
      }
      AsVector<N>(out + c) = vector;
      if (!columns_requested) continue;
      for (int v = 0; v < N; ++v) vector.value[v] = T(value[v] * mask);
      AsVector<N>(out + sizes.channels + c) = vector;
    }
  };
  ForEachSample(sizes, positions, log2_subwarp, x, sample_tangents);
}

// A subwarp computes the cotangents of a sample's offset and mask, which are sums over the channels of its offset
// group.
template <typename T, int N>
__global__ void OffsetCotangentKernel(Sizes sizes, Positions positions, int log2_subwarp, const T* x,
                                      const T* d_columns, Accumulator<T>* d_offset, Accumulator<T>* d_mask) {
  using A = Accumulator<T>;
  const int subwarp = 1 << log2_subwarp, lane = int(threadIdx.x) & (subwarp - 1);
  const int64_t n = SubwarpThreads(sizes, log2_subwarp);
  // All lanes of a warp exchange sums, also those past the end, which repeat the last sample.
  for (int64_t first = global_thread() / kWarp * kWarp; first < n; first += grid_stride()) {
    const int64_t work_item = first + threadIdx.x % kWarp;
    const SampleIndices sample(sizes, (work_item < n ? work_item : n - 1) >> log2_subwarp);
    const BilinearCorners<A> corners = Locate<A>(sizes, positions, sample);
    A dot[4] = {};
    if (corners.is_inside()) {
      const CornerChannels<T> pixels(sizes, positions, x, sample, corners);
      const T* const d = d_columns + sample.Column(sizes);
      for (int64_t c = lane * N; c < sample.group_channels; c += subwarp * N) {
        const Vector<T, N> d_column = AsVector<N>(d + c);
        for (int corner = 0; corner < 4; ++corner) {
          if (!pixels.address[corner]) continue;
          const Vector<T, N> pixel = AsVector<N>(pixels.address[corner] + c);
          for (int v = 0; v < N; ++v) dot[corner] += A(d_column.value[v]) * A(pixel.value[v]);
        }
      }
    }
    for (int corner = 0; corner < 4; ++corner) {
      for (int lanes = subwarp / 2; lanes; lanes /= 2) dot[corner] += __shfl_xor_sync(kWholeWarp, dot[corner], lanes);
    }
    if (lane != 0 || work_item >= n) continue;
    StorePositionCotangents(positions, sample.index, corners, dot, d_offset, d_mask);
  }
}

// A cell is the square between four neighbouring pixels: all samples in it have the same corners. Its index follows
// from its top left pixel. An image has one row and one column more of cells than of pixels. Without circular padding,
// the top left pixels of the first row and column of cells are outside the image; with it, these cells stay empty.
template <typename A>
__device__ int32_t CellOf(const BilinearCorners<A>& corners, int64_t width) {
  if (!corners.is_inside()) return kNoRow;
  return (corners.y.pixel[0] + 1) * int32_t(width + 1) + corners.x.pixel[0] + 1;
}

// The cell that has the pixel at (y, x) as a corner.
__device__ int64_t CellWithCorner(int64_t y, int64_t x, int corner, const Sizes& sizes) {
  int64_t top = y - corner / 2, left = x - corner % 2;
  if (sizes.window.circular && top < 0) top += sizes.height;
  if (sizes.window.circular && left < 0) left += sizes.width;
  return (top + 1) * (sizes.width + 1) + left + 1;
}

// The samples of an image and offset group, which are sorted by cell, so that a pixel can gather what they scatter to
// it. An id, which is also the value, is output pixel · taps + tap.
template <typename A>
class SamplesOfGroup {
 public:
  static constexpr int kEntries = 1;
  struct Entry {
    int32_t row, id;
  };

  __device__ SamplesOfGroup(const Sizes& sizes, const Positions& positions, int64_t table)
      : sizes_(sizes),
        positions_(positions),
        image_(table / sizes.offset_groups),
        group_(table % sizes.offset_groups),
        group_channels_(sizes.group_channels()) {}

  __device__ Entry operator()(int32_t id) const {
    const SampleIndices sample(sizes_, image_, group_, group_channels_, id);
    return {CellOf(Locate<A>(sizes_, positions_, sample), sizes_.width), id};
  }

  __device__ void FindRows(int32_t id, int32_t* rows) const { rows[0] = (*this)(id).row; }
  __device__ int32_t value(const Entry& entry) const { return entry.id; }

 private:
  const Sizes& sizes_;
  const Positions& positions_;
  int64_t image_, group_, group_channels_;
};

template <typename A>
struct SampleTables {
  using Table = SamplesOfGroup<A>;

  Sizes sizes;
  Positions positions;

  __device__ SamplesOfGroup<A> operator[](int64_t table) const { return {sizes, positions, table}; }
};

CsrTables<int32_t> SamplesByCell(const Sizes& sizes, int32_t* workspace) {
  const int64_t tables = sizes.images * sizes.offset_groups, samples = tables * sizes.samples();
  return {tables,    int32_t(sizes.cells()), int32_t(sizes.samples()), false, workspace + 2 * samples,
          workspace, workspace + samples};
}

// A thread computes N channels of a pixel of x: it gathers the cotangents of the samples in the four cells around it.
template <typename T, int N>
__global__ void InputCotangentKernel(Sizes sizes, Positions positions, const int32_t* row_start,
                                     const int32_t* samples_by_cell, const T* d_columns, Accumulator<T>* d_x) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.channels / N, n = sizes.images * sizes.height * sizes.width * vectors;
  const int64_t group_channels = sizes.group_channels();
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t c = work_item % vectors * N, pixel = work_item / vectors;
    const int64_t g = c / group_channels, in_group = c - g * group_channels;
    const int64_t x = pixel % sizes.width, y = pixel / sizes.width % sizes.height;
    const int64_t image = pixel / sizes.width / sizes.height;
    const int64_t first_pixel_of_x = sizes.first_image(positions.origin[0]) * sizes.height * sizes.width;
    A* const out = d_x + (first_pixel_of_x + pixel) * sizes.channels + c;
    const int64_t table = image * sizes.offset_groups + g;
    const int32_t* samples = samples_by_cell + table * sizes.samples();
    const int32_t* starts = row_start + table * (sizes.cells() + 1);
    Vector<A, N> sum = AsVector<N>(out);
    for (int corner = 0; corner < 4; ++corner) {
      const int64_t cell = CellWithCorner(y, x, corner, sizes);
      for (int32_t i = starts[cell]; i < starts[cell + 1]; ++i) {
        const SampleIndices sample(sizes, image, g, group_channels, samples[i]);
        const A weight = Locate<A>(sizes, positions, sample).weight(corner) * Mask<A>(positions, sample.index);
        const Vector<T, N> d = AsVector<N>(d_columns + sample.Column(sizes) + in_group);
        for (int v = 0; v < N; ++v) sum.value[v] += weight * A(d.value[v]);
      }
    }
    AsVector<N>(out) = sum;
  }
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  return DispatchVectors(dtype, sizes.group_channels(), [&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    const int log2_subwarp = Log2Subwarp(sizes, N);
    return Launch<SampleColumnsKernel<T, N>>(device, BlocksFor(SubwarpThreads(sizes, log2_subwarp)), sizes, positions,
                                             log2_subwarp, static_cast<const T*>(x), static_cast<T*>(columns));
  });
}

const char* SampleTangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const Tangents& tangents, const void* x, bool columns_requested, void* columns) {
  return DispatchVectors(dtype, sizes.group_channels(), [&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    const int log2_subwarp = Log2Subwarp(sizes, N);
    return Launch<SampleTangentsKernel<T, N>>(device, BlocksFor(SubwarpThreads(sizes, log2_subwarp)), sizes, positions,
                                              tangents, log2_subwarp, static_cast<const T*>(x), columns_requested,
                                              static_cast<T*>(columns));
  });
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  const char* failure = columns ? SampleColumns(device, dtype, sizes, positions, x, columns) : nullptr;
  if (failure) return failure;
  return DispatchVectors(dtype, sizes.group_channels(), [&](auto tag, auto width) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    constexpr int N = decltype(width)::value;
    const int log2_subwarp = Log2Subwarp(sizes, N);
    return Launch<OffsetCotangentKernel<T, N>>(device, BlocksFor(SubwarpThreads(sizes, log2_subwarp)), sizes, positions,
                                               log2_subwarp, static_cast<const T*>(x), static_cast<const T*>(d_columns),
                                               static_cast<A*>(d_offset), static_cast<A*>(d_mask));
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
    const char* failure = SortByRow(device, SampleTables<A>{sizes, positions}, samples);
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
