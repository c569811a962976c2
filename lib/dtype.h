// Element types of arrays, and dispatch from a DType to a C++ type.
#pragma once

#include <cstdint>

namespace dcn {

enum class DType { kF16, kBF16, kF32, kF64 };

// The size of an element.
constexpr int64_t BytesOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
    case DType::kF64:
      break;
  }
  return 8;
}

// The type of positions and sums for arrays of T.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

// Calls f with a value of the C++ type of `dtype`. Each backend has its own F16 and BF16.
template <typename F16, typename BF16, typename F>
auto Dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF16:
      return f(F16());
    case DType::kBF16:
      return f(BF16());
    case DType::kF32:
      return f(float());
    case DType::kF64:
      break;
  }
  return f(double());
}

// Calls f with a value of the accumulator type of `dtype`.
template <typename F>
auto DispatchAccumulator(DType dtype, const F& f) {
  return dtype == DType::kF64 ? f(double()) : f(float());
}

}  // namespace dcn
