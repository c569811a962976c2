// Makes FFI handlers of functions, by XLA's own header.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "device.h"
#include "ffi/checks.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace dcn {

// Binds the remaining parameters of a handler's function, in order: each operand (ffi::AnyBuffer) and result
// (ffi::Result), those that remain, and the attributes. XLA may capture calls of the function into a CUDA graph.
template <typename Binding, typename Function>
auto Bind(Binding&& binding, Function function) {
  return std::move(binding).To(function, {ffi::Traits::kCmdBufferCompatible});
}
template <typename First, typename... Rest, typename Binding, typename Function>
auto Bind(Binding&& binding, Function function) {
  if constexpr (std::is_same_v<First, ffi::AnyBuffer>) {
    return Bind<Rest...>(std::move(binding).template Arg<ffi::AnyBuffer>(), function);
  } else if constexpr (std::is_same_v<First, ffi::Result<ffi::AnyBuffer>>) {
    return Bind<Rest...>(std::move(binding).template Ret<ffi::AnyBuffer>(), function);
  } else if constexpr (std::is_same_v<First, ffi::RemainingArgs>) {
    return Bind<Rest...>(std::move(binding).RemainingArgs(), function);
  } else if constexpr (std::is_same_v<First, ffi::RemainingRets>) {
    return Bind<Rest...>(std::move(binding).RemainingRets(), function);
  } else {
    static_assert(std::is_same_v<First, ffi::Dictionary>);
    return Bind<Rest...>(std::move(binding).template Attrs<ffi::Dictionary>(), function);
  }
}

// A handler's function has the Device as its first parameter, and returns null or an error message.
template <auto function, typename... Parameters>
XLA_FFI_Error* CallBound(const char* (*)(Device&, Parameters...), XLA_FFI_CallFrame* frame) {
  static auto* const handler = [] {
    const auto call = [](Device::Context context, Parameters... parameters) {
      Device device(context);
      const char* const failure = function(device, parameters...);
      return failure ? ffi::Error::Internal(failure) : ffi::Error::Success();
    };
    return Bind<Parameters...>(ffi::Ffi::Bind().Ctx<Device::Binding>(), call).release();
  }();
  return handler->Call(frame);
}

// That of the initialize stage has no parameters.
template <auto function>
XLA_FFI_Error* CallBound(ffi::Error (*)(), XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().To(function).release();
  return handler->Call(frame);
}

inline XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// No buffer may have a negative dimension or more than kMaxElements elements. Dimensions of 0 count as 1, so that the
// product of any dimensions of a buffer is at most kMaxElements.
inline void CheckBuffers(int64_t count, void** buffers) {
  for (int64_t i = 0; i < count; ++i) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(buffers[i]);
    const ffi::Span<const int64_t> shape(buffer->dims, size_t(buffer->rank));
    int64_t product = 1;
    for (const int64_t size : shape) {
      product = size < 0 ? kMaxElements + 1 : SaturatingMultiply(product, size == 0 ? 1 : size);
      Require(product <= kMaxElements, "an operand or result has shape ", shape, ", which no memory can hold");
    }
  }
}

// Calls a handler's function. It rejects shapes whose element count overflows, and converts C++ exceptions to FFI
// errors, because XLA is built without exceptions.
template <auto function>
XLA_FFI_Error* CallFunction(const std::string_view name, XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  // A metadata query, which XLA makes at registration, has no operands to check.
  if (extension && extension->type == XLA_FFI_Extension_Metadata) return CallBound<function>(function, frame);
  try {
    CheckBuffers(frame->args.size, frame->args.args);
    CheckBuffers(frame->rets.size, frame->rets.rets);
    return CallBound<function>(function, frame);
  } catch (const InvalidCall& failure) {
    const std::string message = std::string(name) + ": " + failure.what();
    return MakeError(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, message.c_str());
  } catch (const std::bad_alloc&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::length_error&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::exception& exception) {
    return MakeError(frame, XLA_FFI_Error_Code_INTERNAL, exception.what());
  }
}

// The entry of a handler in a list of Handler.
#define DCN_HANDLER(name, function) {name, [](XLA_FFI_CallFrame* frame) { return CallFunction<function>(name, frame); }}

}  // namespace dcn
