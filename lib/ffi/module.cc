// The Python module of one backend: its handlers, and what it was built with.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "ffi/handlers.h"

namespace nb = nanobind;

NB_MODULE(DCN_MODULE, module) {
  nb::dict handlers;
  for (const auto& of_operator : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : of_operator) {
      handlers[handler.name] = nb::capsule(reinterpret_cast<void*>(handler.call));
    }
  }
  module.attr("handlers") = handlers;
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.attr("compiler") = DCN_COMPILER;
}
