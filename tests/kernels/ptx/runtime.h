// What the interpreter's stand-in for the CUDA runtime offers besides CUDA's functions.
#pragma once

#include <cstdint>
#include <string>

namespace ptx {

uint64_t* FindOption(const std::string& name);  // null if there is none of this name

int64_t NumNodes();  // kernels and memsets that were put on a stream so far

}  // namespace ptx
