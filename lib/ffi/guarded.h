// What goes around every handler.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "ffi/checks.h"
#include "xla/ffi/api/c_api.h"

namespace dcn {

inline XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// A buffer whose shape cannot be, or null. Of all others any product of sizes can be counted, zeros or not.
inline const XLA_FFI_Buffer* FindOversized(int64_t count, void** buffers) {
  for (int64_t i = 0; i < count; ++i) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(buffers[i]);
    int64_t product = 1;
    for (int64_t d = 0; d < buffer->rank; ++d) {
      const int64_t size = buffer->dims[d];
      product = size < 0 ? kMaxElements + 1 : SaturatingMultiply(product, size == 0 ? 1 : size);
      if (product > kMaxElements) return buffer;
    }
  }
  return nullptr;
}

// `handler`, which sees possible shapes alone, and whose exceptions XLA, which knows none, does not see.
template <XLA_FFI_Handler* handler>
XLA_FFI_Error* Guarded(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  if (extension && extension->type == XLA_FFI_Extension_Metadata) return handler(frame);
  try {
    const XLA_FFI_Buffer* wrong = FindOversized(frame->args.size, frame->args.args);
    if (!wrong) wrong = FindOversized(frame->rets.size, frame->rets.rets);
    if (!wrong) return handler(frame);
    const std::string shape = ToString(ffi::Span<const int64_t>(wrong->dims, size_t(wrong->rank)));
    const std::string message = "jax_dcn: an operand or result has shape " + shape + ", which no memory can hold";
    return MakeError(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, message.c_str());
  } catch (const std::bad_alloc&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::length_error&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::exception& exception) {
    return MakeError(frame, XLA_FFI_Error_Code_INTERNAL, exception.what());
  }
}

}  // namespace dcn
