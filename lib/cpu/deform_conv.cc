#include "deform_conv.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "device.h"
#include "element.h"
#include "lanes.h"
#include "vectorize.h"

namespace dcn {
namespace {

// One axis of up to kMaxSamples samples, as arrays, so that locating them is vector code.
template <typename A>
struct Axes {
  static constexpr int kMaxSamples = 32;
  int32_t pixel[2][kMaxSamples];
  A fraction[kMaxSamples];

  DCN_INLINE void Locate(int count, A origin, const A* grid, const A* offset, int64_t size, bool circular) {
    for (int i = 0; i < count; ++i) {
      const Axis<A> axis = LocateOnAxis(origin + grid[i] + offset[2 * i], size, circular);
      pixel[0][i] = axis.pixel[0];
      pixel[1][i] = axis.pixel[1];
      fraction[i] = axis.fraction;
    }
  }

  DCN_INLINE Axis<A> operator[](int i) const {
    const bool inside = (pixel[0][i] & pixel[1][i]) >= 0;  // one at least is not -1
    return {{pixel[0][i], pixel[1][i]}, fraction[i], inside, fraction[i] != fraction[i]};
  }
};

// Where a sample belongs.
struct Place {
  int64_t image;     // of the tile
  int64_t position;  // in `mask`, and by two in `offset`
  int64_t channel;   // the first of its offset group
  int64_t column;    // where that channel is in the columns
};

// The positions of one call, typed, and the addresses within its operands. A is the accumulator type.
template <typename A>
struct Call {
  Sizes sizes;
  int64_t group_channels;
  const A *offset, *mask;
  int64_t first_image, first_row, first_column;
  std::vector<A> grid[2];  // where the taps are, y and x, for every offset group

  Call(const Sizes& sizes, const Positions& positions)
      : sizes(sizes),
        group_channels(sizes.group_channels()),
        offset(static_cast<const A*>(positions.offset)),
        mask(static_cast<const A*>(positions.mask)),
        first_image(sizes.first_image(positions.origin[0])),
        first_row(positions.origin[1]),
        first_column(positions.origin[2]) {
    const int32_t* kernel = sizes.window.kernel;
    for (int64_t g = 0; g < sizes.offset_groups; ++g) {
      for (int32_t k = 0; k < sizes.taps(); ++k) {
        grid[0].push_back(A(int64_t{k / kernel[1]} * sizes.window.dilation[0]));
        grid[1].push_back(A(int64_t{k % kernel[1]} * sizes.window.dilation[1]));
      }
    }
  }

  DCN_INLINE A Mask(int64_t position) const { return mask ? mask[position] : A(1); }

  // Calls body(sample, place) for the samples of pixels [begin, end) of the tile, through all images, in offset groups
  // [first, last].
  template <typename Body>
  DCN_INLINE void ForEachSample(int64_t begin, int64_t end, int64_t first, int64_t last, const Body& body) const {
    const Window& window = sizes.window;
    const int64_t taps = sizes.taps(), positions = sizes.offset_groups * taps;
    Axes<A> y, x;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / sizes.columns, image = row / sizes.rows;
      const int64_t top = (first_row + row % sizes.rows) * window.strides[0] - window.padding[0];
      const int64_t left = (first_column + p % sizes.columns) * window.strides[1] - window.padding[1];
      int64_t g = first, k = 0;
      for (int64_t j = first * taps; j < (last + 1) * taps; j += Axes<A>::kMaxSamples) {
        const int count = int(std::min<int64_t>(Axes<A>::kMaxSamples, (last + 1) * taps - j));
        const A* moved = offset + 2 * (p * positions + j);
        if (window.circular) {
          y.Locate(count, A(top), &grid[0][j], moved, sizes.height, true);
          x.Locate(count, A(left), &grid[1][j], moved + 1, sizes.width, true);
        } else {
          y.Locate(count, A(top), &grid[0][j], moved, sizes.height, false);
          x.Locate(count, A(left), &grid[1][j], moved + 1, sizes.width, false);
        }
        for (int i = 0; i < count; ++i) {
          const int64_t channel = g * group_channels;
          body(Sample<A>{y[i], x[i]},
               Place{image, p * positions + j + i, channel, (p * taps + k) * sizes.channels + channel});
          if (++k == taps) {
            k = 0;
            ++g;
          }
        }
      }
    }
  }
};

// The channels of a sample's offset group at its four corners, top left, top right, bottom left, bottom right, and the
// corners' weights.
template <typename T>
struct Corners {
  using A = Accumulator<T>;
  const T* row[4];
  A weight[4];

  DCN_INLINE Corners(const Call<A>& call, const Sample<A>& sample, const Place& place, const T* x, const T* zeros) {
    const Sizes& sizes = call.sizes;
    const A nothing = sample.nan() ? std::numeric_limits<A>::quiet_NaN() : A(0);
    x += (call.first_image + place.image) * sizes.height * sizes.width * sizes.channels + place.channel;
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      const int64_t pixel = sample.y.pixel[i] * sizes.width + sample.x.pixel[j];
      row[corner] = sample.touches(i, j) ? x + pixel * sizes.channels : zeros;
      weight[corner] = sample.inside() ? sample.weight(i, j) : nothing;
    }
  }

  DCN_INLINE Lanes<A> At(int corner, int64_t c, int count) const { return Lanes<A>(row[corner] + c, count); }

  DCN_INLINE void Blend(A mask, int64_t channels, T* out) const {
    ForEachLanes(channels, [&](int64_t c, int count) DCN_INLINED {
      Lanes<A> sum;
      for (int corner = 0; corner < 4; ++corner) sum.value += weight[corner] * At(corner, c, count).value;
      sum.value *= mask;
      sum.Store(out + c, count);
    });
  }

  DCN_INLINE void Dot(const A* d, int64_t channels, A dot[4]) const {
    Lanes<A> sum[4];
    ForEachLanes(channels, [&](int64_t c, int count) DCN_INLINED {
      const Lanes<A> own(d + c, count);
      for (int corner = 0; corner < 4; ++corner) sum[corner].value += own.value * At(corner, c, count).value;
    });
    for (int corner = 0; corner < 4; ++corner) dot[corner] = sum[corner].Sum();
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
  const auto one = [&](const auto& sample, const Place& place) DCN_INLINED {
    const Corners<T> corners(call, sample, place, x, zeros);
    corners.Blend(call.Mask(place.position), call.group_channels, columns + place.column);
  };
  call.ForEachSample(begin, end, 0, call.sizes.offset_groups - 1, one);
}

template <typename T>
DCN_VECTORIZED void OffsetCotangentOfPixels(const Call<Accumulator<T>>& call, const T* x, const T* zeros,
                                            const Accumulator<T>* d_columns, Accumulator<T>* d_offset,
                                            Accumulator<T>* d_mask, T* columns, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const auto one = [&](const Sample<A>& sample, const Place& place) DCN_INLINED {
    const Corners<T> corners(call, sample, place, x, zeros);
    const A mask = call.Mask(place.position);
    if (columns) corners.Blend(mask, call.group_channels, columns + place.column);
    A dot[4], dy = 0, dx = 0, dm = 0;
    corners.Dot(d_columns + place.column, call.group_channels, dot);
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      dy += sample.weight_dy(i, j) * dot[corner];
      dx += sample.weight_dx(i, j) * dot[corner];
      dm += corners.weight[corner] * dot[corner];
    }
    if (d_offset) {
      d_offset[2 * place.position] = sample.inside() ? mask * dy : dm;
      d_offset[2 * place.position + 1] = sample.inside() ? mask * dx : dm;
    }
    if (d_mask) d_mask[place.position] = dm;
  };
  call.ForEachSample(begin, end, 0, call.sizes.offset_groups - 1, one);
}

// Adds to channels [first, end) of an image what its samples scatter there.
template <typename A>
DCN_VECTORIZED void ScatterSamples(const Call<A>& call, const A* d_columns, A* d_x, int64_t image, int64_t first,
                                   int64_t end) {
  const Sizes& sizes = call.sizes;
  const int64_t pixels = sizes.rows * sizes.columns;
  d_x += image * sizes.height * sizes.width * sizes.channels;
  const auto one = [&](const Sample<A>& sample, const Place& place) DCN_INLINED {
    const int64_t channel = std::max(first, place.channel);
    const int64_t channels = std::min(end, place.channel + call.group_channels) - channel;
    const A* d = d_columns + place.column + channel - place.channel;
    for (int corner = 0; corner < 4; ++corner) {
      const int i = corner / 2, j = corner % 2;
      if (!sample.touches(i, j)) continue;
      const A weight = sample.weight(i, j) * call.Mask(place.position);
      A* out = d_x + (sample.y.pixel[i] * sizes.width + sample.x.pixel[j]) * sizes.channels + channel;
      ForEachLanes(channels, [&](int64_t c, int count) DCN_INLINED {
        Lanes<A> sum(out + c, count);
        sum.value += weight * Lanes<A>(d + c, count).value;
        sum.Store(out + c, count);
      });
    }
  };
  call.ForEachSample(image * pixels, (image + 1) * pixels, first / call.group_channels, (end - 1) / call.group_channels,
                     one);
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  if (sizes.pixels() == 0) return nullptr;
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
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  if (sizes.pixels() == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const Call<Accumulator<T>> call(sizes, positions);
    const std::vector<T> zeros(sizes.group_channels(), T(0));
    ParallelRanges(device, sizes.pixels(), sizes.taps() * sizes.channels, [&](int64_t begin, int64_t end) {
      OffsetCotangentOfPixels(call, static_cast<const T*>(x), zeros.data(), static_cast<const A*>(d_columns),
                              static_cast<A*>(d_offset), static_cast<A*>(d_mask), static_cast<T*>(columns), begin, end);
    });
  });
  return nullptr;
}

int64_t WorkspaceSize(const Sizes&) { return 0; }

// Each thread has channels of its own, so that all add in the order of the samples, however many threads there are.
const char* InputCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const void* d_columns, void* d_x, int32_t*) {
  if (sizes.pixels() == 0) return nullptr;
  constexpr int64_t kCacheLine = 16;  // channels
  const int64_t threads = (device.threads() + sizes.images - 1) / sizes.images;
  const int64_t lines = (sizes.channels + kCacheLine - 1) / kCacheLine;
  const int64_t width = std::max<int64_t>(1, (lines + threads - 1) / threads) * kCacheLine;
  const int64_t slices = (sizes.channels + width - 1) / width;
  DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    const Call<A> call(sizes, positions);
    device.ParallelFor(sizes.images * slices, [&](int64_t i) {
      const int64_t first = i % slices * width;
      ScatterSamples(call, static_cast<const A*>(d_columns), static_cast<A*>(d_x), i / slices, first,
                     std::min(first + width, sizes.channels));
    });
  });
  return nullptr;
}

}  // namespace dcn
