// The sampling half of a deformable convolution; the products are XLA's. Each backend implements these functions for
// its own Device and returns nullptr, or what went wrong.
//
//   columns[p, k, c] = mask[p, g, k] · bilinear(x[image of p], position of tap k of p + offset[p, g, k])[c]
//
// p runs over the images, rows and columns of the output tile at hand, g is the offset group of channel c.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "geometry.h"

namespace dcn {

struct Device;

struct Sizes {
  Window window;
  int64_t images, height, width, channels;
  int64_t rows, columns;  // of the tile of the output that a call covers, in every image
  int64_t offset_groups;
  int64_t images_of_x;  // which may have more than the tile: the operations that read x take the images they want

  DCN_HOST_DEVICE int32_t taps() const { return window.kernel[0] * window.kernel[1]; }
  DCN_HOST_DEVICE int64_t pixels() const { return images * rows * columns; }
  DCN_HOST_DEVICE int64_t group_channels() const { return channels / offset_groups; }
  // A tile that would reach beyond x is moved back, as a dynamic slice is.
  DCN_HOST_DEVICE int64_t first_image(int32_t requested) const {
    const int64_t last = images_of_x - images;
    return requested < 0 ? 0 : requested < last ? requested : last;
  }
  // Of one image and offset group: the tile's positions by taps.
  DCN_HOST_DEVICE int64_t samples() const { return rows * columns * taps(); }
  DCN_HOST_DEVICE int64_t cells() const { return CellCount(height, width); }
};

// The DType below is that of x. A is float, or double where x is. `mask` may be null. `origin` is the tile's first
// image among those of x, and its first row and column in the output.
struct Positions {
  const void* offset;     // A[images, rows, columns, offset_groups, taps, 2]
  const void* mask;       // A[images, rows, columns, offset_groups, taps]
  const int32_t* origin;  // [3]
};

// columns: T[images, rows, columns, taps, channels], of x's type.
const char* SampleColumns(Device&, DType, const Sizes&, const Positions&, const void* x, void* columns);

// The cotangents of offset and mask, in A, and the columns, which take the same reads of x; any may be null.
// d_columns: A, shaped as columns.
const char* OffsetCotangent(Device&, DType, const Sizes&, const Positions&, const void* x, const void* d_columns,
                            void* d_offset, void* d_mask, void* columns);

// Adds the cotangent of x to d_x: A[images, height, width, channels]. The workspace holds WorkspaceSize numbers.
int64_t WorkspaceSize(const Sizes&);
const char* InputCotangent(Device&, DType, const Sizes&, const Positions&, const void* d_columns, void* d_x,
                           int32_t* workspace);

}  // namespace dcn
