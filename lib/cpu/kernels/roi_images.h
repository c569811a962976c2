// The RoIs of a call, and the images that they read. `roi_index` counts the RoIs of all batches.
#pragma once

#include <cstdint>

#include "attributes.h"
#include "instruction_sets.h"
#include "roi_pool.h"

DCN_BEGIN_TARGET

template <typename A>
DCN_INLINE Roi<A> LocateRoi(const PoolSizes& sizes, const Rois& rois, int64_t roi_index) {
  return dcn::LocateRoi(sizes, static_cast<const A*>(rois.boxes) + roi_index * 5);
}

// The image that an RoI reads; `image` is its index within the RoI's batch.
template <typename T>
DCN_INLINE const T* ImageOfRoi(const PoolSizes& sizes, const T* x, int64_t roi_index, int64_t image) {
  return x + (roi_index / sizes.rois * sizes.images + image) * sizes.height * sizes.width * sizes.channels;
}

DCN_END_TARGET
