// Kernel launches, and grid-stride loops in the kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device.h"
#include "kernel_registry.h"

namespace dcn {

constexpr int kThreads = 256, kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffff;

inline const char* Failure(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

// The largest shared memory of a block, which a kernel must opt in to.
inline size_t MaxSharedBytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return size_t(bytes);
}

struct Grid {
  int64_t blocks;
  int threads = kThreads;   // per block
  size_t shared_bytes = 0;  // dynamic shared memory per block

  Grid(int64_t blocks) : blocks(blocks) {}
  Grid(int64_t blocks, int threads, size_t shared_bytes)
      : blocks(blocks), threads(threads), shared_bytes(shared_bytes) {}
};

template <auto kernel, typename... Arguments>
const char* Launch(const Device& device, const Grid& grid, Arguments... arguments) {
  (void)KernelRegistration<kernel>::is_registered;  // a use, without which it would not be instantiated
  constexpr int64_t kMaxBlocks = 1 << 20;
  constexpr size_t kDefaultSharedBytes = 48 << 10;  // a kernel must opt in to more
  if (grid.blocks == 0) return nullptr;             // CUDA rejects an empty grid
  if (grid.shared_bytes > kDefaultSharedBytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(grid.shared_bytes));
    if (error != cudaSuccess) return Failure(error);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = unsigned(std::min(grid.blocks, kMaxBlocks));
  config.blockDim = unsigned(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = device.stream;
  return Failure(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// The number of blocks that have n threads or more.
inline int64_t BlocksFor(int64_t n) { return (n + kThreads - 1) / kThreads; }

// The start and the step of a grid-stride loop: Launch limits the number of blocks, so a thread may have more than one
// work item.
__device__ inline int64_t global_thread() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t grid_stride() { return int64_t(gridDim.x) * blockDim.x; }

}  // namespace dcn
