// DCN_HOST_DEVICE: an inline function that compiles for the host and, by nvcc, also for the device.
#pragma once

#ifdef __CUDACC__
#define DCN_HOST_DEVICE __host__ __device__ inline
#else
#define DCN_HOST_DEVICE inline __attribute__((always_inline))
#endif
