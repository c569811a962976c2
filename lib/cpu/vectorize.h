// How CPU kernels become vector code without asking for a particular machine.
#pragma once

// Compiled for several instruction sets; the loader picks the best one. Sanitizers do not understand its resolvers, nor
// does clang take templates.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define DCN_VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DCN_VECTORIZED
#endif

// Whatever a vectorized function calls must be inlined into each of its versions.
#define DCN_INLINE inline __attribute__((always_inline))
#define DCN_INLINED __attribute__((always_inline))  // of a lambda, behind its parameters
