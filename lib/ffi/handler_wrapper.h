// The wrapper around every FFI handler of this package.
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

// The first buffer that has a negative dimension or more than kMaxElements elements, or null. Dimensions of 0 count as
// 1, so that in a buffer that passes the product of any of its dimensions is at most kMaxElements.
inline const XLA_FFI_Buffer* FindOversizedBuffer(int64_t count, void** buffers) {
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

// Wraps an FFI handler: rejects shapes whose element count overflows, and converts C++ exceptions to FFI errors,
// because XLA is built without exceptions.
template <XLA_FFI_Handler* handler>
XLA_FFI_Error* WrappedHandler(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  // A metadata query, which XLA makes at registration, has no operands to check.
  if (extension && extension->type == XLA_FFI_Extension_Metadata) return handler(frame);
  try {
    const XLA_FFI_Buffer* oversized = FindOversizedBuffer(frame->args.size, frame->args.args);
    if (!oversized) oversized = FindOversizedBuffer(frame->rets.size, frame->rets.rets);
    if (!oversized) return handler(frame);
    const std::string shape = ToString(ffi::Span<const int64_t>(oversized->dims, size_t(oversized->rank)));
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
