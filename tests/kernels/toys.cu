// Small correct and incorrect kernels, which show what errors the execution model detects: `toys NAME` runs one and
// prints its output.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kThreads = 64;

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

__global__ void StaticBeyondKernel(int* out) {
  __shared__ int values[kThreads], others[kThreads];
  values[threadIdx.x] = others[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x + 1] + others[threadIdx.x];
}

__global__ void DivergentBarrierKernel(int*) {
  if (threadIdx.x != 5) __syncthreads();
}

__global__ void DivergentShuffleKernel(int* out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_xor_sync(~0u, int(threadIdx.x), 1);
}

template <bool kSyncWarp>
__global__ void WarpKernel(int* out) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = int(threadIdx.x);
  if (kSyncWarp) __syncwarp();
  out[threadIdx.x] = __shfl_xor_sync(~0u, values[threadIdx.x ^ 1], 1);  // a shuffle does not order memory accesses
}

// Both blocks write the same words.
__global__ void OverlappingBlocksKernel(int* out) { out[threadIdx.x] = int(blockIdx.x); }

__global__ void MisalignedKernel(int* out) {
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(out + 1) = uint4{1, 2, 3, 4};
}

__global__ void UnknownInstructionKernel(int*) { asm volatile("nanosleep.u32 20;"); }

struct Toy {
  Toy(void (*kernel)(int*), unsigned blocks = 1) : kernel(kernel), blocks(blocks) {}

  void (*kernel)(int*);
  unsigned blocks;
};

const std::map<std::string, Toy> kToys = {
    {"rotate", {RotateKernel<true, true>}},
    {"rotate_without_first_barrier", {RotateKernel<false, true>}},
    {"rotate_without_second_barrier", {RotateKernel<true, false>}},
    {"unwritten", {UnwrittenKernel}},
    {"static_beyond", {StaticBeyondKernel}},
    {"divergent_barrier", {DivergentBarrierKernel}},
    {"divergent_shuffle", {DivergentShuffleKernel}},
    {"warp", {WarpKernel<true>}},
    {"warp_without_barrier", {WarpKernel<false>}},
    {"overlapping_blocks", {OverlappingBlocksKernel, 2}},
    {"misaligned", {MisalignedKernel}},
    {"unknown_instruction", {UnknownInstructionKernel}},
    {"no_blocks", {OverlappingBlocksKernel, 0}},
};

}  // namespace

int main(int, char** arguments) {
  const Toy& toy = kToys.at(arguments[1]);
  std::vector<int> out(kThreads);
  const size_t bytes = out.size() * sizeof(int);
  void* memory = nullptr;
  cudaMalloc(&memory, bytes);
  cudaMemcpy(memory, out.data(), bytes, cudaMemcpyHostToDevice);
  cudaLaunchConfig_t config = {};
  config.gridDim = toy.blocks;
  config.blockDim = kThreads;
  const cudaError_t error = cudaLaunchKernelEx(&config, toy.kernel, static_cast<int*>(memory));
  cudaMemcpy(out.data(), memory, bytes, cudaMemcpyDeviceToHost);
  cudaFree(memory);
  if (error != cudaSuccess) {
    std::printf("error: %s\n", cudaGetErrorString(error));
    return 1;
  }
  for (int i = 0; i < kThreads; ++i) std::printf("%d ", out[i]);
}
