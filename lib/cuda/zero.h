// Fills a result with zeros.
#pragma once

#include <cstdint>

#include "device.h"
#include "launch.h"

namespace dcn {
namespace {

template <typename T>
__global__ void ZeroKernel(T* data, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += grid_stride()) data[i] = T();
}

// A captured graph needs a node also where `count` is 0. A memset of no bytes would add none.
template <typename T>
const char* SetZero(const Device& device, void* data, int64_t count) {
  return Launch<ZeroKernel<T>>(device, BlocksFor(count), static_cast<T*>(data), count);
}

}  // namespace
}  // namespace dcn
