// Vectors of neighbouring elements, for loads and stores of up to 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

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

// Converts the two elements of a word.
template <typename T>
__device__ void WordToFloats(uint32_t word, float* values);

template <>
__device__ inline void WordToFloats<__half>(uint32_t word, float* values) {
  const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
  values[0] = pair.x;
  values[1] = pair.y;
}
template <>
__device__ inline void WordToFloats<__nv_bfloat16>(uint32_t word, float* values) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000);
}

// The elements in the type of sums. Of 16 bits, two are converted at once.
template <typename T, int N>
__device__ Vector<Accumulator<T>, N> Widened(Vector<T, N> vector) {
  Vector<Accumulator<T>, N> wide;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    for (int v = 0; v < N; v += 2) WordToFloats<T>(reinterpret_cast<const uint32_t*>(&vector)[v / 2], &wide.value[v]);
  } else {
    for (int v = 0; v < N; ++v) wide.value[v] = Accumulator<T>(vector.value[v]);
  }
  return wide;
}

// N elements, or zeros if not `is_valid`. They are whole words where they can be, as registers hold them.
template <int N, typename T>
__device__ Vector<T, N> LoadOrZeros(bool is_valid, const T* address) {
  using Word = std::conditional_t<sizeof(T) == 2 && N % 2 == 0, uint32_t, T>;
  constexpr int kWords = N * sizeof(T) / sizeof(Word);
  Vector<Word, kWords> words = {};
  if (is_valid) words = AsVector<kWords>(reinterpret_cast<const Word*>(address));
  return reinterpret_cast<const Vector<T, N>&>(words);
}

// Writes the sums to `result` at `element`, rounded to T unless `is_wide`.
template <typename T, int N>
__device__ void StoreSums(const Accumulator<T> (&sum)[N], bool is_wide, void* result, int64_t element) {
  const auto store = [&](auto* elements) {
    using Result = std::remove_reference_t<decltype(*elements)>;
    Vector<Result, N> vector;
    for (int v = 0; v < N; ++v) vector.value[v] = Result(sum[v]);
    // Indexed as an array of vectors, because nvcc splits the store if it cannot derive the alignment.
    reinterpret_cast<Vector<Result, N>*>(elements)[element / N] = vector;
  };
  if (is_wide) {
    store(static_cast<Accumulator<T>*>(result));
  } else {
    store(static_cast<T*>(result));
  }
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

// The type of the data, and whether a thread moves 16 bytes of it at once, as an argument of a kernel. Only the inner
// loops of a kernel depend on them. It has a loop for each, so that the rest of its code is compiled once.
struct VectorType {
  DType dtype;
  int32_t element_bytes;
  bool is_wide;

  // For runs of `n` contiguous elements.
  VectorType(DType dtype, int64_t n)
      : dtype(dtype), element_bytes(int32_t(BytesOf(dtype))), is_wide(n % (16 / element_bytes) == 0) {}

  int64_t elements() const { return is_wide ? 16 / element_bytes : 1; }

  // Calls f as DispatchVectors does. A is the type of sums; N is the number of elements, if a kernel is only for that.
  template <typename A, int N = 0, typename F>
  __device__ void Dispatch(const F& f) const {
    constexpr bool kIsDouble = sizeof(A) == sizeof(double);
    if constexpr (N == 0) {
      if (!is_wide) return Dispatch<A, 1>(f);
      if (kIsDouble || dtype == DType::kF32) return Dispatch<A, 16 / sizeof(A)>(f);
      if constexpr (!kIsDouble) Dispatch<A, 8>(f);
    } else if constexpr (kIsDouble || N == 4) {
      f(A(), Width<N>());
    } else {
      if (dtype == DType::kF16) return f(__half(), Width<N>());
      if (N == 8 || dtype == DType::kBF16) return f(__nv_bfloat16(), Width<N>());
      if constexpr (N == 1) f(float(), Width<N>());
    }
  }
};

// Calls f with a value of the type of sums, and the number of elements that a thread moves at once.
template <typename F>
const char* DispatchSums(const VectorType& vector_type, const F& f) {
  if (vector_type.dtype == DType::kF64) return vector_type.is_wide ? f(double(), Width<2>()) : f(double(), Width<1>());
  if (!vector_type.is_wide) return f(float(), Width<1>());
  return vector_type.dtype == DType::kF32 ? f(float(), Width<4>()) : f(float(), Width<8>());
}

// Calls f with a value of the type of the data, and the number of its elements that a thread moves at once.
template <typename F>
const char* DispatchVectors(DType dtype, int64_t n, const F& f) {
  return Dispatch<__half, __nv_bfloat16>(
      dtype, [&](auto tag) { return DispatchWidth<decltype(tag)>(n, [&](auto width) { return f(tag, width); }); });
}

}  // namespace dcn
