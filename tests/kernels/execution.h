// Emulates on a CPU the part of CUDA that the kernels use, under CUDA's names, so that their source runs unchanged.
//
// Blocks run one after another, each in its own host thread. A CUDA thread is a fiber, which runs until it waits for
// other threads. The emulation finds errors that a GPU does not report: barriers that not all threads reach, and reads
// of uninitialized shared memory. ThreadSanitizer sees happens-before edges only at barriers, and none between blocks,
// as in CUDA. atomicAdd is relaxed: it is not a data race, and orders no other accesses.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __launch_bounds__(...)
// Shared memory is thread-local storage: each block has its own host thread. Array types keep their size, so that
// UndefinedBehaviorSanitizer checks indices.
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
enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidConfiguration,
  cudaErrorMemoryAllocation,
  cudaErrorLaunchFailure,
  cudaErrorInsufficientDriver,
  cudaErrorUnsupportedPtxVersion,
  cudaErrorNoKernelImageForDevice
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
struct cudaFuncAttributes {};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout,
};

const char* cudaGetErrorString(cudaError_t);

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace execution {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 << 10, kReservedSharedBytes = 1 << 10;
inline size_t max_shared_bytes = kMaxSharedBytes;  // per block, on the emulated device
inline unsigned max_grid_blocks = ~0u;             // the grid is cut to this many blocks, to test grid-stride loops
inline bool only_last_block = false;               // if set, only the last block of a launch runs
inline bool only_loaded_kernels = false;           // if set, a launch of a kernel that is not loaded fails

// The nodes that a CUDA graph would have of all work so far: kernel launches, and memsets of at least one byte.
inline std::atomic<int64_t> num_nodes = 0;

// The emulated machine. A device of a compute capability that has no machine code needs the PTX of the runtime's
// version.
constexpr int kRuntimeVersion = 13010;
struct Machine {
  int driver_version = kRuntimeVersion;
  int device = 0;
  int compute_capability = 90;
  bool has_machine_code = true;
  bool has_ptx = true;
  bool has_memory = true;  // to load kernels
};
inline Machine machine;

// A line of a kernel's source, for error messages.
struct SourceLocation {
  const char* file;
  int line;
};

// `address` identifies the kernel for SetAttribute.
cudaError_t Launch(const cudaLaunchConfig_t&, const void* address, const std::function<void()>& kernel);

cudaError_t Load(const void* kernel);

// cudaFuncSetAttribute: allows a kernel to have `value` bytes of dynamic shared memory per block, instead of 48 KiB.
// The carve-out, a percentage, has no effect here; the machine that executes the PTX checks it.
cudaError_t SetAttribute(const void* kernel, cudaFuncAttribute, int value);

// Barriers: all threads of the block, or the lanes of `mask` in the current warp.
void WaitForBlock(SourceLocation);
void WaitForWarp(unsigned mask, SourceLocation);

int Lane();

// Registers of a lane that the other lanes of its warp can read.
struct LaneRegisters {
  uint32_t words[6];
};
// Waits for the whole warp. Returns the registers of each lane, which are valid until the next warp barrier.
const LaneRegisters* AllGatherWarp(const LaneRegisters&, SourceLocation);

// An asynchronous copy of 16 bytes, which takes place when the thread waits for it. A null `from` writes zeros.
struct Copy {
  void* to;
  const void* from;
};
void EnqueueCopy(const Copy&);
bool PopPendingCopy(Copy*);  // false if this thread has no pending copies

// All wait for the lanes of `mask` in the warp. ShuffleBits returns the bits of lane `from`, or ~0 if `from` is not in
// `mask`. Ballot returns the mask of the lanes whose predicate is true, Match that of the lanes with the same value.
uint64_t ShuffleBits(unsigned mask, uint64_t bits, int from, SourceLocation);
unsigned Ballot(unsigned mask, bool predicate, SourceLocation);
unsigned Match(unsigned mask, uint32_t value, SourceLocation);

// A shuffle within segments of `width` lanes: a lane receives its own value if lane `from` is in another segment.
template <typename T>
T Shuffle(unsigned mask, T value, int from, int width, SourceLocation location) {
  static_assert(sizeof value <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = ShuffleBits(mask, bits, from >= 0 && from / width == Lane() / width ? from : Lane(), location);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace execution

// Dynamic shared memory. Kernels must declare it at namespace scope and with this name.
inline thread_local uint4 dynamic_shared[execution::kMaxSharedBytes / sizeof(uint4)];

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  return execution::Launch(*config, reinterpret_cast<const void*>(kernel), [&] { kernel(arguments...); });
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return execution::SetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) { return execution::Load(kernel); }

inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = execution::machine.driver_version;
  return cudaSuccess;
}

inline cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = execution::kRuntimeVersion;
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = execution::machine.device;
  const bool is_driver_new = execution::machine.driver_version / 1000 >= execution::kRuntimeVersion / 1000;
  return is_driver_new ? cudaSuccess : cudaErrorInsufficientDriver;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int capability = execution::machine.compute_capability;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10
           : attribute == cudaDevAttrComputeCapabilityMinor
               ? capability % 10
               : int(execution::max_shared_bytes + execution::kReservedSharedBytes);
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
  if (count) ++execution::num_nodes;
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

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }

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
  return execution::Ballot(mask, vote != 0, {file, line});
}

inline unsigned __match_any_sync(unsigned mask, int value, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  return execution::Match(mask, uint32_t(value), {file, line});
}

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float __int_as_float(int bits) { return __uint_as_float(uint32_t(bits)); }

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
