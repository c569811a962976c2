// Attributes and pragmas with which the compiler makes the intended vector code of kernels.
#pragma once

// A function that must be inlined, so that it is compiled for its caller's instruction set.
#define DCN_INLINE inline __attribute__((always_inline))
#define DCN_INLINED __attribute__((always_inline))  // for lambdas, after the parameter list
#define DCN_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define DCN_UNROLL _Pragma("unroll")
#define DCN_INDEPENDENT_ITERATIONS
#else
#define DCN_UNROLL _Pragma("GCC unroll 16")
#define DCN_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif
