// The handlers that a module offers to XLA, one function an operator.
#pragma once

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace dcn {

struct Handler {
  const char* name;
  XLA_FFI_Handler* call;
};

std::vector<Handler> DeformConvHandlers();
std::vector<Handler> PsRoiPoolHandlers();

}  // namespace dcn
