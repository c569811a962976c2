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

// The shared memory that an SM reserves for each resident block.
constexpr size_t kReservedSharedBytes = 1 << 10;

// The number of resident blocks that the shared memory of an SM has room for.
constexpr int ResidentBlocks(size_t shared_bytes, size_t sm_shared_bytes) {
  return int(sm_shared_bytes / (shared_bytes + kReservedSharedBytes));
}

// A number that is found once for each device, and is not 0. Threads that ask at the same time may all find it.
class DeviceNumber {
 public:
  // Calls find(device, number) unless the number of the current device is known.
  template <typename F>
  cudaError_t Get(size_t* number, const F& find) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    if (device >= kMaxDevices) return find(device, number);
    *number = found_[device];
    if (*number > 0) return cudaSuccess;
    error = find(device, number);
    if (error == cudaSuccess) found_[device] = *number;
    return error;
  }

 private:
  static constexpr int kMaxDevices = 64;
  std::atomic<size_t> found_[kMaxDevices] = {};
};

template <cudaDeviceAttr attribute>
cudaError_t DeviceAttribute(size_t* value) {
  static DeviceNumber known;
  return known.Get(value, [](int device, size_t* found) {
    int number = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&number, attribute, device);
    *found = size_t(number);
    return error;
  });
}

// The most shared memory that an SM of this device can have.
inline cudaError_t SmSharedBytes(size_t* bytes) {
  return DeviceAttribute<cudaDevAttrMaxSharedMemoryPerMultiprocessor>(bytes);
}

// The number of SMs of this device, or 1 if it is not known.
inline int64_t NumSms() {
  size_t sms = 1;
  return DeviceAttribute<cudaDevAttrMultiProcessorCount>(&sms) == cudaSuccess ? int64_t(sms) : 1;
}

// The carve-out for blocks that need `shared_bytes` of an SM, as a percentage of the most that the SM can have. It is
// rounded down, because CUDA takes the next larger step of the carve-out: rounded up, it could pass the step that has
// just enough.
constexpr int CarveOutPercent(size_t shared_bytes, size_t sm_shared_bytes) {
  return int((shared_bytes < sm_shared_bytes ? shared_bytes : sm_shared_bytes) * 100 / sm_shared_bytes);
}

struct Grid {
  int64_t blocks;
  int threads = kThreads;   // per block
  size_t shared_bytes = 0;  // dynamic shared memory per block
  int resident_blocks = 1;  // per SM, if shared memory allows

  Grid(int64_t blocks) : blocks(blocks) {}
  Grid(int64_t blocks, int threads, size_t shared_bytes, int resident_blocks)
      : blocks(blocks), threads(threads), shared_bytes(shared_bytes), resident_blocks(resident_blocks) {}
};

// Raises the kernel's limit of 48 KiB of dynamic shared memory, and requests the smallest carve-out that its resident
// blocks fit, so that the L1 cache gets the rest. All grids of a kernel have as much shared memory.
template <auto kernel>
cudaError_t RequestSharedMemory(const Grid& grid) {
  static DeviceNumber requested;
  size_t bytes;
  return requested.Get(&bytes, [&](int, size_t* found) {
    size_t sm_shared_bytes;
    cudaError_t error = SmSharedBytes(&sm_shared_bytes);
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(grid.shared_bytes));
    if (error != cudaSuccess) return error;
    *found = size_t(grid.resident_blocks) * (grid.shared_bytes + kReservedSharedBytes);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                CarveOutPercent(*found, sm_shared_bytes));
  });
}

// An empty launch still runs one block, which finds no work. CUDA rejects an empty grid, and XLA rejects a captured
// graph without nodes.
template <auto kernel, typename... Arguments>
const char* Launch(const Device& device, const Grid& grid, Arguments... arguments) {
  (void)KernelRegistration<kernel>::is_registered;  // a use, without which it would not be instantiated
  constexpr int64_t kMaxBlocks = 1 << 20;
  if (grid.shared_bytes > 0) {
    const cudaError_t error = RequestSharedMemory<kernel>(grid);
    if (error != cudaSuccess) return Failure(error);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = unsigned(std::clamp<int64_t>(grid.blocks, 1, kMaxBlocks));
  config.blockDim = unsigned(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
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
