// The library of the FFI handlers that run emulated kernels. Python looks the handlers up by name.
#include <cstring>

#include "execution.h"
#include "ffi/handlers.h"

extern "C" XLA_FFI_Handler* FindHandler(const char* name) {
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      if (std::strcmp(handler.name, name) == 0) return handler.call;
    }
  }
  return nullptr;
}

// The handler of the initialize stage as one of the execute stage, because XLA for CPUs executes no other stage.
extern "C" XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  frame->stage = XLA_FFI_ExecutionStage_INITIALIZE;
  return dcn::InitializeHandler()(frame);
}

extern "C" void AllowOnlyLoadedKernels() { execution::only_loaded_kernels = true; }

extern "C" void SetMachine(const execution::Machine* machine) { execution::machine = *machine; }
