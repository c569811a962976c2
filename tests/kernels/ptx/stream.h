// Included before the FFI handlers whose kernels run on the interpreter. On the CPU, XLA's execution context has no
// stream, and the interpreter needs none.
#pragma once

#include <cuda_runtime_api.h>

#include "xla/ffi/api/ffi.h"

template <>
struct xla::ffi::CtxDecoding<xla::ffi::PlatformStream<cudaStream_t>> {
  using Type = cudaStream_t;

  static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, DiagnosticEngine&) {
    return nullptr;
  }
};
