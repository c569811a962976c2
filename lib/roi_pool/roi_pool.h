// RoI pooling: the mean, or the largest value, of the sample points of each bin. Each backend implements these
// functions for its own Device. They return nullptr, or an error message.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "roi_pool/geometry.h"

namespace dcn {

struct Device;

// Below, DType is the type T of x, and A is its accumulator type: double for float64, float for all others.
struct Rois {
  const void* boxes;   // A[batches, rois, 5]: image index, x1, y1, x2, y2
  const void* offset;  // A[batches, rois, part, part, classes, 2], dx before dy; may be null
};

// x: T[batches, images, height, width, features, group, group]; pooled: T[batches, rois, output, output, features].
const char* Pool(Device&, DType, const PoolSizes&, const Rois&, const void* x, void* pooled);

// d_x: A, with the shape of x; d_pooled: T.
const char* PoolXCotangent(Device&, DType, const PoolSizes&, const Rois&, const void* d_pooled, void* d_x);

// d_offset: A, with the shape of offset.
const char* PoolOffsetCotangent(Device&, DType, const PoolSizes&, const Rois&, const void* x, const void* d_pooled,
                                void* d_offset);

// The functions below compute max pooling, which has no offset, one channel group and one class. `argmax`
// int32[2, batches, rois, output, output, features] holds the row and the column, among the points that the bin visits,
// of the first largest one; the row is -1 where that point is outside the image, or there is none.

const char* MaxPool(Device&, DType, const PoolSizes&, const Rois&, const void* x, void* pooled);

// x: T, as above.
const char* MaxPoolArgmax(Device&, DType, const PoolSizes&, const Rois&, const void* x, int32_t* argmax);

// d_x: A, with the shape of x; d_pooled: T.
const char* MaxPoolXCotangent(Device&, DType, const PoolSizes&, const Rois&, const void* d_pooled,
                              const int32_t* argmax, void* d_x);

}  // namespace dcn
