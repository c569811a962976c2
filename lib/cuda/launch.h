// How kernels are started: a thread for each of n things, in a loop where the grid is smaller.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device.h"

namespace dcn {

constexpr int kThreads = 256, kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffff;

inline const char* Failure(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

// What a block may have of shared memory, where the kernel asks for it.
inline size_t MaxSharedBytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return size_t(bytes);
}

struct Grid {
  int64_t blocks;
  int threads = kThreads;   // of a block
  size_t shared_bytes = 0;  // of a block, besides what the kernel itself declares

  Grid(int64_t blocks) : blocks(blocks) {}
  Grid(int64_t blocks, int threads, size_t shared_bytes)
      : blocks(blocks), threads(threads), shared_bytes(shared_bytes) {}
};

template <typename... Parameters, typename... Arguments>
const char* Launch(const Device& device, void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  constexpr size_t kUnasked = 48 << 10;  // shared memory that every kernel may use
  if (grid.blocks == 0) return nullptr;  // which CUDA takes for an error
  if (grid.shared_bytes > kUnasked) {
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

// As many blocks as give every one of n things a thread.
inline int64_t BlocksFor(int64_t n) { return (n + kThreads - 1) / kThreads; }

// A thread's loop over the things that are its: from the first on, by as many as there are threads.
__device__ inline int64_t global_thread() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t grid_stride() { return int64_t(gridDim.x) * blockDim.x; }

}  // namespace dcn
