// Vectors of neighbouring channels or samples, as wide as those of the instruction set, or with another number of
// lanes. They replace arrays, because compilers vectorize short loops only sometimes. A vector that is wider than those
// of the processor is made of narrower ones, because compilers would pass it through the stack.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "attributes.h"
#include "dtype.h"
#include "element.h"
#include "instruction_sets.h"

#if DCN_HAS_X86_KERNELS
#include <immintrin.h>
#endif
#if DCN_HAS_NEON_KERNELS
#include <arm_neon.h>
#endif

DCN_BEGIN_TARGET
namespace {

constexpr int kVectorBytes = RowOf(InstructionSet::DCN_INSTRUCTION_SET).vector_bytes;
constexpr int kLanes = kVectorBytes / sizeof(float);
constexpr int kNarrow = kLanes / 2;  // lanes of narrower vectors

template <typename T, int kCount>
constexpr bool kIsWide = sizeof(T) * kCount > kVectorBytes;

template <typename T, int kCount, bool = kIsWide<T, kCount>>
struct VectorOf {
  typedef T Aligned __attribute__((vector_size(sizeof(T) * kCount)));
  typedef T Unaligned __attribute__((vector_size(sizeof(T) * kCount), aligned(alignof(T)), may_alias));
};
template <typename T, int kCount = kVectorBytes / sizeof(T)>
using Vector = typename VectorOf<T, kCount>::Aligned;

// A vector that is wider than those of the processor: two that are half as wide.
template <typename T, int kCount>
struct WideVector {
  Vector<T, kCount / 2> low, high;

  friend DCN_INLINE WideVector operator+(const WideVector& a, const WideVector& b) {
    return {a.low + b.low, a.high + b.high};
  }
  friend DCN_INLINE WideVector operator*(const WideVector& a, const WideVector& b) {
    return {a.low * b.low, a.high * b.high};
  }
  friend DCN_INLINE WideVector operator*(T a, const WideVector& b) { return {a * b.low, a * b.high}; }
  friend DCN_INLINE WideVector operator*(const WideVector& a, T b) { return {a.low * b, a.high * b}; }
  DCN_INLINE WideVector& operator+=(const WideVector& other) { return *this = *this + other; }
  DCN_INLINE WideVector& operator*=(T factor) { return *this = *this * factor; }
  DCN_INLINE T operator[](int i) const { return i < kCount / 2 ? low[i] : high[i - kCount / 2]; }
};
template <typename T, int kCount>
struct VectorOf<T, kCount, true> {
  using Aligned = WideVector<T, kCount>;
};

template <int kCount>
using FloatsOf = Vector<float, kCount>;
template <int kCount>
using WordsOf = Vector<uint32_t, kCount>;
using Floats = FloatsOf<kLanes>;
using Words = WordsOf<kLanes>;

template <int kCount, typename T>
DCN_INLINE Vector<T, kCount> LoadUnconverted(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T, kCount>::Unaligned*>(from);
}
template <int kCount, typename T>
DCN_INLINE void StoreUnconverted(const Vector<T, kCount>& value, T* to) {
  *reinterpret_cast<typename VectorOf<T, kCount>::Unaligned*>(to) = value;
}

// Elements as the accumulator type, in a vector of the processor.
template <int kCount>
DCN_INLINE FloatsOf<kCount> LoadNarrow(const float* from) {
  return LoadUnconverted<kCount>(from);
}
template <int kCount>
DCN_INLINE Vector<double, kCount> LoadNarrow(const double* from) {
  return LoadUnconverted<kCount>(from);
}
template <int kCount>
DCN_INLINE FloatsOf<kCount> LoadNarrow(const BF16* from) {
#if DCN_HAS_X86_KERNELS
  // GCC 12 makes four instructions of a conversion of vectors.
  if constexpr (kVectorBytes == 64 && kCount == 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (FloatsOf<kCount>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
  } else if constexpr (kVectorBytes >= 32 && kCount == 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return (FloatsOf<kCount>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
  } else if constexpr (kCount == 4) {
    const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return (FloatsOf<kCount>)_mm_unpacklo_epi16(_mm_setzero_si128(), halves);
  }
#elif DCN_HAS_NEON_KERNELS
  if constexpr (kCount == 4) return (FloatsOf<kCount>)vshll_n_u16(vld1_u16(&from->bits), 16);
#endif
  float lanes[kCount];
  for (int i = 0; i < kCount; ++i) lanes[i] = float(from[i]);
  return LoadNarrow<kCount>(lanes);
}
template <int kCount>
DCN_INLINE FloatsOf<kCount> LoadNarrow(const F16* from) {
#if DCN_HAS_X86_KERNELS
  if constexpr (kVectorBytes == 64 && kCount == 16) {
    return (FloatsOf<kCount>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else if constexpr (kVectorBytes >= 32 && kCount == 8) {
    return (FloatsOf<kCount>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (kVectorBytes >= 32 && kCount == 4) {
    return (FloatsOf<kCount>)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
#elif DCN_HAS_NEON_KERNELS
  if constexpr (kCount == 4) {
    return (FloatsOf<kCount>)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
  }
#endif
  const auto halves = LoadUnconverted<kCount>(reinterpret_cast<const uint16_t*>(from));
  FloatsOf<kCount> value;
  F16::Convert<Vector<int32_t, kCount>>(__builtin_convertvector(halves, WordsOf<kCount>), value);
  return value;
}

// Rounded to bfloat16 in the low halves of words: to nearest, ties to even, as BF16 does.
template <int kCount = kLanes>
DCN_INLINE WordsOf<kCount> RoundedBits(const FloatsOf<kCount>& value) {
  const WordsOf<kCount> bits = (WordsOf<kCount>)value;
  const WordsOf<kCount> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet_nan = (bits >> 16) | 0x40;
  // The magnitude as signed integers, because AVX2 has no unsigned comparison.
  return (Vector<int32_t, kCount>)(bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded;
}

template <int kCount>
DCN_INLINE void StoreNarrow(const FloatsOf<kCount>& value, float* to) {
  StoreUnconverted<kCount>(value, to);
}
template <int kCount>
DCN_INLINE void StoreNarrow(const Vector<double, kCount>& value, double* to) {
  StoreUnconverted<kCount>(value, to);
}
template <int kCount>
DCN_INLINE void StoreNarrow(const FloatsOf<kCount>& value, BF16* to) {
  StoreUnconverted<kCount>(__builtin_convertvector(RoundedBits<kCount>(value), Vector<uint16_t, kCount>),
                           reinterpret_cast<uint16_t*>(to));
}
template <int kCount>
DCN_INLINE void StoreNarrow(const FloatsOf<kCount>& value, F16* to) {
#if DCN_HAS_X86_KERNELS
  constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT;
  if constexpr (kVectorBytes == 64 && kCount == 16) {
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                               _mm512_cvtps_ph((__m512)value, kToNearest | _MM_FROUND_NO_EXC));
  } else if constexpr (kVectorBytes >= 32 && kCount == 8) {
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, kToNearest));
  } else if constexpr (kVectorBytes >= 32 && kCount == 4) {
    return _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph((__m128)value, kToNearest));
  }
#elif DCN_HAS_NEON_KERNELS
  if constexpr (kCount == 4) {
    return vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
  }
#endif
  for (int i = 0; i < kCount; ++i) to[i] = F16(value[i]);
}

// Elements as the accumulator type.
template <int kCount = kLanes, typename T>
DCN_INLINE Vector<Accumulator<T>, kCount> Load(const T* from) {
  if constexpr (kIsWide<Accumulator<T>, kCount>) {
    return {Load<kCount / 2>(from), Load<kCount / 2>(from + kCount / 2)};
  } else {
    return LoadNarrow<kCount>(from);
  }
}
template <int kCount = kLanes, typename T>
DCN_INLINE void Store(const Vector<Accumulator<T>, kCount>& value, T* to) {
  if constexpr (kIsWide<Accumulator<T>, kCount>) {
    Store<kCount / 2>(value.low, to);
    Store<kCount / 2>(value.high, to + kCount / 2);
  } else {
    StoreNarrow<kCount>(value, to);
  }
}

// The first `count` lanes; the others are zero. Tails are not inlined, because kernels have many of them.
template <int kCount, typename T>
DCN_NOINLINE Vector<Accumulator<T>, kCount> LoadTail(const T* from, int64_t count) {
  T lanes[kCount] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return Load<kCount>(lanes);
}
template <int kCount = kLanes, typename T>
DCN_INLINE Vector<Accumulator<T>, kCount> Load(const T* from, int64_t count) {
  return count >= kCount ? Load<kCount>(from) : LoadTail<kCount>(from, count);
}
template <int kCount, typename T>
DCN_NOINLINE void StoreTail(const Vector<Accumulator<T>, kCount>& value, T* to, int64_t count) {
  T lanes[kCount];
  Store<kCount>(value, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}
template <int kCount = kLanes, typename T>
DCN_INLINE void Store(const Vector<Accumulator<T>, kCount>& value, T* to, int64_t count) {
  count >= kCount ? Store<kCount>(value, to) : StoreTail<kCount>(value, to, count);
}

DCN_INLINE Words BroadcastWord(const float* value) { return BitCast<uint32_t>(*value) + Words{}; }

template <int kCount, int kFirst, typename A, size_t... kIndices>
DCN_INLINE Vector<A, sizeof...(kIndices)> Lanes(const Vector<A, kCount>& value, std::index_sequence<kIndices...>) {
  return Vector<A, sizeof...(kIndices)>{value[kFirst + kIndices]...};
}

// Adds up lanes until four are left.
template <int kCount, typename A = float>
DCN_INLINE Vector<A, 4> FourSums(const Vector<A, kCount>& value) {
  if constexpr (kCount == 2) {
    return Vector<A, 4>{value[0], value[1], 0, 0};
  } else if constexpr (kCount == 4) {
    return value;
  } else if constexpr (kIsWide<A, kCount>) {
    return FourSums<kCount / 2, A>(value.low + value.high);
  } else {
    constexpr auto kHalf = std::make_index_sequence<kCount / 2>();
    return FourSums<kCount / 2, A>(Lanes<kCount, 0, A>(value, kHalf) + Lanes<kCount, kCount / 2, A>(value, kHalf));
  }
}

// The sum of all lanes of each vector. The order depends on the number of lanes only.
template <int kCount, typename A = float>
DCN_INLINE Vector<A, 4> Sums(const Vector<A, kCount> (&values)[4]) {
  using Four = Vector<A, 4>;
  const Four a = FourSums<kCount, A>(values[0]), b = FourSums<kCount, A>(values[1]);
  const Four c = FourSums<kCount, A>(values[2]), d = FourSums<kCount, A>(values[3]);
  const Four ab = Four{a[0], b[0], a[1], b[1]} + Four{a[2], b[2], a[3], b[3]};
  const Four cd = Four{c[0], d[0], c[1], d[1]} + Four{c[2], d[2], c[3], d[3]};
  return Four{ab[0], ab[1], cd[0], cd[1]} + Four{ab[2], ab[3], cd[2], cd[3]};
}

DCN_INLINE void Transpose(FloatsOf<4> (&rows)[4]) {
  using Four = FloatsOf<4>;
#if DCN_HAS_X86_KERNELS
  // GCC 12 would make a load of each element.
  __m128 a = (__m128)rows[0], b = (__m128)rows[1], c = (__m128)rows[2], d = (__m128)rows[3];
  _MM_TRANSPOSE4_PS(a, b, c, d);
  rows[0] = (Four)a;
  rows[1] = (Four)b;
  rows[2] = (Four)c;
  rows[3] = (Four)d;
#else
  const auto [a, b, c, d] = rows;
  const Four ab = {a[0], b[0], a[1], b[1]}, ab_end = {a[2], b[2], a[3], b[3]};
  const Four cd = {c[0], d[0], c[1], d[1]}, cd_end = {c[2], d[2], c[3], d[3]};
  rows[0] = Four{ab[0], ab[1], cd[0], cd[1]};
  rows[1] = Four{ab[2], ab[3], cd[2], cd[3]};
  rows[2] = Four{ab_end[0], ab_end[1], cd_end[0], cd_end[1]};
  rows[3] = Four{ab_end[2], ab_end[3], cd_end[2], cd_end[3]};
#endif
}

// Tells the compiler that `count` is less than kCount, so that it removes the branch for whole vectors.
template <int kCount>
DCN_INLINE int Tail(int64_t count) {
  if (count >= kCount) __builtin_unreachable();
  return int(count);
}

// Calls body(first_channel, count) for consecutive vectors of at most kCount channels.
template <int kCount, typename Body>
DCN_INLINE void ForEachVector(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + kCount <= channels; c += kCount) body(c, kCount);
  if (c < channels) body(c, Tail<kCount>(channels - c));
}

// Adds factor · from[i] to sums[i]. The arrays do not overlap. What remains after whole vectors is added in narrower
// ones.
template <int kCount, typename A, typename T>
DCN_INLINE void AddProductsBy(A factor, const T* from, int64_t i, int64_t count, A* sums) {
  if constexpr (sizeof(A) * kCount < 16) {
    for (; i < count; ++i) sums[i] += factor * A(from[i]);
  } else {
    for (; i + kCount <= count; i += kCount) {
      Store<kCount>(Load<kCount>(sums + i) + factor * Load<kCount>(from + i), sums + i);
    }
    AddProductsBy<kCount / 2>(factor, from, i, count, sums);
  }
}
template <typename A, typename T>
DCN_INLINE void AddProducts(A factor, const T* from, int64_t count, A* sums) {
  AddProductsBy<kVectorBytes / sizeof(A)>(factor, from, 0, count, sums);
}

}  // namespace
DCN_END_TARGET
