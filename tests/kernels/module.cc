// The library of the FFI handlers that run emulated kernels. Python looks the handlers up by name.
#include <cstring>

#include "ffi/handlers.h"

extern "C" XLA_FFI_Handler* FindHandler(const char* name) {
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      if (std::strcmp(handler.name, name) == 0) return handler.call;
    }
  }
  return nullptr;
}
