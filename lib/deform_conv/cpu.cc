#include "deform_conv/deform_conv.h"

#include <algorithm>
#include <vector>

#include "attributes.h"
#include "bilinear.h"
#include "device.h"
#include "element.h"
#include "instruction_sets.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// Sums are taken in the same order for every instruction set.
constexpr int kDotLanes = 8;
template <typename A>
using Channels = Vector<A, kDotLanes>;

// The locations of up to kMaxSamples samples on one axis, as arrays, so that the compiler vectorizes Locate.
template <typename A>
struct AxisLocations {
  static constexpr int kMaxSamples = 32;
  int32_t pixel[2][kMaxSamples];
  A fraction[kMaxSamples];

  // `start` and `distance` are whole numbers, whose sum as double is exact.
  DCN_NOINLINE void Locate(int count, double start, const double* distance, const A* offset, int64_t size,
                           bool circular) {
    circular ? LocateBy<true>(count, start, distance, offset, size)
             : LocateBy<false>(count, start, distance, offset, size);
  }

  DCN_INLINE AxisLocation<A> operator[](int i) const {
    return {{pixel[0][i], pixel[1][i]}, fraction[i], pixel[0][i] != kOutside};
  }

 private:
  template <bool kIsCircular>
  DCN_INLINE void LocateBy(int count, double start, const double* distance, const A* offset, int64_t size) {
    for (int i = 0; i < count; ++i) {
      const AxisLocation<A> location = LocateOnAxis(A(start + distance[i]) + offset[2 * i], size, kIsCircular);
      pixel[0][i] = location.pixel[0];
      pixel[1][i] = location.pixel[1];
      fraction[i] = location.fraction;
    }
  }
};

// The indices of a sample in the operands.
struct SampleIndices {
  int64_t image;    // of the part
  int64_t sample;   // in `mask`, and in `offset` as pairs
  int64_t channel;  // the first of the offset group
  int64_t column;   // of that channel, in the columns
};

// The sizes and positions of a call's part, which all operations need. A is the accumulator type.
template <typename A>
struct PartPositions {
  Sizes sizes;
  int64_t group_channels;
  const A *offset, *mask;
  int64_t first_image, first_row, first_column, first_sample;
  std::vector<double> distance[2];  // of the taps from the first: vertical, horizontal; repeated for each offset group

  DCN_NOINLINE PartPositions(const Sizes& sizes, const Positions& positions)
      : sizes(sizes),
        group_channels(sizes.group_channels()),
        offset(static_cast<const A*>(positions.offset)),
        mask(static_cast<const A*>(positions.mask)),
        first_image(sizes.first_image(positions.origin)),
        first_row(positions.origin[1]),
        first_column(positions.origin[2]),
        first_sample(sizes.first_sample(positions.origin)) {
    for (int axis = 0; axis < 2; ++axis) {
      for (int64_t g = 0; g < sizes.offset_groups; ++g) {
        for (int32_t k = 0; k < sizes.taps(); ++k) distance[axis].push_back(double(sizes.window.distance(axis, k)));
      }
    }
  }

  DCN_INLINE A Mask(int64_t sample_index) const { return mask ? mask[sample_index] : A(1); }

  // Calls body(BilinearCorners, SampleIndices) for the samples of output pixels [begin, end) and offset groups
  // [first, last]. The pixels of the part are counted through all images.
  template <typename Body>
  DCN_INLINE void ForEachSample(int64_t begin, int64_t end, int64_t first, int64_t last, const Body& body) const {
    const Window& window = sizes.window;
    const int64_t taps = sizes.taps(), pixel_samples = sizes.offset_groups * taps;
    constexpr int kMaxSamples = AxisLocations<A>::kMaxSamples;
    AxisLocations<A> y, x;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / sizes.columns, image = row / sizes.rows;
      const double top = double(window.start(0, first_row + row % sizes.rows));
      const double left = double(window.start(1, first_column + p % sizes.columns));
      int64_t g = first, k = 0;
      for (int64_t j = first * taps; j < (last + 1) * taps; j += kMaxSamples) {
        const int count = int(std::min<int64_t>(kMaxSamples, (last + 1) * taps - j));
        const int64_t sample = first_sample + p * pixel_samples + j;
        y.Locate(count, top, &distance[0][j], offset + 2 * sample, sizes.height, window.circular);
        x.Locate(count, left, &distance[1][j], offset + 2 * sample + 1, sizes.width, window.circular);
        for (int i = 0; i < count; ++i) {
          const int64_t channel = g * group_channels;
          body(BilinearCorners<A>{y[i], x[i]},
               SampleIndices{image, sample + i, channel, (p * taps + k) * sizes.channels + channel});
          if (++k == taps) {
            k = 0;
            ++g;
          }
        }
      }
    }
  }
};

// The pixels at a sample's four corners: their addresses, at the first channel of the offset group, and their weights.
// A corner that is not read has the address of zeros.
template <typename T>
struct CornerPixels {
  using A = Accumulator<T>;
  const T* address[4];
  A weight[4];

  DCN_INLINE CornerPixels(const PartPositions<A>& part, const BilinearCorners<A>& corners, const SampleIndices& indices,
                          const T* x, const T* zeros) {
    const Sizes& sizes = part.sizes;
    x += (part.first_image + indices.image) * sizes.height * sizes.width * sizes.channels + indices.channel;
    for (int corner = 0; corner < 4; ++corner) {
      const int64_t pixel = corners.pixel(corner, 0, sizes.width);
      address[corner] = corners.is_read(corner) ? x + pixel * sizes.channels : zeros;
      weight[corner] = corners.weight(corner);
    }
  }

  DCN_INLINE Channels<A> At(int corner, int64_t c, int count) const {
    return Load<kDotLanes>(address[corner] + c, count);
  }

  DCN_INLINE void Blend(A mask, int64_t channels, T* out) const {
    ForEachVector<kDotLanes>(channels, [&](int64_t c, int count) DCN_INLINED {
      Channels<A> sum = {};
      for (int corner = 0; corner < 4; ++corner) sum += weight[corner] * At(corner, c, count);
      Store<kDotLanes>(sum * mask, out + c, count);
    });
  }

  DCN_INLINE void Dot(const A* d, int64_t channels, A dot[4]) const {
    Channels<A> sum[4] = {};
    ForEachVector<kDotLanes>(channels, [&](int64_t c, int count) DCN_INLINED {
      const Channels<A> cotangent = Load<kDotLanes>(d + c, count);
      for (int corner = 0; corner < 4; ++corner) sum[corner] += cotangent * At(corner, c, count);
    });
    for (int corner = 0; corner < 4; ++corner) {
      const Vector<A, 4> four = FourSums<kDotLanes, A>(sum[corner]);
      dot[corner] = (four[0] + four[2]) + (four[1] + four[3]);
    }
  }
};

// Calls body(value of the type of x, PartPositions, zeros, begin, end) on ranges of the part's pixels, each with about
// kGrain elements of the columns. Together they cover the part.
template <typename Body>
void RunOnPixels(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const Body& body) {
  constexpr int64_t kGrain = 1 << 16;
  const int64_t pixels = sizes.pixels();
  if (pixels == 0) return;
  const int64_t length = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, sizes.taps() * sizes.channels));
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    const PartPositions<Accumulator<T>> part(sizes, positions);
    const std::vector<T> zeros(sizes.group_channels(), T(0));
    device.ParallelFor((pixels + length - 1) / length, [&](int64_t i) {
      body(tag, part, zeros.data(), i * length, std::min(pixels, (i + 1) * length));
    });
  });
}

template <typename T>
void SamplePixels(const PartPositions<Accumulator<T>>& part, const T* x, const T* zeros, T* columns, int64_t begin,
                  int64_t end) {
  const auto sample = [&](const BilinearCorners<Accumulator<T>>& corners, const SampleIndices& indices) DCN_INLINED {
    const CornerPixels<T> pixels(part, corners, indices, x, zeros);
    pixels.Blend(part.Mask(indices.sample), part.group_channels, columns + indices.column);
  };
  part.ForEachSample(begin, end, 0, part.sizes.offset_groups - 1, sample);
}

template <typename T>
void SampleTangentsOfPixels(const PartPositions<Accumulator<T>>& part, const Tangents& tangents, const T* x,
                            const T* zeros, bool columns_requested, T* columns, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const T* const d_x = static_cast<const T*>(tangents.x);
  const A* const d_offset = static_cast<const A*>(tangents.offset);
  const A* const d_mask = static_cast<const A*>(tangents.mask);
  const int64_t arrays = columns_requested ? 2 : 1;
  const auto sample = [&](const BilinearCorners<A>& corners, const SampleIndices& indices) DCN_INLINED {
    const CornerPixels<T> pixels(part, corners, indices, x, zeros);
    const CornerPixels<T> pixel_tangents(part, corners, indices, d_x ? d_x : x, zeros);
    const A mask = part.Mask(indices.sample), mask_tangent = d_mask ? d_mask[indices.sample] : A(0);
    A weight_tangent[4];
    for (int corner = 0; d_offset && corner < 4; ++corner) {
      weight_tangent[corner] =
          corners.weight_tangent(corner, d_offset[2 * indices.sample], d_offset[2 * indices.sample + 1]);
    }
    T* const out = columns + arrays * (indices.column - indices.channel) + indices.channel;
    // A tangent that is zero has no term, which would be NaN for an infinite factor.
    ForEachVector<kDotLanes>(part.group_channels, [&](int64_t c, int count) DCN_INLINED {
      Channels<A> value = {}, tangent = {};
      for (int corner = 0; corner < 4; ++corner) {
        const Channels<A> pixel = pixels.At(corner, c, count);
        value += pixels.weight[corner] * pixel;
        if (d_offset) tangent += weight_tangent[corner] * pixel;
        if (d_x) tangent += pixels.weight[corner] * pixel_tangents.At(corner, c, count);
      }
      if (d_x || d_offset) tangent *= mask;
      if (d_mask) tangent += mask_tangent * value;
      Store<kDotLanes>(tangent, out + c, count);
      if (!columns_requested) return;
      Store<kDotLanes>(value * mask, out + part.sizes.channels + c, count);
    });
  };
  part.ForEachSample(begin, end, 0, part.sizes.offset_groups - 1, sample);
}

template <typename T>
void OffsetCotangentOfPixels(const PartPositions<Accumulator<T>>& part, const T* x, const T* zeros,
                             const Accumulator<T>* d_columns, Accumulator<T>* d_offset, Accumulator<T>* d_mask,
                             T* columns, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const auto differentiate = [&](const BilinearCorners<A>& corners, const SampleIndices& indices) DCN_INLINED {
    const CornerPixels<T> pixels(part, corners, indices, x, zeros);
    const A mask = part.Mask(indices.sample);
    if (columns) pixels.Blend(mask, part.group_channels, columns + indices.column);
    A dot[4];
    pixels.Dot(d_columns + indices.column, part.group_channels, dot);
    const PositionCotangents<A> cotangents = CotangentsOfPosition(corners, dot, mask);
    if (d_offset) {
      d_offset[2 * indices.sample] = cotangents.y;
      d_offset[2 * indices.sample + 1] = cotangents.x;
    }
    if (d_mask) d_mask[indices.sample] = cotangents.mask;
  };
  part.ForEachSample(begin, end, 0, part.sizes.offset_groups - 1, differentiate);
}

// Scatters the cotangents of an image's samples to channels [first, end) of d_x.
template <typename A>
void ScatterSamples(const PartPositions<A>& part, const A* d_columns, A* d_x, int64_t image, int64_t first,
                    int64_t end) {
  const Sizes& sizes = part.sizes;
  const int64_t pixels = sizes.rows * sizes.columns;
  d_x += (part.first_image + image) * sizes.height * sizes.width * sizes.channels;
  const auto scatter = [&](const BilinearCorners<A>& corners, const SampleIndices& indices) DCN_INLINED {
    const int64_t channel = std::max(first, indices.channel);
    const int64_t channels = std::min(end, indices.channel + part.group_channels) - channel;
    const A* d = d_columns + indices.column + channel - indices.channel;
    for (int corner = 0; corner < 4; ++corner) {
      if (!corners.is_read(corner)) continue;
      const A weight = corners.weight(corner) * part.Mask(indices.sample);
      A* out = d_x + corners.pixel(corner, 0, sizes.width) * sizes.channels + channel;
      ForEachVector<kDotLanes>(channels, [&](int64_t c, int count) DCN_INLINED {
        Store<kDotLanes>(Load<kDotLanes>(out + c, count) + weight * Load<kDotLanes>(d + c, count), out + c, count);
      });
    }
  };
  part.ForEachSample(image * pixels, (image + 1) * pixels, first / part.group_channels, (end - 1) / part.group_channels,
                     scatter);
}

}  // namespace

const char* SampleColumns(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                          void* columns) {
  RunOnPixels(device, dtype, sizes, positions, [&](auto tag, const auto& part, const auto* zeros, auto... range) {
    using T = decltype(tag);
    SamplePixels(part, static_cast<const T*>(x), zeros, static_cast<T*>(columns), range...);
  });
  return nullptr;
}

const char* SampleTangents(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                           const Tangents& tangents, const void* x, bool columns_requested, void* columns) {
  RunOnPixels(device, dtype, sizes, positions, [&](auto tag, const auto& part, const auto* zeros, auto... range) {
    using T = decltype(tag);
    SampleTangentsOfPixels(part, tangents, static_cast<const T*>(x), zeros, columns_requested, static_cast<T*>(columns),
                           range...);
  });
  return nullptr;
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  RunOnPixels(device, dtype, sizes, positions, [&](auto tag, const auto& part, const auto* zeros, auto... range) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    OffsetCotangentOfPixels(part, static_cast<const T*>(x), zeros, static_cast<const A*>(d_columns),
                            static_cast<A*>(d_offset), static_cast<A*>(d_mask), static_cast<T*>(columns), range...);
  });
  return nullptr;
}

// Each task has its own channels, so that sums are taken in the order of the samples for any number of threads.
const char* XCotangent(Device& device, DType dtype, const Sizes& sizes, const Positions& positions,
                       const void* d_columns, void* d_x) {
  if (sizes.pixels() == 0) return nullptr;
  constexpr int64_t kCacheLine = 16;  // channels
  const int64_t threads = (device.threads() + sizes.images - 1) / sizes.images;
  const int64_t lines = (sizes.channels + kCacheLine - 1) / kCacheLine;
  const int64_t width = std::max<int64_t>(1, (lines + threads - 1) / threads) * kCacheLine;
  const int64_t slices = (sizes.channels + width - 1) / width;
  DispatchAccumulator(dtype, [&](auto tag) {
    using A = decltype(tag);
    const PartPositions<A> part(sizes, positions);
    device.ParallelFor(sizes.images * slices, [&](int64_t i) {
      const int64_t first = i % slices * width;
      ScatterSamples(part, static_cast<const A*>(d_columns), static_cast<A*>(d_x), i / slices, first,
                     std::min(first + width, sizes.channels));
    });
  });
  return nullptr;
}

DCN_END_TARGET
