// Deformable position-sensitive RoI pooling. Each backend implements these functions for its own Device. They return
// nullptr, or an error message.
#pragma once

#include "dtype.h"
#include "roi_geometry.h"

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
const char* PoolInputCotangent(Device&, DType, const PoolSizes&, const Rois&, const void* d_pooled, void* d_x);

// d_offset: A, with the shape of offset.
const char* PoolOffsetCotangent(Device&, DType, const PoolSizes&, const Rois&, const void* x, const void* d_pooled,
                                void* d_offset);

}  // namespace dcn
