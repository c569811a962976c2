// Deformable position-sensitive RoI pooling. Each backend implements these functions for its own Device and returns
// nullptr, or what went wrong.
#pragma once

#include "dtype.h"
#include "psroi_geometry.h"

namespace dcn {

struct Device;

// The DType below is that of x. A is float, or double where x is. `offset` may be null.
struct Regions {
  const void* rois;    // A[batches, regions, 5]
  const void* offset;  // A[batches, regions, part, part, classes, 2], dx before dy
};

// x: T[batches, images, height, width, features, group, group]; pooled: T[batches, regions, output, output, features].
const char* Pool(Device&, DType, const PoolSizes&, const Regions&, const void* x, void* pooled);

// d_x: A, shaped as x; d_pooled: T.
const char* PoolInputCotangent(Device&, DType, const PoolSizes&, const Regions&, const void* d_pooled, void* d_x);

// d_offset: A, shaped as offset.
const char* PoolOffsetCotangent(Device&, DType, const PoolSizes&, const Regions&, const void* x, const void* d_pooled,
                                void* d_offset);

}  // namespace dcn
