// How kernels are started: a thread for each of n things, in a loop where the grid is smaller.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device.h"

namespace dcn {

constexpr int kThreads = 256;

inline const char* Failure(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

template <typename... Parameters, typename... Arguments>
const char* Launch(const Device& device, void (*kernel)(Parameters...), int64_t blocks, Arguments... arguments) {
  constexpr int64_t kMostBlocks = 1 << 20;
  if (blocks == 0) return nullptr;  // which CUDA takes for an error
  cudaLaunchConfig_t config = {};
  config.gridDim = unsigned(std::min(blocks, kMostBlocks));
  config.blockDim = kThreads;
  config.stream = device.stream;
  return Failure(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// As many blocks as give every one of n things a thread.
inline int64_t BlocksFor(int64_t n) { return (n + kThreads - 1) / kThreads; }

// A thread's loop over the things that are its: from the first on, by as many as there are threads.
__device__ inline int64_t FirstThing() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t ThingsAtOnce() { return int64_t(gridDim.x) * blockDim.x; }

}  // namespace dcn
