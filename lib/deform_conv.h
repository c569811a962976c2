// The kernels of a deformable convolution that leave the matrix products to XLA: sampling the columns (im2col), and the
// cotangents of their operands. Each backend implements these functions for its own Device. They return nullptr or an
// error message.
//
//   columns[p, k, c] = mask[p, g, k] · bilinear(x[image of p], location of tap k of p + offset[p, g, k])[c]
//
// p is an output pixel of the tile, over all its images, k a tap, c a channel and g the offset group of c.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "host_device.h"
#include "window.h"

namespace dcn {

struct Device;

struct Sizes {
  Window window;
  int64_t images, height, width, channels;  // of x; `images` are those of the tile
  int64_t rows, columns;                    // of the output tile that a call covers, in each image
  int64_t offset_groups;
  int64_t images_of_x;  // all images of x or its cotangent, from which operations select those of the tile

  DCN_HOST_DEVICE int32_t taps() const { return window.taps(); }
  DCN_HOST_DEVICE int64_t pixels() const { return images * rows * columns; }
  DCN_HOST_DEVICE int64_t group_channels() const { return channels / offset_groups; }
  // An image index out of bounds is clamped, as in a dynamic slice.
  DCN_HOST_DEVICE int64_t first_image(int32_t requested) const {
    const int64_t last = images_of_x - images;
    return requested < 0 ? 0 : requested < last ? requested : last;
  }
  // Samples of one image and offset group: output pixels × taps.
  DCN_HOST_DEVICE int64_t samples() const { return rows * columns * taps(); }
  // Samples of one output pixel, of all offset groups.
  DCN_HOST_DEVICE int64_t pixel_samples() const { return offset_groups * taps(); }
  // Cells of one image: the squares between four neighbouring pixels, by which the CUDA kernels sort samples.
  DCN_HOST_DEVICE int64_t cells() const { return (height + 1) * (width + 1); }
};

// A, the accumulator type, is float, or double for a DType of float64. `mask` may be null.
struct Positions {
  const void* offset;     // A[images, rows, columns, offset_groups, taps, 2]
  const void* mask;       // A[images, rows, columns, offset_groups, taps]
  const int32_t* origin;  // [3]: the tile's first image in x, and its first row and column in the output
};

// In the functions below, DType is the type of x. The cotangents of the columns have it, too, if the Device rounds them
// (kRoundsColumnCotangents); otherwise they have type A.

// columns: [images, rows, columns, taps, channels], of x's type.
const char* SampleColumns(Device&, DType, const Sizes&, const Positions&, const void* x, void* columns);

// The tangents of x, offset and mask, in their types and shapes; null for zero.
struct Tangents {
  const void *x, *offset, *mask;
};

// The tangents of the columns, and the columns too if requested, which need the same reads of x:
// [images, rows, columns, taps, 1 or 2, channels], of x's type, the tangents first.
const char* SampleTangents(Device&, DType, const Sizes&, const Positions&, const Tangents&, const void* x,
                           bool columns_requested, void* columns);

// The cotangents of offset and mask, of type A. The columns are computed from the same reads of x. Each of the three
// results may be null. d_columns: in the shape of the columns.
const char* OffsetCotangent(Device&, DType, const Sizes&, const Positions&, const void* x, const void* d_columns,
                            void* d_offset, void* d_mask, void* columns);

// Adds the cotangent of x to d_x: A[images_of_x, height, width, channels], in the images of the tile. DType is the type
// of d_columns here. The workspace has WorkspaceSize elements.
int64_t WorkspaceSize(DType, const Sizes&);
const char* InputCotangent(Device&, DType, const Sizes&, const Positions&, const void* d_columns, void* d_x,
                           int32_t* workspace);

}  // namespace dcn
