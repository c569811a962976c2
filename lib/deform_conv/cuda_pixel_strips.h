// The order in which the fused kernels number the pixels of an image.
#pragma once

#include <cstdint>

#include "division.h"

namespace dcn {

// An image is cut into row strips of kStripRows rows (the last may have fewer), and the pixels of a strip are numbered
// column by column. A run of 128 numbers is then nearly square, so that the samples of a tile of pixels read
// overlapping parts of x, which the L1 cache holds; and only the last tile of all images is incomplete.
constexpr int kStripRows = 8;

// An output pixel of a call.
template <typename Index>
struct OutputPixel {
  Index image, row, column;

  // Its index, counted row by row through all images.
  __device__ Index index(Index rows, Index columns) const { return (image * rows + row) * columns + column; }
};

// The pixel that has number `i` in strip order, counted through all images. The weight's cotangent, whose pixels are
// fewer than kMaxPixels, divides 32-bit integers, which takes far fewer instructions.
template <typename Index>
__device__ OutputPixel<Index> LocateInStrips(Index rows, Index columns, Index i) {
  const Index image = i / (rows * columns), in_image = i % (rows * columns);
  const Index strip_pixels = (rows < kStripRows ? rows : kStripRows) * columns;  // no overflow where columns are many
  const Index strip = in_image / strip_pixels, in_strip = in_image % strip_pixels;
  const Index rows_left = rows - strip * kStripRows, height = rows_left < kStripRows ? rows_left : kStripRows;
  return {image, strip * kStripRows + in_strip % height, in_strip / height};
}

// As LocateInStrips for one image, of any number of pixels.
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
