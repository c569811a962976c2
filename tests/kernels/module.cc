// The FFI handlers on emulated kernels, for Python to find by their names.
#include <cstring>

#include "ffi/handlers.h"

extern "C" XLA_FFI_Handler* FindHandler(const char* name) {
  for (const auto& of_operator : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : of_operator) {
      if (std::strcmp(handler.name, name) == 0) return handler.call;
    }
  }
  return nullptr;
}
