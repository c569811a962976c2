// The CUDA kernels of RoI pooling. They use no atomics: each element of a result belongs
// to one thread, or to lanes of one warp, and is summed in a fixed order.
#include "roi_pool/roi_pool.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <type_traits>

#include "device.h"
#include "launch.h"
#include "vector.h"

namespace dcn {
namespace {

// Below, `roi_index` counts the RoIs of all batches.
template <typename A>
__device__ Roi<A> LocateRoi(const PoolSizes& sizes, const Rois& rois, int64_t roi_index) {
  return LocateRoi(sizes, static_cast<const A*>(rois.boxes) + roi_index * 5);
}

// The first row of the image that an RoI reads: a row index over all images and batches.
template <typename A>
__device__ int64_t FirstImageRow(const PoolSizes& sizes, const Roi<A>& roi, int64_t roi_index) {
  return (roi_index / sizes.rois * sizes.images + roi.image) * sizes.height;
}

// The index of the (dx, dy) pair that shifts a bin for the features of one class.
__device__ int64_t OffsetIndex(const PoolSizes& sizes, int64_t roi_index, int64_t row, int64_t column, int64_t class_) {
  const int64_t y = sizes.GridCellOfBin(0, row, sizes.part), x = sizes.GridCellOfBin(1, column, sizes.part);
  return ((roi_index * sizes.part[0] + y) * sizes.part[1] + x) * sizes.classes + class_;
}

// The flat index of the channel group that a bin reads.
__device__ int64_t ChannelGroupIndex(const PoolSizes& sizes, int64_t row, int64_t column) {
  return sizes.GridCellOfBin(0, row, sizes.group) * sizes.group[1] + sizes.GridCellOfBin(1, column, sizes.group);
}

// The offset along an axis times trans_std: the shift of a bin as a fraction of the RoI's size.
template <typename A>
__device__ A ScaledOffset(const PoolSizes& sizes, const Rois& rois, int axis, int64_t offset_index) {
  return rois.offset ? static_cast<const A*>(rois.offset)[2 * offset_index + 1 - axis] * A(sizes.trans_std) : A(0);
}

// A range of the rows, or of the columns, of an RoI's bins.
struct BinRange {
  int32_t begin, end;

  __device__ int64_t size() const { return end - begin; }
};

// The range of bin rows (axis 0) or columns (axis 1) in one row or column of `grid`, which is the parts or the channel
// groups. The inverse of PoolSizes::GridCellOfBin.
__device__ BinRange BinsOfGridCell(const PoolSizes& sizes, int axis, const int32_t grid[2], int64_t cell) {
  const int64_t bins = sizes.output[axis], cells = grid[axis];
  return {int32_t((cell * bins + cells - 1) / cells), int32_t(((cell + 1) * bins + cells - 1) / cells)};
}

// Each thread computes N features of one bin. Consecutive threads compute consecutive features, so that the stores of a
// warp coalesce, and with one channel group its loads too.
template <typename T, int N>
__global__ void PoolKernel(PoolSizes sizes, Rois rois, const T* x, T* pooled) {
  using A = Accumulator<T>;
  const int64_t vectors = sizes.features() / N, n = sizes.batches * sizes.rois * sizes.bins() * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t f = work_item % vectors * N, bin = work_item / vectors % sizes.bins(),
                  roi_index = work_item / vectors / sizes.bins();
    const int64_t row = bin / sizes.output[1], column = bin % sizes.output[1];
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    A sum[N];
    for (int v = 0; v < N; ++v) sum[v] = roi.state == RoiState::kNotFinite ? A(NAN) : A(0);
    if (roi.state == RoiState::kValid) {
      const int64_t offset_index = OffsetIndex(sizes, roi_index, row, column, f / sizes.class_features());
      const A shift_y = ScaledOffset<A>(sizes, rois, 0, offset_index);
      const A shift_x = ScaledOffset<A>(sizes, rois, 1, offset_index);
      if (shift_x != shift_x || shift_y != shift_y) {
        for (int v = 0; v < N; ++v) sum[v] = A(NAN);
      }
      const int64_t first_row = FirstImageRow(sizes, roi, roi_index);
      const T* channel = x + f * sizes.groups() + ChannelGroupIndex(sizes, row, column);
      A num_points_x = 0;
      const A num_points_y = ForEachPixel(sizes, roi, 0, row, shift_y, [&](int32_t y, A weight_y, A) {
        const T* row_of_x = channel + (first_row + y) * sizes.width * sizes.channels;
        num_points_x = ForEachPixel(sizes, roi, 1, column, shift_x, [&](int32_t column_of_x, A weight_x, A) {
          if (weight_y * weight_x == A(0)) return;  // 0 times an infinite pixel would be NaN
          const Vector<T, N> pixel = AsVector<N>(row_of_x + column_of_x * sizes.channels);
          for (int v = 0; v < N; ++v) sum[v] += weight_y * weight_x * A(pixel.value[v]);
        });
      });
      const A num_points = num_points_y * num_points_x;
      for (int v = 0; v < N; ++v) sum[v] /= num_points > A(0) ? num_points : A(1);
    }
    Vector<T, N> out;
    for (int v = 0; v < N; ++v) out.value[v] = T(sum[v]);
    AsVector<N>(pooled + work_item * N) = out;
  }
}

// The tile shape of the cotangent of x. Each lane of a warp accumulates kWarpColumns neighbouring pixels of one row
// for its own N channels; register pressure limits kWarpColumns. A block has kWarpRows × kWarpsAcross warps. Each
// element of d_x belongs to one thread, so no atomics are needed.
template <typename A>
constexpr int kWarpColumns = 32 / sizeof(A);
constexpr int kWarpRows = 4, kWarpsAcross = kThreads / kWarp / kWarpRows;

// The interval along an axis that contains the sample points of a row or column of bins, or of several.
template <typename A>
struct PointInterval {
  A first, last;

  __device__ PointInterval(const Roi<A>& roi, int axis, int32_t bin, A shift)
      : PointInterval(roi, axis, BinRange{bin, bin + 1}, shift) {}
  // Rounding is monotonic, so the interval of several bins contains that of each.
  __device__ PointInterval(const Roi<A>& roi, int axis, const BinRange& bins, A shift)
      : first(roi.start[axis] + A(bins.begin) * roi.bin_size[axis] + shift * roi.size[axis]),
        last(roi.start[axis] + A(bins.end - 1) * roi.bin_size[axis] + shift * roi.size[axis] + roi.bin_size[axis]) {
    if (roi.bin_size[axis] >= A(0)) return;
    const A begin = last;
    last = first;
    first = begin;
  }

  // Whether points may read pixels of [begin, end). Conservative by one pixel: a point before the image reads its first
  // pixel, and rounding can put a point past `last`.
  __device__ bool MayRead(int64_t begin, int64_t end) const { return last > A(begin - 2) && first < A(end + 1); }
};

// Cotangents of the pooled features. Their type is not known when a kernel is compiled, so that one kernel serves all
// types that are summed in A: the kernel loads few of them for each bin that it locates.
struct PooledCotangents {
  DType dtype;
  const void* features;

  // N features from `index` on.
  template <int N, typename A>
  __device__ Vector<A, N> Load(int64_t index) const {
    if constexpr (std::is_same_v<A, float>) {
      if (dtype == DType::kF16) return Widened(AsVector<N>(static_cast<const __half*>(features) + index));
      if (dtype == DType::kBF16) return Widened(AsVector<N>(static_cast<const __nv_bfloat16*>(features) + index));
    }
    return AsVector<N>(static_cast<const A*>(features) + index);
  }
};

// Adds to each pixel of a lane its share of a bin's cotangent in mean pooling. AddAtArgmax does so in max pooling.
struct AddMean {
  static constexpr bool kIsSeparable = true;  // the share is a product of those of the pixel's row and column
  Rois rois;

  __device__ bool shifts_bins() const { return rois.offset != nullptr; }
  template <typename A>
  __device__ A Shift(const PoolSizes& sizes, int axis, int64_t offset_index) const {
    return ScaledOffset<A>(sizes, rois, axis, offset_index);
  }

  // Adds to `sum` the cotangent `d` of a bin, for pixels x to x + kPixels - 1 of row y. `index` is that of the bin's
  // first feature in d_pooled.
  template <int kPixels, int N, typename A>
  __device__ void operator()(const PoolSizes& sizes, const Roi<A>& roi, int64_t row, int64_t column, A shift_y,
                             A shift_x, int64_t y, int64_t x, const PooledCotangents& d_pooled, int64_t index,
                             Vector<A, N> (&sum)[kPixels]) const {
    A weight_y = 0, weight_x[kPixels] = {};
    const A num_points_y = ForEachPixel(sizes, roi, 0, row, shift_y, [&](int32_t pixel, A weight, A) {
      if (pixel == y) weight_y = weight;
    });
    if (weight_y == A(0)) return;
    // The loop avoids dynamic indexing, which would place weight_x in local memory.
    const A num_points_x = ForEachPixel(sizes, roi, 1, column, shift_x, [&](int32_t pixel, A weight, A) {
      for (int j = 0; j < kPixels; ++j) weight_x[j] = pixel == x + j ? weight : weight_x[j];
    });
    if (num_points_x == A(0)) return;
    const Vector<A, N> d = d_pooled.Load<N, A>(index);
    const A scale = weight_y / (num_points_y * num_points_x);
    for (int j = 0; j < kPixels; ++j) {
      if (weight_x[j] == A(0)) continue;  // 0 times an infinite cotangent would be NaN
      for (int v = 0; v < N; ++v) sum[j].value[v] += scale * weight_x[j] * d.value[v];
    }
  }
};

struct AddAtArgmax {
  static constexpr bool kIsSeparable = false;
  const int32_t* rows;  // the row, and below the column, of the largest point of each bin and feature
  const int32_t* columns;

  __device__ bool shifts_bins() const { return false; }
  template <typename A>
  __device__ A Shift(const PoolSizes&, int, int64_t) const {
    return 0;
  }

  template <int kPixels, int N, typename A>
  __device__ void operator()(const PoolSizes& sizes, const Roi<A>& roi, int64_t row, int64_t column, A, A, int64_t y,
                             int64_t x, const PooledCotangents& d_pooled, int64_t index,
                             Vector<A, N> (&sum)[kPixels]) const {
    const BinPoints<A> points_y(sizes, roi, 0, row, A(0)), points_x(sizes, roi, 1, column, A(0));
    for (int v = 0; v < N; ++v) {
      // The argmax is an operand, so it could be anything.
      const int32_t i = rows[index + v], j = columns[index + v];
      if (i < 0 || i >= points_y.count || j < 0 || j >= points_x.count) continue;
      const PoolPoint<A> point_y = points_y.Locate(sizes, roi, 0, i), point_x = points_x.Locate(sizes, roi, 1, j);
      if (!point_y.is_valid || !point_x.is_valid) continue;
      const A d = d_pooled.Load<1, A>(index + v).value[0];
      const A weight_y = point_y.WeightOf(y);
      for (int k = 0; k < kPixels; ++k) {
        const A weight = weight_y * point_x.WeightOf(x + k);
        if (weight != A(0)) sum[k].value[v] += weight * d;  // 0 times an infinite cotangent would be NaN
      }
    }
  }
};

// Lists the items of those threads of the block that have one, in the order of the threads. Returns their number. Both
// arrays are in shared memory.
__device__ int ListItems(bool has_item, int64_t item, int32_t (&counts)[kThreads / kWarp], int64_t (&list)[kThreads]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned votes = __ballot_sync(kWholeWarp, has_item);
  if (lane == 0) counts[warp] = __popc(votes);
  __syncthreads();
  int index = __popc(votes & ((1u << lane) - 1)), num_items = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) index += counts[w];
    num_items += counts[w];
  }
  if (has_item) list[index] = item;
  __syncthreads();
  return num_items;
}

// The bins that a channel group has in each RoI, at most.
struct GroupBins {
  int32_t num_rows, num_columns;

  // Rounded up, without a sum that overflows.
  __device__ explicit GroupBins(const PoolSizes& sizes)
      : num_rows((sizes.output[0] - 1) / sizes.group[0] + 1), num_columns((sizes.output[1] - 1) / sizes.group[1] + 1) {}
  __device__ int64_t count() const { return int64_t{num_rows} * num_columns; }
};

// A block's tile of the cotangent of x, and what a thread has of it: kWarpColumns pixels of a row, and N channels.
template <typename A, int N>
struct PoolTile {
  static constexpr int kColumns = kWarpColumns<A> * kWarpsAcross;

  int64_t image, batch;  // `image` counts the images of all batches
  int64_t first_y, first_x;
  int64_t y, x, channel;  // the thread's first pixel and channel
  int64_t feature, class_;
  BinRange rows, columns;  // the bins of the channel's group
  bool is_active;          // whether the thread's pixels and channels exist

  DCN_HOST_DEVICE static int32_t ChannelTiles(const PoolSizes& sizes) {
    return int32_t((sizes.channels + kWarp * N - 1) / (kWarp * N));
  }
  DCN_HOST_DEVICE static int32_t TilesAcross(const PoolSizes& sizes) {
    return int32_t((sizes.width + kColumns - 1) / kColumns);
  }
  DCN_HOST_DEVICE static int32_t TilesDown(const PoolSizes& sizes) {
    return int32_t((sizes.height + kWarpRows - 1) / kWarpRows);
  }
  DCN_HOST_DEVICE static int64_t Count(const PoolSizes& sizes) {
    return sizes.batches * sizes.images * TilesDown(sizes) * TilesAcross(sizes) * ChannelTiles(sizes);
  }

  __device__ PoolTile(const PoolSizes& sizes, int64_t block) {
    const int warp = threadIdx.x / kWarp;
    channel = (block % ChannelTiles(sizes) * kWarp + Lane()) * N;
    block /= ChannelTiles(sizes);
    first_x = block % TilesAcross(sizes) * kColumns;
    block /= TilesAcross(sizes);
    first_y = block % TilesDown(sizes) * kWarpRows;
    image = block / TilesDown(sizes);
    batch = image / sizes.images;
    y = first_y + warp / kWarpsAcross;
    x = first_x + warp % kWarpsAcross * kWarpColumns<A>;
    feature = channel / sizes.groups();
    class_ = feature / sizes.class_features();
    const int64_t group = channel % sizes.groups();
    rows = BinsOfGridCell(sizes, 0, sizes.group, group / sizes.group[1]);
    columns = BinsOfGridCell(sizes, 1, sizes.group, group % sizes.group[1]);
    is_active = channel < sizes.channels && y < sizes.height;
  }

  __device__ bool MayRead(const PointInterval<A>& points_y, const PointInterval<A>& points_x) const {
    return points_y.MayRead(first_y, first_y + kWarpRows) && points_x.MayRead(first_x, first_x + kColumns);
  }

  // Offsets may move bins to anywhere, so that with them every RoI of the image may read the tile.
  __device__ bool MayRead(const PoolSizes& sizes, const Roi<A>& roi, bool shifts_bins) const {
    if (roi.state != RoiState::kValid || roi.image != image % sizes.images) return false;
    return shifts_bins ||
           MayRead({roi, 0, BinRange{0, sizes.output[0]}, A(0)}, {roi, 1, BinRange{0, sizes.output[1]}, A(0)});
  }
};

// Adds to a thread's pixels the cotangent of one bin of its channel group.
template <typename A, int N, typename Add>
__device__ void AddBin(const PoolSizes& sizes, const Rois& rois, const Add& add, const PoolTile<A, N>& tile,
                       int64_t roi_index, int32_t row, int32_t column, const PooledCotangents& d_pooled,
                       Vector<A, N> (&sum)[kWarpColumns<A>]) {
  if (row >= tile.rows.end || column >= tile.columns.end) return;
  const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
  const int64_t offset_index = OffsetIndex(sizes, roi_index, row, column, tile.class_);
  const A shift_y = add.template Shift<A>(sizes, 0, offset_index);
  const A shift_x = add.template Shift<A>(sizes, 1, offset_index);
  if (!PointInterval<A>(roi, 0, row, shift_y).MayRead(tile.y, tile.y + 1)) return;
  if (!PointInterval<A>(roi, 1, column, shift_x).MayRead(tile.x, tile.x + kWarpColumns<A>)) return;
  const int64_t bin = (roi_index * sizes.output[0] + row) * sizes.output[1] + column;
  add(sizes, roi, row, column, shift_y, shift_x, tile.y, tile.x, d_pooled, bin * sizes.features() + tile.feature, sum);
}

// The shares that the rows and columns of a tile have of listed bins. They are the same for all channels, so each is
// computed once in a block.
template <typename A>
struct TileShares {
  A rows[kThreads][kWarpRows];
  alignas(16) A columns[kThreads][kWarpColumns<A> * kWarpsAcross];

  // Those of the calling thread's bin.
  template <int N>
  __device__ void Compute(const PoolSizes& sizes, const Rois& rois, const AddMean& add, const PoolTile<A, N>& tile,
                          int64_t bin) {
    const int64_t roi_index = bin / sizes.bins(), row = bin % sizes.bins() / sizes.output[1],
                  column = bin % sizes.output[1], offset_index = OffsetIndex(sizes, roi_index, row, column, 0);
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    const A shift_y = add.template Shift<A>(sizes, 0, offset_index);
    const A shift_x = add.template Shift<A>(sizes, 1, offset_index);
    ComputeAlong<0>(sizes, roi, row, shift_y, tile.first_y, rows[threadIdx.x]);
    ComputeAlong<1>(sizes, roi, column, shift_x, tile.first_x, columns[threadIdx.x]);
  }

  // Adds to a thread's pixels the cotangents of the bins whose shares were computed.
  template <int N>
  __device__ void AddBins(const PoolSizes& sizes, const PoolTile<A, N>& tile, const int64_t* listed, int count,
                          const PooledCotangents& d_pooled, Vector<A, N> (&sum)[kWarpColumns<A>]) const {
    const int row = int(tile.y - tile.first_y), column = int(tile.x - tile.first_x);
    for (int i = 0; i < count; ++i) {
      const A row_share = rows[i][row];
      if (row_share == A(0)) continue;
      const auto column_shares = AsVector<kWarpColumns<A>>(columns[i] + column);
      const Vector<A, N> d = d_pooled.Load<N, A>(listed[i] * sizes.channels + tile.channel);
      for (int j = 0; j < kWarpColumns<A>; ++j) {
        const A share = row_share * column_shares.value[j];
        if (share == A(0)) continue;  // 0 times an infinite cotangent would be NaN
        for (int v = 0; v < N; ++v) sum[j].value[v] += share * d.value[v];
      }
    }
  }

 private:
  // `bin` is the row (axis 0) or the column (axis 1) of bins.
  template <int axis, int kSize>
  __device__ static void ComputeAlong(const PoolSizes& sizes, const Roi<A>& roi, int64_t bin, A shift, int64_t first,
                                      A (&shares)[kSize]) {
    for (int k = 0; k < kSize; ++k) shares[k] = A(0);
    const A points = ForEachPixel(sizes, roi, axis, bin, shift, [&](int32_t pixel, A weight, A) {
      if (pixel >= first && pixel < first + kSize) shares[pixel - first] = weight;
    });
    for (int k = 0; k < kSize && points != A(0); ++k) shares[k] /= points;
  }
};

// Each thread tests one RoI, and those that may read the tile are listed. Then each thread tests one bin of the listed
// RoIs, and the bins that may read the tile are listed. Then all threads add the cotangents of the listed bins.
//
// A listed bin has a number, and stands for the bin of this number in each channel group. With one channel group and
// one class, all channels have the same bins and offsets, and one test serves them all. Otherwise these differ between
// the channels of a warp: all bins are listed, and each lane tests the bin of its own channel group.
template <typename A, int N, typename Add>
__global__ __launch_bounds__(kThreads, sizeof(A) == 8 ? 1 : 2) void XCotangentKernel(PoolSizes sizes, Rois rois,
                                                                                     Add add, PooledCotangents d_pooled,
                                                                                     A* d_x) {
  using Tile = PoolTile<A, N>;
  __shared__ int64_t listed_rois[kThreads], listed_bins[kThreads];
  __shared__ int32_t counts[kThreads / kWarp];
  __shared__ std::conditional_t<Add::kIsSeparable, TileShares<A>, char> shares;
  const bool has_common_bins = sizes.groups() == 1 && sizes.classes == 1;
  const GroupBins bins(sizes);
  const int64_t tiles = Tile::Count(sizes);
  for (int64_t block = blockIdx.x; block < tiles; block += gridDim.x) {
    const Tile tile(sizes, block);
    Vector<A, N> sum[kWarpColumns<A>] = {};
    const int64_t end_roi = (tile.batch + 1) * sizes.rois;
    for (int64_t first_roi = end_roi - sizes.rois; first_roi < end_roi; first_roi += kThreads) {
      const int64_t own_roi = first_roi + threadIdx.x;
      const bool is_roi_listed =
          own_roi < end_roi && tile.MayRead(sizes, LocateRoi<A>(sizes, rois, own_roi), add.shifts_bins());
      const int64_t num_bins = ListItems(is_roi_listed, own_roi, counts, listed_rois) * bins.count();
      for (int64_t first_bin = 0; first_bin < num_bins; first_bin += kThreads) {
        const int64_t own_bin = first_bin + threadIdx.x, bin_in_roi = own_bin % bins.count();
        const int64_t roi_index = own_bin < num_bins ? listed_rois[own_bin / bins.count()] : 0;
        bool is_bin_listed = own_bin < num_bins;
        if (is_bin_listed && has_common_bins) {
          const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
          const int32_t row = int32_t(bin_in_roi / bins.num_columns), column = int32_t(bin_in_roi % bins.num_columns);
          const int64_t offset_index = OffsetIndex(sizes, roi_index, row, column, 0);
          is_bin_listed = tile.MayRead({roi, 0, row, add.template Shift<A>(sizes, 0, offset_index)},
                                       {roi, 1, column, add.template Shift<A>(sizes, 1, offset_index)});
        }
        const int num_listed = ListItems(is_bin_listed, roi_index * bins.count() + bin_in_roi, counts, listed_bins);
        if constexpr (Add::kIsSeparable) {
          if (has_common_bins) {
            if (int(threadIdx.x) < num_listed) shares.Compute(sizes, rois, add, tile, listed_bins[threadIdx.x]);
            __syncthreads();
            if (tile.is_active) shares.AddBins(sizes, tile, listed_bins, num_listed, d_pooled, sum);
            continue;  // the next list begins with a barrier
          }
        }
        for (int i = 0; tile.is_active && i < num_listed; ++i) {
          const int64_t listed = listed_bins[i];
          const int32_t row = tile.rows.begin + int32_t(listed % bins.count() / bins.num_columns);
          const int32_t column = tile.columns.begin + int32_t(listed % bins.num_columns);
          AddBin(sizes, rois, add, tile, listed / bins.count(), row, column, d_pooled, sum);
        }
      }
    }
    if (!tile.is_active) continue;  // no barrier follows before the next block
    A* out = d_x + ((tile.image * sizes.height + tile.y) * sizes.width + tile.x) * sizes.channels + tile.channel;
    for (int j = 0; j < kWarpColumns<A>; ++j) {
      if (tile.x + j < sizes.width) AsVector<N>(out + j * sizes.channels) = sum[j];
    }
  }
}

// The calling lane's share of the dot product, over the features of a class, of a bin's cotangent and a pixel.
template <typename A>
__device__ A DotProduct(const PoolSizes& sizes, const VectorType& vector_type, int64_t class_, int lane, int lanes,
                        const char* d_bin, const char* pixel) {
  A dot = 0;
  const int64_t end = (class_ + 1) * sizes.class_features();
  vector_type.Dispatch<A>([&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    for (int64_t f = end - sizes.class_features() + lane * N; f < end; f += lanes * N) {
      const Vector<T, N> d = AsVector<N>(reinterpret_cast<const T*>(d_bin) + f),
                         value = AsVector<N>(reinterpret_cast<const T*>(pixel) + f * sizes.groups());
      for (int v = 0; v < N; ++v) dot += A(d.value[v]) * A(value.value[v]);
    }
  });
  return dot;
}

// One work item: d_offset of one part and class. It is computed by `item_lanes` neighbouring lanes, a power of two,
// which share the features of the class and add their partial sums by shuffles.
template <typename A>
__global__ void OffsetCotangentKernel(PoolSizes sizes, Rois rois, VectorType vector_type, const char* x,
                                      const char* d_pooled, A* d_offset, int item_lanes) {
  const int64_t element_bytes = vector_type.element_bytes, pixel_bytes = sizes.channels * element_bytes;
  const int64_t parts = int64_t{sizes.part[0]} * sizes.part[1] * sizes.classes;
  const int64_t n = sizes.batches * sizes.rois * parts;
  const int lane = Lane() & (item_lanes - 1);
  // A multiple of the warp size, so that all lanes of a warp reach the shuffles.
  const int64_t num_threads = (n * item_lanes + kWarp - 1) / kWarp * kWarp;
  for (int64_t thread = global_thread(); thread < num_threads; thread += grid_stride()) {
    const int64_t work_item = thread / item_lanes, roi_index = work_item / parts, class_ = work_item % sizes.classes;
    const Roi<A> roi = LocateRoi<A>(sizes, rois, work_item < n ? roi_index : 0);
    A dy = 0, dx = 0;
    if (work_item < n && roi.state == RoiState::kValid) {
      const A shift_y = ScaledOffset<A>(sizes, rois, 0, work_item);
      const A shift_x = ScaledOffset<A>(sizes, rois, 1, work_item);
      const bool is_nan = shift_x != shift_x || shift_y != shift_y;
      const int64_t part = work_item % parts / sizes.classes, first_row = FirstImageRow(sizes, roi, roi_index);
      const BinRange rows = BinsOfGridCell(sizes, 0, sizes.part, part / sizes.part[1]);
      const BinRange columns = BinsOfGridCell(sizes, 1, sizes.part, part % sizes.part[1]);
      if (is_nan && rows.size() * columns.size() > 0) dy = dx = A(NAN);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const int64_t bin = (roi_index * sizes.output[0] + row) * sizes.output[1] + column;
          const char* d_bin = d_pooled + bin * sizes.features() * element_bytes;
          const int64_t channel = ChannelGroupIndex(sizes, row, column);
          const char* image = x + first_row * sizes.width * pixel_bytes + channel * element_bytes;
          A bin_dy = 0, bin_dx = 0, num_points_x = 0;  // as many points in every row
          const auto add_row = [&](int32_t y, A weight_y, A slope_y) {
            const auto add_pixel = [&](int32_t column_of_x, A weight_x, A slope_x) {
              const char* pixel = image + (y * sizes.width + column_of_x) * pixel_bytes;
              const A dot = DotProduct<A>(sizes, vector_type, class_, lane, item_lanes, d_bin, pixel);
              bin_dy += slope_y * weight_x * dot;
              bin_dx += weight_y * slope_x * dot;
            };
            num_points_x = ForEachPixel(sizes, roi, 1, column, shift_x, add_pixel);
          };
          const A num_points_y = ForEachPixel(sizes, roi, 0, row, shift_y, add_row);
          const A num_points = num_points_y * num_points_x;
          if (num_points == A(0)) continue;
          dy += bin_dy / num_points;
          dx += bin_dx / num_points;
        }
      }
      dy *= roi.size[0] * A(sizes.trans_std);
      dx *= roi.size[1] * A(sizes.trans_std);
    }
    for (int lanes = item_lanes / 2; lanes; lanes /= 2) {
      dy += __shfl_xor_sync(kWholeWarp, dy, lanes);
      dx += __shfl_xor_sync(kWholeWarp, dx, lanes);
    }
    if (work_item >= n || lane != 0) continue;
    d_offset[2 * work_item] = dx;
    d_offset[2 * work_item + 1] = dy;
  }
}

// Each thread finds the largest points of N neighbouring features of one bin. `store` writes them, or their values;
// those of an RoI that is not pooled are empty.
template <typename A, int N, typename Store>
__global__ void MaxPoolKernel(PoolSizes sizes, Rois rois, VectorType vector_type, const char* x, Store store) {
  const int64_t vectors = sizes.channels / N, n = sizes.batches * sizes.rois * sizes.bins() * vectors;
  for (int64_t work_item = global_thread(); work_item < n; work_item += grid_stride()) {
    const int64_t f = work_item % vectors * N, bin = work_item / vectors % sizes.bins(),
                  roi_index = work_item / vectors / sizes.bins();
    const Roi<A> roi = LocateRoi<A>(sizes, rois, roi_index);
    Largest<A> largest[N];
    if (roi.state == RoiState::kValid) {
      const int64_t first_pixel = FirstImageRow(sizes, roi, roi_index) * sizes.width;
      const BinPoints<A> points_y(sizes, roi, 0, bin / sizes.output[1], A(0));
      const BinPoints<A> points_x(sizes, roi, 1, bin % sizes.output[1], A(0));
      for (int32_t i = 0; i < points_y.count; ++i) {
        const PoolPoint<A> point_y = points_y.Locate(sizes, roi, 0, i);
        for (int32_t j = 0; j < points_x.count; ++j) {
          const PoolPoint<A> point_x = points_x.Locate(sizes, roi, 1, j);
          const bool is_valid = point_y.is_valid && point_x.is_valid;
          A value[N] = {};
          vector_type.Dispatch<A, N>([&](auto tag, auto) {
            using T = decltype(tag);
            const T* const image = reinterpret_cast<const T*>(x) + first_pixel * sizes.channels + f;
#pragma unroll  // a dynamic index would place the points in local memory
            for (int k = 0; k < 4; ++k) {
              if (!is_valid) break;
              const int64_t pixel = point_y.pixel[k / 2] * sizes.width + point_x.pixel[k % 2];
              const A weight = point_y.weight(k / 2) * point_x.weight(k % 2);
              if (weight == A(0)) continue;  // 0 times an infinite pixel would be NaN
              const Vector<T, N> corner = AsVector<N>(image + pixel * sizes.channels);
              for (int v = 0; v < N; ++v) value[v] += weight * A(corner.value[v]);
            }
          });
          for (int v = 0; v < N; ++v) largest[v].Add(value[v], is_valid, i, j);
        }
      }
    }
    store.template Write<N>(vector_type, work_item * N, roi.state, largest);
  }
}

struct StoreValues {
  void* pooled;

  template <int N, typename A>
  __device__ void Write(const VectorType& vector_type, int64_t index, RoiState state,
                        const Largest<A> (&largest)[N]) const {
    vector_type.Dispatch<A, N>([&](auto tag, auto) {
      using T = decltype(tag);
      Vector<T, N> out;
      for (int v = 0; v < N; ++v) out.value[v] = T(state == RoiState::kNotFinite ? A(NAN) : largest[v].value);
      AsVector<N>(static_cast<T*>(pooled) + index) = out;
    });
  }
};

struct StoreArgmax {
  int32_t* rows;
  int32_t* columns;

  template <int N, typename A>
  __device__ void Write(const VectorType&, int64_t index, RoiState, const Largest<A> (&largest)[N]) const {
    for (int v = 0; v < N; ++v) {
      rows[index + v] = largest[v].row;
      columns[index + v] = largest[v].column;
    }
  }
};

// How many features of a class are contiguous in x: with several channel groups, features are strided.
int64_t ContiguousFeatures(const PoolSizes& sizes) { return sizes.groups() == 1 ? sizes.class_features() : 1; }

template <typename Add>
const char* LaunchXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const Add& add,
                             const void* d_pooled, void* d_x) {
  return DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    return DispatchWidth<A>(ContiguousFeatures(sizes), [&](auto width) {
      constexpr int N = decltype(width)::value;
      return Launch<XCotangentKernel<A, N, Add>>(device, PoolTile<A, N>::Count(sizes), sizes, rois, add,
                                                 PooledCotangents{dtype, d_pooled}, static_cast<A*>(d_x));
    });
  });
}

// Not a memset: one of no bytes would leave a captured graph without nodes, which XLA rejects.
template <typename A>
__global__ void ZeroKernel(A* data, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += grid_stride()) data[i] = 0;
}

template <typename Store>
const char* LaunchMaxPool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                          const Store& store) {
  const VectorType vector_type(dtype, sizes.channels);
  return DispatchSums(vector_type, [&](auto tag, auto width) {
    constexpr int N = decltype(width)::value;
    const int64_t n = sizes.batches * sizes.rois * sizes.bins() * sizes.channels / N;
    return Launch<MaxPoolKernel<decltype(tag), N, Store>>(device, BlocksFor(n), sizes, rois, vector_type,
                                                          static_cast<const char*>(x), store);
  });
}

}  // namespace

const char* Pool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x, void* pooled) {
  return DispatchVectors(dtype, ContiguousFeatures(sizes), [&](auto tag, auto width) {
    using T = decltype(tag);
    constexpr int N = decltype(width)::value;
    const int64_t n = sizes.batches * sizes.rois * sizes.bins() * sizes.features() / N;
    return Launch<PoolKernel<T, N>>(device, BlocksFor(n), sizes, rois, static_cast<const T*>(x),
                                    static_cast<T*>(pooled));
  });
}

const char* PoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* d_pooled,
                           void* d_x) {
  return LaunchXCotangent(device, dtype, sizes, rois, AddMean{rois}, d_pooled, d_x);
}

const char* PoolOffsetCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                                const void* d_pooled, void* d_offset) {
  const int64_t n = sizes.batches * sizes.rois * sizes.part[0] * sizes.part[1] * sizes.classes;
  if (sizes.features() == 0) {
    return DispatchAccumulator(dtype, [&](auto tag) {
      return Launch<ZeroKernel<decltype(tag)>>(device, BlocksFor(n * 2), static_cast<decltype(tag)*>(d_offset), n * 2);
    });
  }
  const VectorType vector_type(dtype, ContiguousFeatures(sizes));
  int item_lanes = 1;
  while (item_lanes < kWarp && item_lanes * vector_type.elements() < sizes.class_features()) item_lanes *= 2;
  return DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    return Launch<OffsetCotangentKernel<A>>(device, BlocksFor(n * item_lanes), sizes, rois, vector_type,
                                            static_cast<const char*>(x), static_cast<const char*>(d_pooled),
                                            static_cast<A*>(d_offset), item_lanes);
  });
}

const char* MaxPool(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                    void* pooled) {
  return LaunchMaxPool(device, dtype, sizes, rois, x, StoreValues{pooled});
}

const char* MaxPoolArgmax(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois, const void* x,
                          int32_t* argmax) {
  const int64_t count = sizes.batches * sizes.rois * sizes.bins() * sizes.channels;
  return LaunchMaxPool(device, dtype, sizes, rois, x, StoreArgmax{argmax, argmax + count});
}

const char* MaxPoolXCotangent(Device& device, DType dtype, const PoolSizes& sizes, const Rois& rois,
                              const void* d_pooled, const int32_t* argmax, void* d_x) {
  const int64_t count = sizes.batches * sizes.rois * sizes.bins() * sizes.channels;
  return LaunchXCotangent(device, dtype, sizes, rois, AddAtArgmax{argmax, argmax + count}, d_pooled, d_x);
}

}  // namespace dcn
