// Neighbouring elements as one, read and written up to 16 bytes at a time.
#pragma once

#include <cstdint>

namespace dcn {

template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T value[N];
};

template <int N, typename T>
__device__ inline const Vector<T, N>& AsVector(const T* address) {
  return *reinterpret_cast<const Vector<T, N>*>(address);
}
template <int N, typename T>
__device__ inline Vector<T, N>& AsVector(T* address) {
  return *reinterpret_cast<Vector<T, N>*>(address);
}

template <int N>
struct Width {
  static constexpr int value = N;
};

// Calls f with how many elements of T a thread takes of `n` that stand side by side: 16 bytes, or one where they cannot
// be cut so.
template <typename T, typename F>
const char* DispatchWidth(int64_t n, const F& f) {
  constexpr int kWide = 16 / sizeof(T);
  return n % kWide == 0 ? f(Width<kWide>()) : f(Width<1>());
}

}  // namespace dcn
