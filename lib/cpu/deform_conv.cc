#include "deform_conv.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "device.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {
namespace {

constexpr int kLanes = 16;

// The channels of one offset group at a sample's four corners, top left, top right, bottom left, bottom right.
template <typename T>
struct Corners {
  const T* row[4];
};

template <typename T, typename A>
DCN_INLINE void Blend(T* out, const Corners<T>& corners, const A weight[4], A mask, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    out[c] = T(mask * (weight[0] * A(corners.row[0][c]) + weight[1] * A(corners.row[1][c]) +
                       weight[2] * A(corners.row[2][c]) + weight[3] * A(corners.row[3][c])));
  }
}

// dot[i] = sum over channels of v · corner i, in the same order for every instruction set.
template <typename T, typename A>
DCN_INLINE void Dot(A dot[4], const A* v, const Corners<T>& corners, int64_t channels) {
  A sum[4][kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    for (int i = 0; i < 4; ++i) {
      for (int l = 0; l < kLanes; ++l) sum[i][l] += v[c + l] * A(corners.row[i][c + l]);
    }
  }
  for (int l = 0; c < channels; ++c, ++l) {
    for (int i = 0; i < 4; ++i) sum[i][l] += v[c] * A(corners.row[i][c]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int half = kLanes / 2; half; half /= 2) {
      for (int l = 0; l < half; ++l) sum[i][l] += sum[i][l + half];
    }
    dot[i] = sum[i][0];
  }
}

template <typename A>
DCN_INLINE void AddScaled(A* __restrict__ out, const A* __restrict__ v, A weight, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) out[c] += weight * v[c];
}

// The positions of one call, typed, and the addresses within its operands. A is the accumulator type.
template <typename A>
struct Call {
  Sizes sizes;
  const A *offset, *mask;
  int64_t first_image, first_row, first_column;

  Call(const Sizes& sizes, const Positions& positions)
      : sizes(sizes),
        offset(static_cast<const A*>(positions.offset)),
        mask(static_cast<const A*>(positions.mask)),
        first_image(sizes.first_image(positions.origin[0])),
        first_row(positions.origin[1]),
        first_column(positions.origin[2]) {}

  // Where offset group g of tap k of output pixel p stands in `offset` (by two) and `mask`.
  DCN_INLINE int64_t Position(int64_t p, int64_t g, int32_t k) const {
    return (p * sizes.offset_groups + g) * sizes.taps() + k;
  }
  DCN_INLINE A Mask(int64_t position) const { return mask ? mask[position] : A(1); }

  // `p` counts the pixels of the tile, through all images.
  DCN_INLINE Sample<A> LocateSample(int64_t p, int64_t position, int32_t k) const {
    const int64_t row = p / sizes.columns % sizes.rows, column = p % sizes.columns;
    return Locate(sizes.window, sizes.height, sizes.width, first_row + row, first_column + column, k,
                  offset + 2 * position);
  }

  template <typename T>
  DCN_INLINE Corners<T> CornersOf(const Sample<A>& sample, const T* x, const T* zeros, int64_t p, int64_t g) const {
    const int64_t image = first_image + p / (sizes.rows * sizes.columns);
    Corners<T> corners;
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      const int64_t pixel = (image * sizes.height + sample.y.pixel[i]) * sizes.width + sample.x.pixel[j];
      corners.row[corner] = sample.touches(i, j) ? x + pixel * sizes.channels + g * sizes.group_channels() : zeros;
    }
    return corners;
  }
};

// Calls body(begin, end) on ranges that cover [0, n), each about `grain` elements of work.
template <typename Body>
void ParallelRanges(Device& device, int64_t n, int64_t work_each, const Body& body) {
  constexpr int64_t kGrain = 1 << 16;
  const int64_t length = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_each));
  device.ParallelFor((n + length - 1) / length, [&](int64_t i) { body(i * length, std::min(n, (i + 1) * length)); });
}

template <typename T>
DCN_VECTORIZED void SamplePixels(const Call<Accumulator<T>>& call, const T* x, const T* zeros, T* columns,
                                 int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const Sizes& sizes = call.sizes;
  const int32_t taps = sizes.taps();
  for (int64_t p = begin; p < end; ++p) {
    for (int32_t k = 0; k < taps; ++k) {
      for (int64_t g = 0; g < sizes.offset_groups; ++g) {
        const int64_t position = call.Position(p, g, k);
        const Sample<A> sample = call.LocateSample(p, position, k);
        const A nothing = sample.nan() ? std::numeric_limits<A>::quiet_NaN() : A(0);
        A weight[4];
        for (int corner = 0; corner < 4; ++corner) {
          weight[corner] = sample.inside() ? sample.weight(corner / 2, corner % 2) : nothing;
        }
        Blend(columns + (p * taps + k) * sizes.channels + g * sizes.group_channels(),
              call.CornersOf(sample, x, zeros, p, g), weight, call.Mask(position), sizes.group_channels());
      }
    }
  }
}

template <typename T>
DCN_VECTORIZED void OffsetCotangentOfPixels(const Call<Accumulator<T>>& call, const T* x, const T* zeros,
                                            const Accumulator<T>* d_columns, Accumulator<T>* d_offset,
                                            Accumulator<T>* d_mask, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const Sizes& sizes = call.sizes;
  const int32_t taps = sizes.taps();
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t g = 0; g < sizes.offset_groups; ++g) {
      for (int32_t k = 0; k < taps; ++k) {
        const int64_t position = call.Position(p, g, k);
        const Sample<A> sample = call.LocateSample(p, position, k);
        A dy = 0, dx = 0, dm = 0;
        if (sample.nan()) {
          dy = dx = dm = std::numeric_limits<A>::quiet_NaN();
        } else if (sample.inside()) {
          A dot[4];
          Dot(dot, d_columns + (p * taps + k) * sizes.channels + g * sizes.group_channels(),
              call.CornersOf(sample, x, zeros, p, g), sizes.group_channels());
          for (int corner = 0; corner < 4; ++corner) {
            const int i = corner / 2, j = corner % 2;
            dy += sample.weight_dy(i, j) * dot[corner];
            dx += sample.weight_dx(i, j) * dot[corner];
            dm += sample.weight(i, j) * dot[corner];
          }
          dy *= call.Mask(position);
          dx *= call.Mask(position);
        }
        if (d_offset) {
          d_offset[2 * position] = dy;
          d_offset[2 * position + 1] = dx;
        }
        if (d_mask) d_mask[position] = dm;
      }
    }
  }
}

// A counting sort of one image's samples in one offset group. A few rows of samples touch few of the cells of a large
// image: only these are counted.
template <typename A>
DCN_VECTORIZED void BinSamplesOf(const Call<A>& call, int64_t image, int64_t g, int32_t* order, int32_t* starts,
                                 int32_t* cell_of) {
  const Sizes& sizes = call.sizes;
  const int32_t taps = sizes.taps();
  const int64_t pixels = sizes.rows * sizes.columns, cells = sizes.cells();
  int32_t first = int32_t(cells), last = -1;
  for (int64_t p = 0; p < pixels; ++p) {
    for (int32_t k = 0; k < taps; ++k) {
      const int64_t p_of_all = image * pixels + p;
      const auto sample = call.LocateSample(p_of_all, call.Position(p_of_all, g, k), k);
      const int32_t cell = int32_t(CellOf(sample, sizes.width));
      cell_of[p * taps + k] = cell;
      if (cell < 0) continue;
      first = std::min(first, cell);
      last = std::max(last, cell);
    }
  }
  std::fill_n(starts, last + 2, 0);
  for (int64_t s = 0; s < pixels * taps; ++s) {
    if (cell_of[s] >= 0) ++starts[cell_of[s] + 1];
  }
  // starts[c + 1] becomes cell c's start, and then, a sample at a time, its end: the start of cell c + 1.
  int32_t start = 0;
  for (int64_t cell = first; cell <= last; ++cell) start += std::exchange(starts[cell + 1], start);
  std::fill(starts + last + 2, starts + cells + 1, start);
  for (int64_t s = 0; s < pixels * taps; ++s) {
    if (cell_of[s] >= 0) order[starts[cell_of[s] + 1]++] = int32_t(s);
  }
}

// Whether there are samples in the cells around a row of pixels.
bool RowIsTouched(const Sizes& sizes, const Bins& bins, int64_t image, int64_t y) {
  for (int64_t g = 0; g < sizes.offset_groups; ++g) {
    const int32_t* starts = bins.starts + (image * sizes.offset_groups + g) * (sizes.cells() + 1);
    for (int i = 0; i < 2; ++i) {
      // A row of cells begins one before that of its first pixel.
      const int64_t cell = CellWithCorner(y, 0, i, 0, sizes.height, sizes.width, sizes.window.circular) - 1;
      if (starts[cell + sizes.width + 1] > starts[cell]) return true;
    }
  }
  return false;
}

template <typename A>
DCN_VECTORIZED void GatherRow(const Call<A>& call, const Bins& bins, const A* d_columns, A* d_x, int64_t image_row) {
  const Sizes& sizes = call.sizes;
  const int32_t taps = sizes.taps();
  const int64_t image = image_row / sizes.height, y = image_row % sizes.height;
  const int64_t first_pixel = image * sizes.rows * sizes.columns;
  if (!RowIsTouched(sizes, bins, image, y)) return;
  for (int64_t x = 0; x < sizes.width; ++x) {
    for (int64_t g = 0; g < sizes.offset_groups; ++g) {
      const int64_t bin = image * sizes.offset_groups + g;
      const int32_t* order = bins.order + bin * sizes.samples();
      const int32_t* starts = bins.starts + bin * (sizes.cells() + 1);
      A* out = d_x + (image_row * sizes.width + x) * sizes.channels + g * sizes.group_channels();
      for (int corner = 0; corner < 4; ++corner) {
        const int i = corner / 2, j = corner % 2;
        const int64_t cell = CellWithCorner(y, x, i, j, sizes.height, sizes.width, sizes.window.circular);
        for (int32_t entry = starts[cell]; entry < starts[cell + 1]; ++entry) {
          const int64_t p = first_pixel + order[entry] / taps;
          const int32_t k = order[entry] % taps;
          const int64_t position = call.Position(p, g, k);
          const A weight = call.LocateSample(p, position, k).weight(i, j) * call.Mask(position);
          AddScaled(out, d_columns + (p * taps + k) * sizes.channels + g * sizes.group_channels(), weight,
                    sizes.group_channels());
        }
      }
    }
  }
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const Call<Accumulator<T>> call(sizes, positions);
    const std::vector<T> zeros(sizes.group_channels(), T(0));
    ParallelRanges(device, sizes.pixels(), sizes.taps() * sizes.channels, [&](int64_t begin, int64_t end) {
      SamplePixels(call, static_cast<const T*>(x), zeros.data(), static_cast<T*>(columns), begin, end);
    });
  });
  return nullptr;
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask) {
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const Call<Accumulator<T>> call(sizes, positions);
    const std::vector<T> zeros(sizes.group_channels(), T(0));
    ParallelRanges(device, sizes.pixels(), sizes.taps() * sizes.channels, [&](int64_t begin, int64_t end) {
      OffsetCotangentOfPixels(call, static_cast<const T*>(x), zeros.data(), static_cast<const A*>(d_columns),
                              static_cast<A*>(d_offset), static_cast<A*>(d_mask), begin, end);
    });
  });
  return nullptr;
}

const char* BinSamples(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const Bins& bins,
                       int32_t* workspace) {
  DispatchAccumulator(dtype, [&](auto tag) {
    const Call<decltype(tag)> call(sizes, positions);
    device.ParallelFor(sizes.images * sizes.offset_groups, [&](int64_t bin) {
      BinSamplesOf(call, bin / sizes.offset_groups, bin % sizes.offset_groups, bins.order + bin * sizes.samples(),
                   bins.starts + bin * (sizes.cells() + 1), workspace + bin * sizes.samples());
    });
  });
  return nullptr;
}

const char* InputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const Bins& bins, const void* d_columns, void* d_x) {
  DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    const Call<A> call(sizes, positions);
    device.ParallelFor(sizes.images * sizes.height, [&](int64_t image_row) {
      GatherRow(call, bins, static_cast<const A*>(d_columns), static_cast<A*>(d_x), image_row);
    });
  });
  return nullptr;
}

}  // namespace dcn
