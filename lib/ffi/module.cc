// The Python module of one backend: its handlers as capsules, and the FFI version and compiler of the build.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "ffi/handlers.h"

namespace nb = nanobind;

NB_MODULE(DCN_MODULE, module) {
  nb::dict handlers;
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      handlers[handler.name] = nb::capsule(reinterpret_cast<void*>(handler.call));
    }
  }
  module.attr("handlers") = handlers;
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.attr("compiler") = DCN_COMPILER;
}
