// The order in which the kernels number the pixels of an image.
#pragma once

#include <cstdint>

#include "division.h"

namespace dcn {

// An image is cut into row strips of kStripRows rows (the last may have fewer), and the pixels of a strip are numbered
// column by column. A run of numbers is then nearly square, so that the samples of its pixels read overlapping regions
// of x, which the L1 cache holds.
constexpr int kStripRows = 8;

// Finds the pixel that has a number in strip order, of one image.
struct StripDivisors {
  int64_t rows, columns;
  WideDivisor by_strip, by_last_height;

  StripDivisors(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), by_strip(kStripRows * columns), by_last_height(rows % kStripRows) {}

  __device__ void Locate(int64_t i, int64_t* row, int64_t* column) const {
    const int64_t strip = by_strip.Quotient(i), in_strip = i - strip * kStripRows * columns;
    const bool is_whole = (strip + 1) * kStripRows <= rows;
    const int64_t height = is_whole ? kStripRows : rows % kStripRows;
    *column = is_whole ? int64_t(uint64_t(in_strip) / kStripRows) : by_last_height.Quotient(in_strip);
    *row = strip * kStripRows + in_strip - *column * height;
  }
};

}  // namespace dcn
