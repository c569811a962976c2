// Arithmetic of sizes that saturates instead of overflowing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

namespace dcn {

// The product of two non-negative sizes, or the largest int64 if it overflows.
inline int64_t SaturatingMultiply(int64_t a, int64_t b) {
  return b && a > std::numeric_limits<int64_t>::max() / b ? std::numeric_limits<int64_t>::max() : a * b;
}
inline int64_t SaturatingProduct(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product = SaturatingMultiply(product, size);
  return product;
}

// The sum of two non-negative sizes, or the largest int64 if it overflows.
inline int64_t SaturatingAdd(int64_t a, int64_t b) {
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

}  // namespace dcn
