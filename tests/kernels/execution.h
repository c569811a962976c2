// Runs the source of CUDA kernels on a CPU: as much of CUDA as kernels use, under CUDA's names.
//
// One block runs after another, each in a thread of its own; a CUDA thread is a fiber that runs until it waits for
// others. Finds what a GPU keeps to itself: threads that wait for some that never come, and shared memory read before
// it is written. ThreadSanitizer sees CUDA threads as CUDA does, ordered by barriers alone, and blocks by nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __launch_bounds__(...)
// A block's shared memory is the storage of the thread it runs in. UndefinedBehaviorSanitizer knows the bounds.
#define __shared__ thread_local

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  struct CUstream_st* stream = nullptr;
};
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration, cudaErrorMemoryAllocation, cudaErrorLaunchFailure };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

const char* cudaGetErrorString(cudaError_t);

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace execution {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxShared = 227 << 10;
inline size_t max_shared_bytes = kMaxShared;  // of the device at hand
inline unsigned most_blocks = ~0u;            // of a launch: more are left out, for kernels whose blocks loop
inline bool last_block_alone = false;         // the others of a launch do not run

// In a kernel's source.
struct swizzled_index {
  const char* file;
  int line;
};

// `address` is the kernel's, which tells what it was allowed.
cudaError_t Launch(const cudaLaunchConfig_t&, const void* address, const std::function<void()>& kernel);

// Allows a kernel more dynamic shared memory than all have.
cudaError_t AllowShared(const void* kernel, int bytes);

// Until all threads of the block are here; until those of `mask` in the warp are.
void WaitForBlock(swizzled_index);
void WaitForWarp(unsigned mask, swizzled_index);

int Lane();

// What a lane lets others read.
struct Offer {
  uint32_t words[6];
};
// Once the whole warp is here: what each lane offers, until they meet again.
const Offer* OffersOfWarp(const Offer&, swizzled_index);

// 16 bytes that a thread copies once it waits for them; zeros from nowhere.
struct Copy {
  void* to;
  const void* from;
};
void Postpone(const Copy&);
bool TakePostponed(Copy*);  // false if this thread has postponed no more

// Both once those of `mask` in the warp are here: what lane `from` offers, unknown if it is none of these; the lanes
// that vote yes.
uint64_t Exchange(unsigned mask, uint64_t offer, int from, swizzled_index);
unsigned Vote(unsigned mask, bool yes, swizzled_index);

// A shuffle within `width` lanes, which gives one's own value where lane `from` is none of them.
template <typename T>
T Shuffle(unsigned mask, T value, int from, int width, swizzled_index place) {
  static_assert(sizeof value <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Exchange(mask, bits, from >= 0 && from / width == Lane() / width ? from : Lane(), place);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace execution

// The one name that `extern __shared__` may have here, at namespace scope.
inline thread_local uint4 dynamic_shared[execution::kMaxShared / sizeof(uint4)];

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  return execution::Launch(*config, reinterpret_cast<const void*>(kernel), [&] { kernel(arguments...); });
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int value) {
  return execution::AllowShared(reinterpret_cast<const void*>(kernel), value);
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = int(execution::max_shared_bytes);
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** address, size_t count) {
  constexpr size_t kAlignment = 256;
  *address = nullptr;
  return count == 0 || posix_memalign(address, kAlignment, count) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

inline cudaError_t cudaFree(void* address) {
  std::free(address);
  return cudaSuccess;
}

inline cudaError_t cudaMemset(void* address, int byte, size_t count) {
  if (count) std::memset(address, byte, count);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* address, int byte, size_t count, cudaStream_t) {
  return cudaMemset(address, byte, count);
}

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

inline cudaError_t cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind) {
  if (count) std::memcpy(to, from, count);
  return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  execution::WaitForBlock({file, line});
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline void __syncwarp(unsigned mask = ~0u, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  execution::WaitForWarp(mask, {file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return execution::Shuffle(mask, value, execution::Lane() / width * width + lane % width, width, {file, line});
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  return execution::Shuffle(mask, value, execution::Lane() - int(lanes), width, {file, line});
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  return execution::Shuffle(mask, value, execution::Lane() + int(lanes), width, {file, line});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return execution::Shuffle(mask, value, execution::Lane() ^ lanes, width, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int vote, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return execution::Vote(mask, vote != 0, {file, line});
}

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
