// Divisions of integers in fewer instructions than those of 64 bits.
#pragma once

#include <cstdint>

namespace dcn {

// Divides two numbers that are not negative. If both fit in 32 bits, this takes a quarter of the instructions of a
// division of 64 bits.
__device__ inline int64_t Quotient(int64_t dividend, int64_t divisor) {
  return (dividend | divisor) >> 32 ? dividend / divisor : int64_t(uint32_t(dividend) / uint32_t(divisor));
}

// Divides numbers below 2^31 by a number that is known before the launch: a multiplication, an addition and a shift
// take far fewer instructions than a division.
struct Divisor {
  uint32_t divisor, multiplier, shift;

  explicit Divisor(int64_t number) : divisor(number > 0 ? uint32_t(number) : 1), shift(0) {
    while (uint64_t{1} << shift < divisor) ++shift;
    multiplier = uint32_t((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ uint32_t Quotient(uint32_t number) const {
    return (uint32_t(uint64_t{number} * multiplier >> 32) + number) >> shift;
  }
};

// Divides numbers that are not negative by a number that is known before the launch. Those below 2^31 take few
// instructions.
struct WideDivisor {
  int64_t divisor;
  Divisor of_small;

  explicit WideDivisor(int64_t number) : divisor(number), of_small(number >> 31 ? int64_t{1} << 31 : number) {}
  __device__ int64_t Quotient(int64_t number) const {
    return number >> 31 ? number / divisor : int64_t{of_small.Quotient(uint32_t(number))};
  }
};

}  // namespace dcn
