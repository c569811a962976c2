// Vectors of neighbouring channels for SIMD instructions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dtype.h"
#include "element.h"
#include "vectorize.h"

namespace dcn {

constexpr int kLanes = 8;

template <typename T, int N>
struct VectorOf {
  typedef T Type __attribute__((vector_size(N * sizeof(T))));
};

template <typename A>
struct HalfLanes;

// Up to N channels, converted to the accumulator type A; unused lanes are zero. A vector type, because compilers
// vectorize short loops over arrays only sometimes. g++ makes slow code of vectors that are wider than those of the
// processor.
template <typename A, int N = kLanes>
struct Lanes {
  using Vector = typename VectorOf<A, N>::Type;
  Vector value = {};

  Lanes() = default;

  template <typename T>
  DCN_INLINE Lanes(const T* from, int count) {
    if constexpr (std::is_same_v<T, F16>) {
      using Words = typename VectorOf<uint32_t, N>::Type;
      using Integers = typename VectorOf<int32_t, N>::Type;
      typename VectorOf<uint16_t, N>::Type halves = {};
      std::memcpy(&halves, from, count * sizeof(T));
      F16::Convert<Integers>(__builtin_convertvector(halves, Words), value);
    } else {
      A lane[N] = {};
      for (int l = 0; l < count; ++l) lane[l] = A(from[l]);
      std::memcpy(&value, lane, sizeof value);
    }
  }

  template <typename T>
  DCN_INLINE void Store(T* to, int count) const {
    A lane[N];
    T stored[N];
    std::memcpy(lane, &value, sizeof value);
    for (int l = 0; l < N; ++l) stored[l] = T(lane[l]);
    std::memcpy(to, stored, count * sizeof(T));
  }

  // The order of summation is the same for every instruction set.
  DCN_INLINE A Sum() const {
    const HalfLanes<A> half(*this);
    return (half.value[0] + half.value[2]) + (half.value[1] + half.value[3]);
  }
};

// The sums of the first and the second half of Lanes.
template <typename A>
struct HalfLanes {
  using Vector = typename VectorOf<A, kLanes / 2>::Type;
  Vector value;

  DCN_INLINE explicit HalfLanes(const Lanes<A>& lanes) {
    Vector high;
    std::memcpy(&value, &lanes.value, sizeof value);
    std::memcpy(&high, reinterpret_cast<const char*>(&lanes.value) + sizeof value, sizeof high);
    value += high;
  }
};

// Adds a[i].Sum() to sums[i]. Operations on whole vectors make it faster than four sums.
template <typename A>
DCN_INLINE void AddSums(const Lanes<A> (&lanes)[4], A* sums) {
  using Vector = typename HalfLanes<A>::Vector;
  const Vector a = HalfLanes<A>(lanes[0]).value, b = HalfLanes<A>(lanes[1]).value;
  const Vector c = HalfLanes<A>(lanes[2]).value, d = HalfLanes<A>(lanes[3]).value;
  const Vector ab = Vector{a[0], b[0], a[1], b[1]} + Vector{a[2], b[2], a[3], b[3]};
  const Vector cd = Vector{c[0], d[0], c[1], d[1]} + Vector{c[2], d[2], c[3], d[3]};
  Vector total;
  std::memcpy(&total, sums, sizeof total);
  total += Vector{ab[0], ab[1], cd[0], cd[1]} + Vector{ab[2], ab[3], cd[2], cd[3]};
  std::memcpy(sums, &total, sizeof total);
}

// Calls body(first_channel, count) for consecutive runs of at most kLanes channels.
template <typename Body>
DCN_INLINE void ForEachLanes(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) body(c, kLanes);
  if (c < channels) body(c, int(channels - c));
}

}  // namespace dcn
