// Macros for vectorized CPU kernels that run on any CPU of the architecture.
#pragma once

// Compiles a function for several instruction sets; the dynamic loader selects the best one at run time. Not used with
// sanitizers, which do not support its ifunc resolvers, nor with clang, which does not support it for templates.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define DCN_VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DCN_VECTORIZED
#endif

// Functions that a vectorized function calls must be inlined into each of its clones, to be compiled for its
// instruction set.
#define DCN_INLINE inline __attribute__((always_inline))
#define DCN_INLINED __attribute__((always_inline))  // for lambdas, after the parameter list
