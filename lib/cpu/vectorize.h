// Macros for vectorized CPU kernels that run on any CPU of the architecture.
#pragma once

// Compiles a function for several instruction sets; the dynamic loader selects the best one at run time. Not used with
// sanitizers, which do not support its ifunc resolvers, nor with clang, which does not support it for templates.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define DCN_VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define DCN_VECTORIZED_BELOW_WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
#define DCN_WIDE __attribute__((target("arch=x86-64-v4")))
#define DCN_HAS_WIDE __builtin_cpu_supports("x86-64-v4")
#else
#define DCN_VECTORIZED
#define DCN_VECTORIZED_BELOW_WIDE
#define DCN_WIDE
#define DCN_HAS_WIDE false
#endif

// A function for vectors of kWideBytes is compiled with DCN_WIDE, and called only if HasWideVectors(). The one that is
// called otherwise is compiled with DCN_VECTORIZED_BELOW_WIDE.
constexpr int kWideBytes = 64;
inline bool HasWideVectors() { return DCN_HAS_WIDE; }

// Functions that a vectorized function calls must be inlined into each of its clones, to be compiled for its
// instruction set.
#define DCN_INLINE inline __attribute__((always_inline))
#define DCN_INLINED __attribute__((always_inline))  // for lambdas, after the parameter list
