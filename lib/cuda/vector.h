// Neighbouring elements as one, read and written up to 16 bytes at a time.
#pragma once

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

}  // namespace dcn
