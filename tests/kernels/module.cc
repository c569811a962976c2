// The library of the FFI handlers that run emulated kernels.
#include "checked_handlers.h"
#include "execution.h"

const checked_handlers::StandIn checked_handlers::stand_in = {
    [](XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) { return handler(frame); },
    [] { return int64_t(execution::num_nodes); }};

extern "C" void AllowOnlyLoadedKernels() { execution::only_loaded_kernels = true; }

extern "C" void SetMaxSharedBytes(int bytes) { execution::max_shared_bytes = size_t(bytes); }

extern "C" void SetMachine(const execution::Machine* machine) { execution::machine = *machine; }
