// Included before the FFI handlers of the emulated kernels. On the CPU, XLA's execution context has no stream, and the
// emulation needs none.
#pragma once

#include <cuda_runtime_api.h>

#include "ffi/handler_wrapper.h"

template <>
inline cudaStream_t dcn::DecodeContext<cudaStream_t>(const XLA_FFI_CallFrame&) {
  return nullptr;
}
