// Kernel launches, and grid-stride loops in the kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device.h"
#include "kernel_registry.h"

namespace dcn {

constexpr int kThreads = 256, kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffff;

inline const char* Failure(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

// The number of SMs of this device, or 1 if it is not known. Threads that ask at the same time may all find it.
inline int64_t NumSms() {
  constexpr int kMaxDevices = 64;
  static std::atomic<int> known[kMaxDevices] = {};
  int device = 0, sms = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (device < kMaxDevices && known[device] > 0) return known[device];
  if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  if (device < kMaxDevices) known[device] = sms;
  return sms;
}

struct Grid {
  int64_t blocks;
  int threads;  // per block

  Grid(int64_t blocks, int threads = kThreads) : blocks(blocks), threads(threads) {}
};

// An empty launch still runs one block, which finds no work. CUDA rejects an empty grid, and XLA rejects a captured
// graph without nodes.
template <auto kernel, typename... Arguments>
const char* Launch(const Device& device, const Grid& grid, Arguments... arguments) {
  (void)KernelRegistration<kernel>::is_registered;  // a use, without which it would not be instantiated
  constexpr int64_t kMaxBlocks = 1 << 20;
  cudaLaunchConfig_t config = {};
  config.gridDim = unsigned(std::clamp<int64_t>(grid.blocks, 1, kMaxBlocks));
  config.blockDim = unsigned(grid.threads);
  config.stream = device.stream;
  return Failure(cudaLaunchKernelEx(&config, kernel, arguments...));
}

inline int64_t CeilDiv(int64_t n, int64_t size) { return (n + size - 1) / size; }

// The number of blocks that have n threads or more.
inline int64_t BlocksFor(int64_t n) { return CeilDiv(n, kThreads); }

// The start and the step of a grid-stride loop: Launch limits the number of blocks, so a thread may have more than one
// work item.
__device__ inline int64_t global_thread() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t grid_stride() { return int64_t(gridDim.x) * blockDim.x; }

__device__ inline int Lane() { return int(threadIdx.x % kWarp); }  // of the calling thread, in its warp

}  // namespace dcn
