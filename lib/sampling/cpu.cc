#include "sampling/sampling.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "aligned_vector.h"
#include "attributes.h"
#include "device.h"
#include "element.h"
#include "instruction_sets.h"
#include "large_pages.h"
#include "sampling/cpu_taps.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// Sums over channels are taken in the same order for every instruction set.
constexpr int kDotLanes = 8;
// With at most so many channels, kernels are compiled for their number.
constexpr int kFewChannels = 4;

// Calls body with the number of channels as a constant if they are few, and with 0 otherwise. The elements of an image
// of few channels have indices of 32 bits.
template <typename Body>
DCN_INLINE void DispatchChannels(const SamplingSizes& sizes, const Body& body) {
  static_assert(kFewChannels == 4);
  const int64_t channels = sizes.pixels() * sizes.channels > INT32_MAX ? 0 : sizes.channels;
  if (channels == 1) return body(std::integral_constant<int, 1>());
  if (channels == 2) return body(std::integral_constant<int, 2>());
  if (channels == 3) return body(std::integral_constant<int, 3>());
  if (channels == 4) return body(std::integral_constant<int, 4>());
  body(std::integral_constant<int, 0>());
}

// Calls body(number of vectors, first channel, channels of each vector) for consecutive channels. The number is
// a constant, so that their sums stay in registers. N: the lanes of a vector.
template <int N, typename Body>
DCN_INLINE void ForEachChannels(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + 4 * N <= channels; c += 4 * N) body(std::integral_constant<int, 4>(), c, N);
  for (; c + N <= channels; c += N) body(std::integral_constant<int, 1>(), c, N);
  if (c < channels) body(std::integral_constant<int, 1>(), c, Tail<N>(channels - c));
}

// The channels of the pixel that a tap reads, or zeros.
template <typename T>
DCN_INLINE const T* PixelAt(const T* image, int32_t pixel, int64_t channels, const T* zeros) {
  return pixel < 0 ? zeros : image + pixel * channels;
}

// The pixels that the samples of a block of few channels load for a tap.
template <int kChannels, typename T>
DCN_INLINE void ReadFew(const int32_t* loaded, const T* image, Accumulator<T> (&values)[kChannels][kBlockPoints]) {
  for (int p = 0; p < kBlockPoints; ++p) {
    const T* const from = image + loaded[p] * kChannels;
    for (int c = 0; c < kChannels; ++c) values[c][p] = Accumulator<T>(from[c]);
  }
}

// The pixels, of one channel, that neighbouring points read as a tap.
template <int N, typename T, size_t... kIndices>
DCN_INLINE Vector<Accumulator<T>, N> ReadOne(const int32_t* pixel, const T* image, std::index_sequence<kIndices...>) {
  return Vector<Accumulator<T>, N>{Accumulator<T>(image[pixel[kIndices]])...};
}

// Two neighbouring pixels, of one channel, that each of some neighbouring points reads.
template <int N>
struct Pairs {
  FloatsOf<N> first, second;

  template <size_t... kHalf, size_t... kIndices>
  DCN_INLINE Pairs(const int32_t* pixel, const float* image, std::index_sequence<kHalf...>,
                   std::index_sequence<kIndices...>) {
    const auto load = [&](int32_t at) DCN_INLINED { return *reinterpret_cast<const Unaligned*>(image + at); };
    const FloatsOf<N> low = (FloatsOf<N>)Vector<double, N / 2>{load(pixel[kHalf])...};
    const FloatsOf<N> high = (FloatsOf<N>)Vector<double, N / 2>{load(pixel[N / 2 + kHalf])...};
    first = __builtin_shufflevector(low, high, 2 * kIndices...);
    second = __builtin_shufflevector(low, high, (2 * kIndices + 1)...);
  }

 private:
  typedef double Unaligned __attribute__((aligned(4), may_alias));
};

// The samples of neighbouring points whose taps are pairs.
DCN_INLINE Floats SumOfPairs(const SampleTaps<float>& taps, const float* image, int p) {
  Floats sum = {};
  for (int32_t at = p; at < taps.taps() * kBlockPoints; at += 2 * kBlockPoints) {
    const Pairs<kLanes> pair(taps.pixel(0) + at, image, std::make_index_sequence<kLanes / 2>(),
                             std::make_index_sequence<kLanes>());
    sum += Load(taps.weight(0) + at) * pair.first;
    sum += Load(taps.weight(1) + at) * pair.second;
  }
  return sum;
}

// The samples of a block with one channel.
template <typename T>
DCN_INLINE void SampleOne(const SampleTaps<Accumulator<T>>& taps, const T* image, T* out, int count) {
  using A = Accumulator<T>;
  constexpr int N = kVectorBytes / sizeof(A);
  for (int p = 0; p < count; p += N) {
    if constexpr (std::is_same_v<T, float>) {
      if (taps.has_pairs(p)) {
        Store(SumOfPairs(taps, image, p), out + p, count - p);
        continue;
      }
    }
    Vector<A, N> sum = Load<N>(taps.unread() + p);
    for (int32_t tap = 0; tap < taps.taps(); ++tap) {
      const Vector<A, N> value = ReadOne<N>(taps.loaded(tap) + p, image, std::make_index_sequence<N>());
      const Vector<int32_t, N> is_read = LoadUnconverted<N>(taps.pixel(tap) + p) >= 0;
      const auto mask = __builtin_convertvector(is_read, decltype(value == value));
      sum += Load<N>(taps.weight(tap) + p) * (mask ? value : Vector<A, N>{});
    }
    Store<N>(sum, out + p, count - p);
  }
}

// The two to four channels of a pixel, loaded one by one: a vector that is copied from pieces in memory would wait for
// their stores.
template <int kChannels, typename T>
DCN_INLINE Vector<Accumulator<T>, 4> LoadFew(const T* from) {
  static_assert(2 <= kChannels && kChannels <= 4);
  using A = Accumulator<T>;
  if constexpr (kChannels == 4) return Load<4>(from);
  return Vector<A, 4>{A(from[0]), A(from[1]), kChannels == 3 ? A(from[kChannels - 1]) : A(0), A(0)};
}

// The samples of a block with two to four channels. The number of taps is a constant; otherwise GCC builds the vectors
// of pixels in memory.
template <int kChannels, int kTaps, typename T>
DCN_INLINE void SampleFew(const SampleTaps<Accumulator<T>>& taps, const T* image, const T* zeros, T* out, int count) {
  using A = Accumulator<T>;
  if constexpr (kTaps < kMaxTaps) {
    if (kTaps < taps.taps()) return SampleFew<kChannels, 2 * kTaps>(taps, image, zeros, out, count);
  }
  const int32_t* const pixels = taps.pixel(0);
  const A *const weights = taps.weight(0), *const unread = taps.unread();
  for (int p = 0; p < count; ++p) {
    Vector<A, 4> sum = {unread[p], unread[p], unread[p], unread[p]};
    for (int tap = 0; tap < kTaps; ++tap) {
      const int at = tap * kBlockPoints + p;
      sum += weights[at] * LoadFew<kChannels>(PixelAt(image, pixels[at], kChannels, zeros));
    }
    for (int c = 0; c < kChannels; ++c) out[p * kChannels + c] = T(sum[c]);
  }
}

template <typename T>
DCN_INLINE void SampleMany(const SampleTaps<Accumulator<T>>& taps, const T* image, const T* zeros, int64_t channels,
                           T* out, int count) {
  using A = Accumulator<T>;
  constexpr int N = kVectorBytes / sizeof(A);
  for (int p = 0; p < count; ++p, out += channels) {
    ForEachChannels<N>(channels, [&](auto vectors, int64_t c, int lanes) DCN_INLINED {
      constexpr int kVectors = decltype(vectors)::value;
      Vector<A, N> sum[kVectors];
      for (int v = 0; v < kVectors; ++v) sum[v] = Vector<A, N>{} + taps.unread()[p];
      for (int32_t tap = 0; tap < taps.taps(); ++tap) {
        const T* const from = PixelAt(image, taps.pixel(tap)[p], channels, zeros) + c;
        const A weight = taps.weight(tap)[p];
        for (int v = 0; v < kVectors; ++v) sum[v] += weight * Load<N>(from + v * N, lanes);
      }
      for (int v = 0; v < kVectors; ++v) Store<N>(sum[v], out + c + v * N, lanes);
    });
  }
}

// The products of the samples' cotangents and the pixels of their taps, as Differentiate takes them.
template <int kChannels, typename T>
DCN_INLINE void DotFew(const SampleTaps<Accumulator<T>>& taps, const T* image, const T* d_out, int count,
                       Accumulator<T>* dots) {
  using A = Accumulator<T>;
  A d[kChannels][kBlockPoints] = {};
  for (int p = 0; p < count; ++p) {
    for (int c = 0; c < kChannels; ++c) d[c][p] = A(d_out[p * kChannels + c]);
  }
  for (int32_t tap = 0; tap < taps.taps(); ++tap, dots += kBlockPoints) {
    const int32_t* const pixel = taps.pixel(tap);
    A value[kChannels][kBlockPoints];
    ReadFew(taps.loaded(tap), image, value);
    DCN_INDEPENDENT_ITERATIONS
    for (int p = 0; p < kBlockPoints; ++p) {
      A dot = 0;
      for (int c = 0; c < kChannels; ++c) dot += d[c][p] * value[c][p];
      dots[p] = pixel[p] < 0 ? A(0) : dot;
    }
  }
}

template <typename T>
DCN_INLINE void DotMany(const SampleTaps<Accumulator<T>>& taps, const T* image, const T* zeros, const T* d_out,
                        int64_t channels, int count, Accumulator<T>* dots) {
  using A = Accumulator<T>;
  for (int p = 0; p < count; ++p, d_out += channels) {
    for (int32_t tap = 0; tap < taps.taps(); ++tap) {
      const int32_t pixel = taps.pixel(tap)[p];
      const T* const from = PixelAt(image, pixel, channels, zeros);
      Vector<A, kDotLanes> sum[4] = {};
      ForEachChannels<kDotLanes>(channels, [&](auto vectors, int64_t c, int lanes) DCN_INLINED {
        for (int v = 0; v < decltype(vectors)::value; ++v) {
          const int64_t at = c + v * kDotLanes;
          sum[v] += Load<kDotLanes>(d_out + at, lanes) * Load<kDotLanes>(from + at, lanes);
        }
      });
      const Vector<A, 4> sums = Sums<kDotLanes, A>(sum);
      dots[tap * kBlockPoints + p] = pixel < 0 ? A(0) : (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
  }
}

// Calls body(taps, batch, first, count) for blocks of points, which together are the points of all batches, with the
// taps of each block.
template <typename A, typename Body>
void ParallelPoints(Device& device, const SamplingSizes& sizes, const Coordinates<const A>& locations,
                    const Body& body) {
  constexpr int64_t kGrain = 1 << 16;  // channels of pixels that a range reads
  const int64_t block_size = kBlockPoints * sizes.taps() * std::max<int64_t>(sizes.channels, 1);
  const int64_t blocks_per_batch = (sizes.points + kBlockPoints - 1) / kBlockPoints;
  const int64_t blocks = sizes.batches * blocks_per_batch, length = std::max<int64_t>(1, kGrain / block_size);
  const int64_t ranges = (blocks + length - 1) / length;
  const auto make = [&] { return SampleTaps<A>(sizes); };
  device.ParallelFor(ranges, make, [&](SampleTaps<A>& taps, int64_t range) {
    for (int64_t i = range * length; i < std::min((range + 1) * length, blocks); ++i) {
      const int64_t batch = i / blocks_per_batch, first = i % blocks_per_batch * kBlockPoints;
      const int count = int(std::min<int64_t>(kBlockPoints, sizes.points - first));
      taps.Locate(locations, batch, first, count);
      body(taps, batch, first, count);
    }
  });
}

// A share of x's cotangent, which one task computes: some consecutive pixels and channels of an image.
struct Share {
  int64_t batch, first_pixel, pixels, first_channel, channels;
};

// How x's cotangent is divided: by images, then by channels, then by pixels. Each share locates all points of its
// image, and most of them read no pixel of a share that has few, so pixels are divided last, or for the limit on
// memory.
struct ShareGrid {
  const SamplingSizes& sizes;
  int64_t pixels, channels;  // of a share

  ShareGrid(const SamplingSizes& sizes, int64_t threads, int64_t sum_bytes) : sizes(sizes) {
    constexpr int64_t kMinChannels = 16;  // a cache line
    constexpr int64_t kMemory = 48 << 20;
    const int64_t wanted = (threads + sizes.batches - 1) / sizes.batches;
    const int64_t by_channels = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(sizes.channels / kMinChannels, 1));
    channels = (sizes.channels + by_channels - 1) / by_channels;
    const int64_t by_pixels = (wanted + by_channels - 1) / by_channels;
    pixels = (sizes.pixels() + by_pixels - 1) / by_pixels;
    if (sum_bytes) pixels = std::clamp<int64_t>(kMemory / threads / sum_bytes / channels, 1, pixels);
  }

  int64_t size() const { return sizes.batches * ChannelShares() * PixelShares(); }

  Share operator[](int64_t i) const {
    const int64_t pixel = i % PixelShares() * pixels, channel = i / PixelShares() % ChannelShares() * channels;
    return {i / PixelShares() / ChannelShares(), pixel, std::min(pixels, sizes.pixels() - pixel), channel,
            std::min(channels, sizes.channels - channel)};
  }

 private:
  int64_t ChannelShares() const { return (sizes.channels + channels - 1) / channels; }
  int64_t PixelShares() const { return (sizes.pixels() + pixels - 1) / pixels; }
};

// Adds the cotangents of a block's samples to a share of x's. sums: that of the share's first element; its pixels are
// pixel_stride elements apart.
template <int kChannels, typename T>
DCN_INLINE void Scatter(const SampleTaps<Accumulator<T>>& taps, const Share& share, const T* d_out, int64_t channels,
                        int count, Accumulator<T>* sums, int64_t pixel_stride) {
  using A = Accumulator<T>;
  for (int p = 0; p < count; ++p) {
    const T* const d = d_out + p * (kChannels ? kChannels : channels) + share.first_channel;
    for (int32_t tap = 0; tap < taps.taps(); ++tap) {
      const int64_t pixel = taps.pixel(tap)[p] - share.first_pixel;
      if (taps.pixel(tap)[p] < 0 || uint64_t(pixel) >= uint64_t(share.pixels)) continue;
      const A weight = taps.weight(tap)[p];
      A* const to = sums + pixel * pixel_stride;
      if constexpr (kChannels > 0) {
        for (int c = 0; c < kChannels; ++c) to[c] += weight * A(d[c]);
      } else {
        AddProducts(weight, d, share.channels, to);
      }
    }
  }
}

// The buffers of a thread, which computes one share after the other.
template <typename A>
struct ShareBuffers {
  SampleTaps<A> taps;
  AlignedVector<A> sums;  // where x's cotangent has another type
};

// Computes a share of x's cotangent, of type S: T or A.
template <typename S, typename T>
void ComputeShare(const SamplingSizes& sizes, const Share& share, const Coordinates<const Accumulator<T>>& locations,
                  const T* d_out, S* d_x, ShareBuffers<Accumulator<T>>& buffers) {
  using A = Accumulator<T>;
  S* const out = d_x + (share.batch * sizes.pixels() + share.first_pixel) * sizes.channels + share.first_channel;
  A* sums;
  int64_t pixel_stride = sizes.channels;
  if constexpr (std::is_same_v<S, A>) {
    sums = out;
    const bool has_all_channels = share.channels == sizes.channels;
    const int64_t runs = has_all_channels ? 1 : share.pixels, length = has_all_channels ? share.pixels : 1;
    for (int64_t run = 0; run < runs; ++run) std::fill_n(out + run * sizes.channels, length * share.channels, A(0));
  } else {
    buffers.sums.assign(share.pixels * share.channels, A(0));
    sums = buffers.sums.data();
    pixel_stride = share.channels;
  }
  DispatchChannels(sizes, [&](auto few) DCN_INLINED {
    for (int64_t first = 0; first < sizes.points; first += kBlockPoints) {
      const int count = int(std::min<int64_t>(kBlockPoints, sizes.points - first));
      buffers.taps.Locate(locations, share.batch, first, count);
      const T* const d = d_out + (share.batch * sizes.points + first) * sizes.channels;
      Scatter<decltype(few)::value>(buffers.taps, share, d, sizes.channels, count, sums, pixel_stride);
    }
  });
  if constexpr (!std::is_same_v<S, A>) {
    for (int64_t pixel = 0; pixel < share.pixels; ++pixel) {
      for (int64_t c = 0; c < share.channels; ++c) {
        out[pixel * sizes.channels + c] = S(sums[pixel * pixel_stride + c]);
      }
    }
  }
}

}  // namespace

const char* Sample(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                   const Coordinates<const void>& locations, void* out) {
  if (std::min({sizes.batches, sizes.points, sizes.channels}) == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    PreferLargePages(static_cast<T*>(out), sizes.batches * sizes.points * sizes.channels);
    const std::vector<T> zeros(sizes.channels, T(0));
    // Points that read no pixel load the first one, which an empty image lacks.
    const T* const images = sizes.pixels() ? static_cast<const T*>(x) : zeros.data();
    const auto sample = [&](const SampleTaps<A>& taps, int64_t batch, int64_t first, int count) {
      const T* const image = images + batch * sizes.pixels() * sizes.channels;
      T* const block = static_cast<T*>(out) + (batch * sizes.points + first) * sizes.channels;
      DispatchChannels(sizes, [&](auto few) DCN_INLINED {
        if constexpr (decltype(few)::value == 1) {
          SampleOne(taps, image, block, count);
        } else if constexpr (decltype(few)::value > 0) {
          SampleFew<decltype(few)::value, 1>(taps, image, zeros.data(), block, count);
        } else {
          SampleMany(taps, image, zeros.data(), sizes.channels, block, count);
        }
      });
    };
    ParallelPoints(device, sizes, locations.As<const A>(), sample);
  });
  return nullptr;
}

const char* SamplingXCotangent(Device& device, DType dtype, const SamplingSizes& sizes,
                               const Coordinates<const void>& locations, const void* d_out, bool is_wide, void* d_x,
                               const CsrTables&) {
  if (std::min({sizes.batches, sizes.pixels(), sizes.channels}) == 0) return nullptr;
  const int64_t threads = device.threads();
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const auto compute = [&](auto* result) {
      using S = std::remove_pointer_t<decltype(result)>;
      PreferLargePages(result, sizes.batches * sizes.pixels() * sizes.channels);
      const Coordinates<const A> typed = locations.As<const A>();
      const ShareGrid shares(sizes, threads, std::is_same_v<S, A> ? 0 : sizeof(A));
      const auto make = [&] { return ShareBuffers<A>{SampleTaps<A>(sizes), {}}; };
      device.ParallelFor(shares.size(), make, [&](ShareBuffers<A>& buffers, int64_t i) {
        ComputeShare(sizes, shares[i], typed, static_cast<const T*>(d_out), result, buffers);
      });
    };
    is_wide ? compute(static_cast<A*>(d_x)) : compute(static_cast<T*>(d_x));
  });
  return nullptr;
}

const char* SamplingLocationsCotangent(Device& device, DType dtype, const SamplingSizes& sizes, const void* x,
                                       const Coordinates<const void>& locations, const void* d_out,
                                       const Coordinates<void>& d_locations) {
  if (std::min(sizes.batches, sizes.points) == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const Coordinates<A> typed = d_locations.As<A>();
    const int64_t elements = sizes.batches * sizes.points * (sizes.is_planar ? 1 : sizes.dims);
    for (int axis = 0; axis < (sizes.is_planar ? sizes.dims : 1); ++axis) PreferLargePages(typed.array[axis], elements);
    const std::vector<T> zeros(std::max<int64_t>(sizes.channels, 1), T(0));
    const T* const images = sizes.pixels() ? static_cast<const T*>(x) : zeros.data();
    const auto differentiate = [&](const SampleTaps<A>& taps, int64_t batch, int64_t first, int count) {
      std::vector<A> dots(taps.taps() * kBlockPoints);
      const T* const image = images + batch * sizes.pixels() * sizes.channels;
      const T* const d = static_cast<const T*>(d_out) + (batch * sizes.points + first) * sizes.channels;
      DispatchChannels(sizes, [&](auto few) DCN_INLINED {
        if constexpr (decltype(few)::value > 0) {
          DotFew<decltype(few)::value>(taps, image, d, count, dots.data());
        } else {
          DotMany(taps, image, zeros.data(), d, sizes.channels, count, dots.data());
        }
      });
      taps.Differentiate(dots.data(), typed);
    };
    ParallelPoints(device, sizes, locations.As<const A>(), differentiate);
  });
  return nullptr;
}

DCN_END_TARGET
