// CUDA's functions are compiled once, so that there is no choice, unlike on CPUs: see cpu/dispatch.h.
#pragma once

#define DCN_BEST(function) function
