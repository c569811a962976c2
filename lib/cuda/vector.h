// Vectors of neighbouring elements, for loads and stores of up to 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "dtype.h"

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

// Calls f with the number of elements of T that a thread moves at once, where runs of `n` elements are contiguous: 16
// bytes if n is a multiple of that, else one element.
template <typename T, typename F>
const char* DispatchWidth(int64_t n, const F& f) {
  constexpr int kWide = 16 / sizeof(T);
  return n % kWide == 0 ? f(Width<kWide>()) : f(Width<1>());
}

// Calls f with a value of the type of the data, and the number of its elements that a thread moves at once.
template <typename F>
const char* DispatchVectors(DType dtype, int64_t n, const F& f) {
  return Dispatch<__half, __nv_bfloat16>(
      dtype, [&](auto tag) { return DispatchWidth<decltype(tag)>(n, [&](auto width) { return f(tag, width); }); });
}

}  // namespace dcn
