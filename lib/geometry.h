// Where a sample of a deformable convolution lies and what it touches. Host and device, the only copy.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define DCN_HOST_DEVICE __host__ __device__ inline
#else
#define DCN_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace dcn {

// The regular grid that offsets are added to.
struct Window {
  int32_t kernel[2];
  int32_t strides[2];
  int32_t padding[2];  // above and left of the image
  int32_t dilation[2];
  bool circular;  // the image is a torus
};

// The two neighbouring pixels of a coordinate; -1 where there is none, which reads as zero.
template <typename A>
struct Axis {
  int32_t pixel[2];
  A fraction;  // of the way from pixel[0] to pixel[1]
  bool inside;
  bool nan;
};

template <typename A>
DCN_HOST_DEVICE Axis<A> LocateOnAxis(A position, int64_t size, bool circular) {
  const bool nan = position != position;
  if (circular) {
    if (size == 0 || !(position - position == A(0))) return {{-1, -1}, position, false, nan};
    A low = std::floor(position);
    const A fraction = position - low;
    if (low < A(0) || low >= A(size)) low = std::fmod(low, A(size));
    const int64_t pixel = int64_t(low) + (low < A(0) ? size : 0);
    return {{int32_t(pixel), int32_t(pixel + 1 == size ? 0 : pixel + 1)}, fraction, true, false};
  }
  // Without branches, for a compiler to take several at once.
  const bool inside = (position > A(-1)) & (position < A(size));
  const A within = inside ? position : A(-1), low = std::floor(within);
  const int32_t pixel = int32_t(low), next = pixel + 1 < int32_t(size) ? pixel + 1 : -1;
  return {{pixel, inside ? next : -1}, nan ? position : within - low, inside, nan};
}

// A sample's four corners (i below, j right of the top left one), their weights, and the weights' derivatives.
template <typename A>
struct Sample {
  Axis<A> y, x;

  DCN_HOST_DEVICE bool inside() const { return y.inside && x.inside; }
  DCN_HOST_DEVICE bool nan() const { return y.nan || x.nan; }
  DCN_HOST_DEVICE bool touches(int i, int j) const { return y.pixel[i] >= 0 && x.pixel[j] >= 0; }
  DCN_HOST_DEVICE A weight(int i, int j) const { return along(y, i) * along(x, j); }
  DCN_HOST_DEVICE A weight_dy(int i, int j) const { return (i ? A(1) : A(-1)) * along(x, j); }
  DCN_HOST_DEVICE A weight_dx(int i, int j) const { return (j ? A(1) : A(-1)) * along(y, i); }

 private:
  DCN_HOST_DEVICE static A along(const Axis<A>& axis, int i) { return i ? axis.fraction : A(1) - axis.fraction; }
};

// Tap `tap` (row-major in the kernel) of the output at (row, column), moved by `offset` = (dy, dx).
template <typename A>
DCN_HOST_DEVICE Sample<A> Locate(const Window& window, int64_t height, int64_t width, int64_t row, int64_t column,
                                 int32_t tap, const A* offset) {
  const int64_t i = tap / window.kernel[1], j = tap % window.kernel[1];
  const int64_t y = row * window.strides[0] - window.padding[0] + i * window.dilation[0];
  const int64_t x = column * window.strides[1] - window.padding[1] + j * window.dilation[1];
  return {LocateOnAxis(A(y) + offset[0], height, window.circular),
          LocateOnAxis(A(x) + offset[1], width, window.circular)};
}

// Samples that touch the same four pixels share a cell, named by its top left pixel. An image has a row and a column
// of cells more than pixels: on a plain image the first of each lies outside, on a torus it stays empty.
DCN_HOST_DEVICE int64_t CellCount(int64_t height, int64_t width) { return (height + 1) * (width + 1); }

// -1 where the sample touches no pixel.
template <typename A>
DCN_HOST_DEVICE int64_t CellOf(const Sample<A>& sample, int64_t width) {
  if (!sample.inside()) return -1;
  return (sample.y.pixel[0] + 1) * (width + 1) + sample.x.pixel[0] + 1;
}

// The cell whose corner (i, j) is the pixel at (y, x).
DCN_HOST_DEVICE int64_t CellWithCorner(int64_t y, int64_t x, int i, int j, int64_t height, int64_t width,
                                       bool circular) {
  int64_t top = y - i, left = x - j;
  if (circular && top < 0) top += height;
  if (circular && left < 0) left += width;
  return (top + 1) * (width + 1) + left + 1;
}

}  // namespace dcn
