// The handler of the initialize stage alone, of a module with one kernel, which compiles in seconds.
#include "launch.h"

#include "module.cc"

namespace dcn {
namespace {

__global__ void EmptyKernel() {}

[[maybe_unused]] const char* LaunchEmptyKernel(const Device& device) { return Launch<EmptyKernel>(device, 1); }

}  // namespace

std::vector<std::vector<Handler>> BackendHandlers() { return {}; }

}  // namespace dcn
