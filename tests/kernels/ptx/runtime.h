// What the interpreter's stand-in for the CUDA runtime offers besides CUDA's functions.
#pragma once

#include <cstdint>
#include <string>

namespace ptx {

// The option of this name, or null. Programs read options from the environment variable PTX_OPTIONS:
// "seed=3,max_grid_blocks=1".
uint64_t* FindOption(const std::string& name);

// Whether memory that is added as an allocation needs cells.
bool ChecksRaces();

int64_t NumNodes();  // kernels and memsets that were put on a stream so far

}  // namespace ptx
