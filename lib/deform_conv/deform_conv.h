// The kernels of a deformable convolution that leave the matrix products to XLA: sampling the columns (im2col), and the
// cotangents of their operands. Each backend implements these functions for its own Device. They return nullptr or an
// error message.
//
//   columns[p, k, c] = mask[p, g, k] · bilinear(x[image of p], location of tap k of p + offset[p, g, k])[c]
//
// A call covers a part of the batch: several whole images, or rows of one. p is an output pixel of the part, over all
// its images, k a tap, c a channel and g the offset group of c.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "host_device.h"
#include "scatter/tables.h"
#include "window.h"

namespace dcn {

struct Device;

// The start of a part, which is clamped as that of a dynamic slice.
DCN_HOST_DEVICE int64_t Clamped(int32_t index, int64_t last) { return index < 0 ? 0 : index < last ? index : last; }

struct Sizes {
  Window window;
  int64_t images, height, width, channels;  // of x; `images` are those of the part
  int64_t rows, columns;                    // of the output, in each image of the part
  int64_t offset_groups;
  // All images of x or its cotangent, and all images and rows of the positions: the part is contiguous in them.
  int64_t images_of_x, images_of_positions, rows_of_positions;

  DCN_HOST_DEVICE int32_t taps() const { return window.taps(); }
  DCN_HOST_DEVICE int64_t pixels() const { return images * rows * columns; }
  DCN_HOST_DEVICE int64_t group_channels() const { return channels / offset_groups; }
  DCN_HOST_DEVICE int64_t first_image(const int32_t* origin) const { return Clamped(origin[0], images_of_x - images); }
  // The part's first sample in `mask`, and in `offset` as pairs.
  DCN_HOST_DEVICE int64_t first_sample(const int32_t* origin) const {
    const int64_t image = Clamped(origin[0], images_of_positions - images);
    return (image * rows_of_positions + Clamped(origin[3], rows_of_positions - rows)) * columns * pixel_samples();
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
  const void* offset;  // A[images_of_positions, rows_of_positions, columns, offset_groups, taps, 2]
  const void* mask;    // A[images_of_positions, rows_of_positions, columns, offset_groups, taps]
  // [4]: the part's first image; its first row and column in the output; its first row in `offset`
  const int32_t* origin;
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

// The cotangents of offset and mask, of type A and in the shapes of Positions, of which only those of the part are
// written. The columns are computed from the same reads of x. Each of the three results may be null. d_columns: in the
// shape of the columns.
const char* OffsetCotangent(Device&, DType, const Sizes&, const Positions&, const void* x, const void* d_columns,
                            void* d_offset, void* d_mask, void* columns);

// Adds the cotangent of x to d_x: A[images_of_x, height, width, channels], in the images of the part. DType is the type
// of d_columns here. Only CPUs have this function.
const char* XCotangent(Device&, DType, const Sizes&, const Positions&, const void* d_columns, void* d_x);

// The cotangent of x on a GPU, where pixels gather what samples scatter to them. First the samples of many parts are
// sorted by cell, at once. Then the columns' cotangents are multiplied and gathered, part by part. The tables are those
// of [images, offset_groups].

// Sorts samples of whole images, or of rows of one.
const char* SortSamples(Device&, DType, const Sizes&, const Positions&, const CsrTables&);

struct GatherSizes {
  int64_t images, height, width, channels;  // of the part, as in Sizes
  int64_t offset_groups;
  bool circular;
  int64_t samples;                                         // of the part, in each image and offset group
  int64_t images_of_x, images_of_samples, sorted_samples;  // of all of d_x; of those that are sorted

  DCN_HOST_DEVICE int64_t pixels() const { return height * width; }
  DCN_HOST_DEVICE int64_t cells() const { return (height + 1) * (width + 1); }
};

// Adds to d_x what the samples of the part scatter to it. `start`: the first image of the part in d_x, and in the
// sorted samples; and its first sample in an image and offset group of these. If is_rounded, d_x has DType, of 16 bits,
// and its images are replaced; the part must then have all samples of its images.
const char* GatherSamples(Device&, DType, const GatherSizes&, const CsrTables&, const int32_t* start,
                          const void* d_columns, bool is_rounded, void* d_x);

}  // namespace dcn
