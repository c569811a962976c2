// Included before the FFI handlers whose kernels run on the interpreter. On the CPU, XLA's execution context has no
// stream, and the interpreter needs none.
#pragma once

#include <cuda_runtime_api.h>

#include "ffi/handler_wrapper.h"

template <>
inline cudaStream_t dcn::DecodeContext<cudaStream_t>(const XLA_FFI_CallFrame&) {
  return nullptr;
}
