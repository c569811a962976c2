// The handlers that a module offers to XLA: those of each operator, and all that a backend has.
#pragma once

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace dcn {

struct Handler {
  const char* name;
  XLA_FFI_Handler* call;
};

std::vector<Handler> DeformConvHandlers();
std::vector<Handler> FusedDeformConvHandlers();
std::vector<Handler> PsRoiPoolHandlers();

std::vector<std::vector<Handler>> BackendHandlers();

}  // namespace dcn
