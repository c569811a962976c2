#include "aggregation/aggregation.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "aggregation/cpu_corners.h"
#include "aligned_vector.h"
#include "attributes.h"
#include "device.h"
#include "element.h"
#include "instruction_sets.h"
#include "large_pages.h"
#include "vectors.h"

DCN_BEGIN_TARGET
namespace {

// Sums are taken in the same order for every instruction set.
constexpr int kDotLanes = 8;

// The taps of the queries and heads of a block. A row is a query and a head; its index counts those of all batches.
template <typename A>
struct BlockTaps {
  const AggregationSizes& sizes;
  const Taps& taps;
  const Block& block;
  const BlockArray array;
  TapCorners<A>& corners;

  DCN_INLINE const A* weights(int64_t row) const { return static_cast<const A*>(taps.weights) + row * sizes.taps; }

  // Calls body(first row, rows) for runs of consecutive rows. Together these are the rows of queries [begin, end) and
  // the block's heads. Queries are counted through all batches. In `corners`, the taps of the first row begin at 0.
  template <typename Body>
  DCN_INLINE void ForEachRows(int64_t begin, int64_t end, const Body& body) {
    for (int64_t query = begin; query < end; ++query) {
      for (int64_t head = 0; head < block.heads; head += corners.max_heads()) {
        const int64_t heads = std::min(corners.max_heads(), block.heads - head);
        const int64_t row = query * sizes.heads + block.first_head + head;
        const A* const locations = static_cast<const A*>(taps.locations) + row * sizes.taps * 2;
        corners.Locate(array, taps.origin, query % sizes.queries(), head, heads, locations, weights(row));
        body(row, heads);
      }
    }
  }
};

// Calls body(number of vectors, first channel, channels of each vector) for consecutive channels. The number is
// a constant, so that their sums stay in registers. N: the lanes of a vector.
template <int N, typename Body>
DCN_INLINE void ForEachChannels(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + 4 * N <= channels; c += 4 * N) body(std::integral_constant<int, 4>(), c, N);
  for (; c + 2 * N <= channels; c += 2 * N) body(std::integral_constant<int, 2>(), c, N);
  for (; c < channels; c += N) {
    if (c + N <= channels) {
      body(std::integral_constant<int, 1>(), c, N);
    } else {
      body(std::integral_constant<int, 1>(), c, Tail<N>(channels - c));
    }
  }
}

// A loop that compilers would not always unroll.
template <typename Body>
DCN_INLINE void ForEachCorner(const Body& body) {
  body(0);
  body(1);
  body(2);
  body(3);
}

template <typename T>
void AggregateRows(BlockTaps<Accumulator<T>>& taps, T* out, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  constexpr int N = kVectorBytes / sizeof(A);
  const int64_t num_taps = taps.sizes.taps, channels = taps.sizes.channels;
  taps.ForEachRows(begin, end, [&](int64_t first_row, int64_t rows) DCN_INLINED {
    for (int64_t i = 0; i < rows; ++i) {
      const CornerArrays<A> corners = taps.corners.at(i * num_taps);
      T* const out_row = out + (first_row + i) * channels;
      ForEachChannels<N>(channels, [&](auto vectors, int64_t c, int count) DCN_INLINED {
        constexpr int kVectors = decltype(vectors)::value;
        // Two sums, because an addition waits for the one before it.
        Vector<A, N> sum[2][kVectors] = {};
        for (int64_t tap = 0; tap < num_taps; ++tap) {
          ForEachCorner([&](int corner) DCN_INLINED {
            const T* const pixel = reinterpret_cast<const T*>(corners.address[corner][tap]) + c;
            const A weight = corners.weight[corner][tap];
            for (int v = 0; v < kVectors; ++v) {
              sum[corner % 2][v] += weight * Load<N>(pixel + v * N, count);
            }
          });
        }
        for (int v = 0; v < kVectors; ++v) {
          Store<N>(sum[0][v] + sum[1][v], out_row + c + v * N, count);
        }
      });
    }
  });
}

// Adds what queries [begin, end) contribute to the cotangents of the block's elements, which are in its array.
template <typename T>
void ScatterRows(BlockTaps<Accumulator<T>>& taps, const T* d_out, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t num_taps = taps.sizes.taps, channels = taps.sizes.channels;
  taps.ForEachRows(begin, end, [&](int64_t first_row, int64_t rows) DCN_INLINED {
    for (int64_t i = 0; i < rows; ++i) {
      const CornerArrays<A> corners = taps.corners.at(i * num_taps);
      const T* const d_row = d_out + (first_row + i) * channels + taps.block.first_channel;
      ForEachChannels<kDotLanes>(taps.block.channels, [&](auto vectors, int64_t c, int count) DCN_INLINED {
        constexpr int kVectors = decltype(vectors)::value;
        Vector<A, kDotLanes> d[kVectors];
        for (int v = 0; v < kVectors; ++v) d[v] = Load<kDotLanes>(d_row + c + v * kDotLanes, count);
        for (int64_t tap = 0; tap < num_taps; ++tap) {
          ForEachCorner([&](int corner) DCN_INLINED {
            A* const pixel = reinterpret_cast<A*>(corners.address[corner][tap]) + c;
            const A weight = corners.weight[corner][tap];
            for (int v = 0; v < kVectors; ++v) {
              A* const sums = pixel + v * kDotLanes;
              Store<kDotLanes>(Load<kDotLanes>(sums, count) + weight * d[v], sums, count);
            }
          });
        }
      });
    }
  });
}

// The dot products of the cotangents of some rows and the pixels at their corners, four per tap.
template <typename T>
DCN_INLINE void DotCorners(const BlockTaps<Accumulator<T>>& taps, const T* d_out, int64_t rows, Accumulator<T>* dots) {
  using A = Accumulator<T>;
  const int64_t num_taps = taps.sizes.taps, channels = taps.sizes.channels;
  std::fill_n(dots, 4 * num_taps * rows, A(0));
  for (int64_t i = 0; i < rows; ++i, d_out += channels, dots += 4 * num_taps) {
    const CornerArrays<A> corners = taps.corners.at(i * num_taps);
    ForEachChannels<kDotLanes>(channels, [&](auto vectors, int64_t c, int count) DCN_INLINED {
      constexpr int kVectors = decltype(vectors)::value;
      Vector<A, kDotLanes> d[kVectors];
      for (int v = 0; v < kVectors; ++v) d[v] = Load<kDotLanes>(d_out + c + v * kDotLanes, count);
      for (int64_t tap = 0; tap < num_taps; ++tap) {
        Vector<A, kDotLanes> product[4] = {};
        ForEachCorner([&](int corner) DCN_INLINED {
          const T* const pixel = reinterpret_cast<const T*>(corners.address[corner][tap]) + c;
          for (int v = 0; v < kVectors; ++v) {
            product[corner] += d[v] * Load<kDotLanes>(pixel + v * kDotLanes, count);
          }
        });
        A* const sums = dots + 4 * tap;
        Store<4>(Load<4>(sums) + Sums<kDotLanes, A>(product), sums);
      }
    });
  }
}

// The cotangents of the first `count` taps of `corners`, from the dot products at their corners: those of the
// locations, or those of the weights.
template <bool kOfLocations, typename A>
DCN_NOINLINE void DifferentiateTaps(const TapCorners<A>& corners, int64_t count, const A* dots, const A* weights,
                                    A* __restrict cotangents) {
  for (int64_t tap = 0; tap < count; ++tap) {
    BilinearCorners<A> position = corners[tap];
    A dot[4];
    for (int corner = 0; corner < 4; ++corner) {
      const A product = dots[4 * tap + corner];
      dot[corner] = position.is_read(corner) ? product : A(0);
    }
    // Without a branch for positions outside, so that the compiler vectorizes the loop.
    const bool is_inside = position.y.is_inside & position.x.is_inside;
    const A unread = position.unread_value();
    position.y.is_inside = position.x.is_inside = true;
    const PositionCotangents<A> d = CotangentsOfPosition(position, dot, weights[tap]);
    if constexpr (kOfLocations) {
      cotangents[2 * tap] = (is_inside ? d.x : unread) * corners.derivative(1, tap);
      cotangents[2 * tap + 1] = (is_inside ? d.y : unread) * corners.derivative(0, tap);
    } else {
      cotangents[tap] = is_inside ? d.mask : unread;
    }
  }
}

template <typename T>
void DifferentiateRows(BlockTaps<Accumulator<T>>& taps, const T* d_out, int64_t begin, int64_t end,
                       Accumulator<T>* dots, Accumulator<T>* d_locations, Accumulator<T>* d_weights) {
  using A = Accumulator<T>;
  const bool moves = taps.sizes.sampling != SamplingMethod::kDiscrete;
  taps.ForEachRows(begin, end, [&](int64_t row, int64_t rows) DCN_INLINED {
    const int64_t first_tap = row * taps.sizes.taps, count = rows * taps.sizes.taps;
    DotCorners(taps, d_out + row * taps.sizes.channels, rows, dots);
    if (d_weights) {
      DifferentiateTaps<false>(taps.corners, count, dots, taps.weights(row), d_weights + first_tap);
    }
    if (d_locations && moves) {
      DifferentiateTaps<true>(taps.corners, count, dots, taps.weights(row), d_locations + 2 * first_tap);
    } else if (d_locations) {
      std::fill_n(d_locations + 2 * first_tap, 2 * count, A(0));
    }
  });
}

// Converts the sums of a block to the type of value's cotangent, and copies them to their places in it.
template <typename A, typename T>
void StoreBlock(const AggregationSizes& sizes, const Block& block, const A* sums, T* d_value) {
  for (int64_t p = 0; p < block.pixels; ++p) {
    const int64_t pixel = block.batch * sizes.pixels + block.first_pixel + p;
    for (int64_t head = 0; head < block.heads; ++head, sums += block.channels) {
      T* const out = d_value + (pixel * sizes.heads + block.first_head + head) * sizes.channels + block.first_channel;
      for (int64_t c = 0; c < block.channels; ++c) out[c] = T(sums[c]);
    }
  }
}

// Calls body(taps, begin, end) for ranges of queries, which together are the queries of all batches. The taps read
// `value`.
template <typename T, typename Body>
void ParallelQueries(Device& device, const AggregationSizes& sizes, const Taps& taps, const T* value,
                     const Body& body) {
  using A = Accumulator<T>;
  constexpr int64_t kMaxGrain = 1 << 17, kMinGrain = 1 << 13;  // channels of samples per range
  const int64_t query_size = std::max<int64_t>(1, sizes.heads * std::max(sizes.taps, 1) * sizes.channels);
  // Several ranges per thread.
  const int64_t wanted = sizes.batches * sizes.queries() / (4 * device.threads());
  const int64_t length = std::max<int64_t>(1, std::clamp(wanted, kMinGrain / query_size, kMaxGrain / query_size));
  const int64_t ranges_per_batch = (sizes.queries() + length - 1) / length, ranges = sizes.batches * ranges_per_batch;
  const int64_t pixel_size = sizes.heads * sizes.channels;
  const Block block = {0, 0, sizes.heads, 0, sizes.channels, 0, sizes.pixels};
  const std::vector<T> zeros(sizes.channels, T(0));
  const auto array_of = [&](int64_t batch) {
    return BlockArray(value + batch * sizes.pixels * pixel_size, zeros.data(), pixel_size, sizes.channels);
  };
  const auto make = [&] { return TapCorners<A>(sizes, block, array_of(0)); };
  device.ParallelFor(ranges, make, [&](TapCorners<A>& corners, int64_t i) {
    const int64_t batch = i / ranges_per_batch, begin = i % ranges_per_batch * length;
    const int64_t end = std::min(begin + length, sizes.queries()), first = batch * sizes.queries();
    BlockTaps<A> block_taps{sizes, taps, block, array_of(batch), corners};
    body(block_taps, first + begin, first + end);
  });
}

}  // namespace

const char* Aggregate(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps, const void* value,
                      void* out) {
  if (std::min({sizes.batches, sizes.queries(), sizes.heads, sizes.channels}) == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    PreferLargePages(static_cast<T*>(out), sizes.batches * sizes.queries() * sizes.heads * sizes.channels);
    ParallelQueries(device, sizes, taps, static_cast<const T*>(value), [&](auto& block, int64_t begin, int64_t end) {
      AggregateRows(block, static_cast<T*>(out), begin, end);
    });
  });
  return nullptr;
}

const char* ValueCotangent(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                           const void* d_out, bool is_wide, void* d_value, const CsrTables&) {
  if (std::min({sizes.batches, sizes.pixels, sizes.heads, sizes.channels}) == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const BlockGrid blocks(sizes, device.threads(), sizeof(A));
    const int64_t elements = sizes.batches * sizes.pixels * sizes.heads * sizes.channels;
    if (is_wide) {
      PreferLargePages(static_cast<A*>(d_value), elements);
    } else {
      PreferLargePages(static_cast<T*>(d_value), elements);
    }
    const auto compute = [&](AlignedVector<A>& sums, int64_t i) {
      const Block block = blocks[i];
      const int64_t pixel_size = block.heads * block.channels, size = block.pixels * pixel_size;
      sums.assign(size + block.channels, A(0));  // the last ones stand for corners outside the block
      if (std::min(sizes.queries(), int64_t{sizes.taps}) > 0) {
        const BlockArray array(sums.data(), sums.data() + size, pixel_size, block.channels);
        TapCorners<A> corners(sizes, block, array);
        BlockTaps<A> block_taps{sizes, taps, block, array, corners};
        const int64_t first = block.batch * sizes.queries();
        ScatterRows(block_taps, static_cast<const T*>(d_out), first, first + sizes.queries());
      }
      if (is_wide) {
        StoreBlock(sizes, block, sums.data(), static_cast<A*>(d_value));
      } else {
        StoreBlock(sizes, block, sums.data(), static_cast<T*>(d_value));
      }
    };
    device.ParallelFor(blocks.size(), [] { return AlignedVector<A>(); }, compute);
  });
  return nullptr;
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& sizes, const Taps& taps,
                          const void* value, const void* d_out, void* d_locations, void* d_weights) {
  if (std::min({sizes.batches, sizes.queries(), sizes.heads, int64_t{sizes.taps}}) == 0) return nullptr;
  Dispatch<F16, BF16>(dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = Accumulator<T>;
    const int64_t num_taps = sizes.batches * sizes.queries() * sizes.heads * sizes.taps;
    PreferLargePages(static_cast<A*>(d_locations), 2 * num_taps);
    PreferLargePages(static_cast<A*>(d_weights), num_taps);
    ParallelQueries(device, sizes, taps, static_cast<const T*>(value), [&](auto& block, int64_t begin, int64_t end) {
      std::vector<A> dots(4 * block.corners.max_heads() * sizes.taps);
      DifferentiateRows(block, static_cast<const T*>(d_out), begin, end, dots.data(), static_cast<A*>(d_locations),
                        static_cast<A*>(d_weights));
    });
  });
  return nullptr;
}

DCN_END_TARGET
