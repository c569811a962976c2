// The order in which the fused kernels number the pixels of an image.
#pragma once

#include <cstdint>

namespace dcn {

// An image is cut into strips of kStripRows rows (the last may have fewer), and the pixels of a strip are numbered
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

template <typename Index>
__device__ OutputPixel<Index> PixelOfIndex(Index rows, Index columns, Index index) {
  const Index row = index / columns;
  return {row / rows, row % rows, index % columns};
}

// The pixel that has number `i` in strip order, counted through all images. The cotangents' kernels, whose pixels are
// fewer than kMaxPixels, divide 32-bit integers, which takes far fewer instructions.
template <typename Index>
__device__ OutputPixel<Index> LocateInStrips(Index rows, Index columns, Index i) {
  const Index image = i / (rows * columns), in_image = i % (rows * columns);
  const Index strip_pixels = (rows < kStripRows ? rows : kStripRows) * columns;  // no overflow where columns are many
  const Index strip = in_image / strip_pixels, in_strip = in_image % strip_pixels;
  const Index rows_left = rows - strip * kStripRows, height = rows_left < kStripRows ? rows_left : kStripRows;
  return {image, strip * kStripRows + in_strip % height, in_strip / height};
}

// The index of that pixel.
template <typename Index>
__device__ Index PixelInStrips(Index rows, Index columns, Index i) {
  return LocateInStrips(rows, columns, i).index(rows, columns);
}

// The inverse for one image: the number in strip order of the pixel at (row, column).
template <typename Index>
__device__ Index IndexInStrips(Index rows, Index columns, Index row, Index column) {
  const Index first = row / kStripRows * kStripRows, rows_left = rows - first;
  const Index height = rows_left < kStripRows ? rows_left : kStripRows;
  return first * columns + column * height + row % kStripRows;
}

}  // namespace dcn
