// The XLA FFI handlers of each operator, and the lists of them that a backend's module registers.
#pragma once

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace dcn {

struct Handler {
  const char* name;
  XLA_FFI_Handler* call;
};

std::vector<Handler> DeformConvHandlers();
std::vector<Handler> CpuDeformConvHandlers();
std::vector<Handler> SortedDeformConvHandlers();
std::vector<Handler> RoiPoolHandlers();
std::vector<Handler> AggregationHandlers();
std::vector<Handler> SamplingHandlers();
std::vector<Handler> AssignmentHandlers();

std::vector<std::vector<Handler>> BackendHandlers();

// The handler of the initialize stage, which all handlers of the backend share, or null if it needs none.
XLA_FFI_Handler* InitializeHandler();

}  // namespace dcn
