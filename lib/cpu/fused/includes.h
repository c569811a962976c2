// What the files of each instruction set need of other files, which must not be compiled for that instruction set: the
// linker keeps one copy of an inline function, which other files call too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "aligned_vector.h"
#include "bilinear.h"
#include "element.h"
#include "fused/kernels.h"
#include "vectorize.h"

#define DCN_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define DCN_UNROLL _Pragma("unroll")
#define DCN_INDEPENDENT_ITERATIONS
#define DCN_PRAGMA(text) _Pragma(#text)
#define DCN_BEGIN_TARGET(names) DCN_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define DCN_END_TARGET DCN_PRAGMA(clang attribute pop)
#else
#define DCN_UNROLL _Pragma("GCC unroll 16")
#define DCN_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#define DCN_PRAGMA(text) _Pragma(#text)
#define DCN_BEGIN_TARGET(names) DCN_PRAGMA(GCC push_options) DCN_PRAGMA(GCC target(names))
#define DCN_END_TARGET DCN_PRAGMA(GCC pop_options)
#endif
