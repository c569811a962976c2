// Vectors of neighbouring channels for SIMD instructions.
#pragma once

#include <cstdint>
#include <cstring>

#include "dtype.h"
#include "vectorize.h"

namespace dcn {

constexpr int kLanes = 8;

// Up to kLanes channels, converted to the accumulator type A; unused lanes are zero. A vector type, because compilers
// vectorize short loops over arrays only sometimes.
template <typename A>
struct Lanes {
  typedef A Vector __attribute__((vector_size(kLanes * sizeof(A))));
  Vector value = {};

  Lanes() = default;

  template <typename T>
  DCN_INLINE Lanes(const T* from, int count) {
    A lane[kLanes] = {};
    for (int l = 0; l < count; ++l) lane[l] = A(from[l]);
    std::memcpy(&value, lane, sizeof value);
  }

  template <typename T>
  DCN_INLINE void Store(T* to, int count) const {
    A lane[kLanes];
    T stored[kLanes];
    std::memcpy(lane, &value, sizeof value);
    for (int l = 0; l < kLanes; ++l) stored[l] = T(lane[l]);
    std::memcpy(to, stored, count * sizeof(T));
  }

  // The order of summation is the same for every instruction set.
  DCN_INLINE A Sum() const {
    typedef A Half __attribute__((vector_size(kLanes / 2 * sizeof(A))));
    Half low, high;
    std::memcpy(&low, &value, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof low, sizeof high);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
  }
};

// Calls body(first_channel, count) for consecutive runs of at most kLanes channels.
template <typename Body>
DCN_INLINE void ForEachLanes(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) body(c, kLanes);
  if (c < channels) body(c, int(channels - c));
}

}  // namespace dcn
