// What the interpreter's stand-in for the CUDA runtime offers besides CUDA's functions.
#pragma once

#include <cstdint>
#include <string>

namespace ptx {

// Sets a field of Options by its name. Returns false if there is none. Programs read them from the environment
// variable PTX_OPTIONS: "seed=3,max_grid_blocks=1".
bool SetOption(const std::string& name, uint64_t value);

// Whether memory that is added as an allocation needs cells.
bool ChecksRaces();

int64_t NumNodes();  // kernels and memsets that were put on a stream so far

// The records of the launches since the last call, as JSON, if they are counted.
std::string TakeRecords();

}  // namespace ptx
