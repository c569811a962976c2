// The assignment on CUDA: a thread block solves a problem.
#include "assignment/shortest_paths.h"
#include "device.h"
#include "launch.h"

namespace dcn {
namespace {

struct Block {
  Candidate* nearest;  // of each warp, in shared memory

  __device__ static int rank() { return int(threadIdx.x); }
  __device__ static int size() { return kThreads; }
  __device__ static void Sync() { __syncthreads(); }
  __device__ Candidate ReduceMin(Candidate candidate) const {
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const Candidate other = {__shfl_xor_sync(kWholeWarp, candidate.distance, lanes),
                               __shfl_xor_sync(kWholeWarp, candidate.order, lanes)};
      candidate = Lesser(candidate, other);
    }
    __syncthreads();  // the warps have read the candidates of the call before
    if (Lane() == 0) nearest[threadIdx.x / kWarp] = candidate;
    __syncthreads();
    candidate = nearest[0];
    for (int warp = 1; warp < kThreads / kWarp; ++warp) candidate = Lesser(candidate, nearest[warp]);
    return candidate;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) AssignKernel(AssignmentSizes sizes, AssignmentArrays arrays) {
  __shared__ Candidate nearest[kThreads / kWarp];
  Block block = {nearest};
  for (int64_t problem = blockIdx.x; problem < sizes.problems; problem += gridDim.x) {
    SolveAssignment<T>(block, sizes, arrays, problem);
    __syncthreads();
  }
}

}  // namespace

const char* Assign(Device& device, DType dtype, const AssignmentSizes& sizes, const AssignmentArrays& arrays) {
  return DispatchAccumulator(dtype, [&](auto element) {
    return Launch<AssignKernel<decltype(element)>>(device, sizes.problems, sizes, arrays);
  });
}

}  // namespace dcn
