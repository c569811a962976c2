// Small correct and incorrect kernels, which show what errors the execution model detects: `toys NAME` runs one and
// prints its output.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cuda/matrix.h"

extern __shared__ uint4 dynamic_shared[];

namespace {

constexpr int kThreads = 64;
constexpr int kResults = 2 * kThreads;  // the numbers 5, 6, 7 and 8 come after them

// Each thread reads the value that its neighbour wrote.
template <bool kFirstBarrier, bool kSecondBarrier>
__global__ void RotateKernel(int* out) {
  __shared__ int values[kThreads];
  for (int round = 0; round < 2; ++round) {
    values[threadIdx.x] = round * 100 + int(threadIdx.x);
    if (kFirstBarrier) __syncthreads();
    out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
    if (kSecondBarrier) __syncthreads();
  }
}

__global__ void UnwrittenKernel(int* out) {
  __shared__ int values[kThreads];
  if (threadIdx.x < 10) values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

template <int kBeyond>
__global__ void DynamicKernel(int* out) {
  int* values = reinterpret_cast<int*>(dynamic_shared);
  values[threadIdx.x + kBeyond] = int(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[kThreads - 1 - threadIdx.x + kBeyond];
}

// Two blocks are to be resident per SM, for which nothing requests a carve-out.
__global__ void __launch_bounds__(kThreads, 2) NoCarveOutKernel(int* out) {
  int* values = reinterpret_cast<int*>(dynamic_shared);
  values[threadIdx.x] = out[threadIdx.x] = 0;
}

__global__ void StaticBeyondKernel(int* out) {
  __shared__ int values[kThreads], others[kThreads];
  values[threadIdx.x] = others[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x + 1] + others[threadIdx.x];
}

// An index that the compiler does not know puts the array in local memory, which the interpreter does not have.
__global__ void ArrayInLocalMemoryKernel(int* out) {
  int values[kThreads];
  for (int i = 0; i < kThreads; ++i) values[out[i]] = i;
  out[threadIdx.x] = values[out[threadIdx.x]];
}

__global__ void DivergentBarrierKernel(int*) {
  if (threadIdx.x != 5) __syncthreads();
}

__global__ void TwoBarriersKernel(int*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void DivergentShuffleKernel(int* out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_xor_sync(~0u, int(threadIdx.x), 1);
}

__global__ void ShuffleKernel(int* out) {
  const int me = int(threadIdx.x), lane = me % 32;
  out[me] = __shfl_xor_sync(~0u, me, 3) == (me ^ 3);
  out[me] += __shfl_up_sync(~0u, me, 2) == (lane < 2 ? me : me - 2);
  out[me] += __shfl_down_sync(~0u, me, 2, 8) == (lane % 8 > 5 ? me : me + 2);
  out[me] += __shfl_sync(~0u, double(me), 9, 16) == me / 16 * 16 + 9;
  out[me] += __ballot_sync(~0u, lane % 2) == 0xaaaaaaaa && __any_sync(~0u, lane == 5) && !__any_sync(~0u, lane > 31);
  out[me] += __match_any_sync(~0u, lane / 8) == 0xffu << lane / 8 * 8;
  // Each half of the warp votes separately, the first twice.
  const unsigned half = lane < 16 ? 0xffff : 0xffff0000;
  for (int round = 0; round < (lane < 16 ? 2 : 1); ++round) out[me] += __ballot_sync(half, 1) == half;
}

__global__ void ExcludedLaneKernel(int* out) {
  out[threadIdx.x] = threadIdx.x % 32 < 16 ? __shfl_sync(0xffff, int(threadIdx.x), 20) : 0;
}

template <bool kSyncWarp>
__global__ void WarpKernel(int* out) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = int(threadIdx.x);
  if (kSyncWarp) __syncwarp();
  out[threadIdx.x] = __shfl_xor_sync(~0u, values[threadIdx.x ^ 1], 1);  // a shuffle does not order memory accesses
}

// Lanes that loop for different times part, and ldmatrix needs them together.
template <bool kSyncWarp>
__global__ void LoopKernel(int* out) {
  __shared__ uint4 rows[kThreads];
  rows[threadIdx.x] = {threadIdx.x, 0, 0, 0};
  __syncthreads();
  int value = 0;
  for (int i = 0; i < int(threadIdx.x % 32); ++i) value = out[kResults + value % 4];
  if (kSyncWarp) __syncwarp();
  uint32_t words[4];
  dcn::load_matrix_fragments(words, &rows[threadIdx.x]);
  out[threadIdx.x] = value < 0 ? value : int(words[0]);  // word lane % 4 of row lane / 4 of the warp
}

// Both blocks write the same words.
__global__ void OverlappingBlocksKernel(int* out) { out[threadIdx.x] = int(blockIdx.x); }

__global__ void MisalignedKernel(int* out) {
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(out + 1) = uint4{1, 2, 3, 4};
}

template <bool kWait>
__global__ void CopyKernel(int* out) {
  __shared__ uint4 words[kThreads];
  dcn::copy_async(&words[threadIdx.x], out + kResults, threadIdx.x % 2 == 1);
  if (kWait) dcn::wait_async_copies();
  out[threadIdx.x] = int(words[threadIdx.x].z);
}

struct Toy {
  Toy(void (*kernel)(int*), unsigned blocks = 1, size_t shared_bytes = 0)
      : kernel(kernel), blocks(blocks), shared_bytes(shared_bytes) {}

  void (*kernel)(int*);
  unsigned blocks;
  size_t shared_bytes;
};

const std::map<std::string, Toy> kToys = {
    {"rotate", {RotateKernel<true, true>}},
    {"rotate_without_first_barrier", {RotateKernel<false, true>}},
    {"rotate_without_second_barrier", {RotateKernel<true, false>}},
    {"unwritten", {UnwrittenKernel}},
    {"dynamic", {DynamicKernel<0>, 1, kThreads * sizeof(int)}},
    {"dynamic_beyond", {DynamicKernel<1>, 1, kThreads * sizeof(int)}},
    {"no_carve_out", {NoCarveOutKernel, 1, kThreads * sizeof(int)}},
    {"static_beyond", {StaticBeyondKernel}},
    {"array_in_local_memory", {ArrayInLocalMemoryKernel}},
    {"divergent_barrier", {DivergentBarrierKernel}},
    {"two_barriers", {TwoBarriersKernel}},
    {"divergent_shuffle", {DivergentShuffleKernel}},
    {"shuffle", {ShuffleKernel}},
    {"excluded_lane", {ExcludedLaneKernel}},
    {"warp", {WarpKernel<true>}},
    {"warp_without_barrier", {WarpKernel<false>}},
    {"loop", {LoopKernel<true>}},
    {"loop_without_barrier", {LoopKernel<false>}},
    {"overlapping_blocks", {OverlappingBlocksKernel, 2}},
    {"misaligned", {MisalignedKernel}},
    {"copy", {CopyKernel<true>}},
    {"copy_without_wait", {CopyKernel<false>}},
    {"shared_memory_without_opt_in", {DynamicKernel<0>, 1, 64 << 10}},
    {"no_blocks", {DynamicKernel<0>, 0}},
    {"too_much_shared_memory", {DynamicKernel<0>, 1, 1 << 20}},
};

}  // namespace

int main(int, char** arguments) {
  const Toy& toy = kToys.at(arguments[1]);
  std::vector<int> out(kResults);
  out.insert(out.end(), {5, 6, 7, 8});
  const size_t bytes = out.size() * sizeof(int);
  void* memory = nullptr;
  cudaMalloc(&memory, bytes);
  cudaMemcpy(memory, out.data(), bytes, cudaMemcpyHostToDevice);
  cudaLaunchConfig_t config = {};
  config.gridDim = toy.blocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = toy.shared_bytes;
  const cudaError_t error = cudaLaunchKernelEx(&config, toy.kernel, static_cast<int*>(memory));
  cudaMemcpy(out.data(), memory, bytes, cudaMemcpyDeviceToHost);
  cudaFree(memory);
  if (error != cudaSuccess) {
    std::printf("error: %s\n", cudaGetErrorString(error));
    return 1;
  }
  for (int i = 0; i < kResults; ++i) std::printf("%d ", out[i]);
}
