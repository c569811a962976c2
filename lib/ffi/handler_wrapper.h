// Makes FFI handlers of functions, by XLA's own header.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
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

// Binds the remaining parameters of a handler's function, in order: the context of the Device, each operand
// (ffi::AnyBuffer) and result (ffi::Result), those that remain, and the attributes.
template <typename Binding, typename Function>
auto Bind(Binding&& binding, Function function, std::initializer_list<ffi::Traits> traits) {
  return std::move(binding).To(function, traits);
}
template <typename First, typename... Rest, typename Binding, typename Function>
auto Bind(Binding&& binding, Function function, std::initializer_list<ffi::Traits> traits) {
  if constexpr (std::is_same_v<First, ffi::AnyBuffer>) {
    return Bind<Rest...>(std::move(binding).template Arg<ffi::AnyBuffer>(), function, traits);
  } else if constexpr (std::is_same_v<First, ffi::Result<ffi::AnyBuffer>>) {
    return Bind<Rest...>(std::move(binding).template Ret<ffi::AnyBuffer>(), function, traits);
  } else if constexpr (std::is_same_v<First, ffi::RemainingArgs>) {
    return Bind<Rest...>(std::move(binding).RemainingArgs(), function, traits);
  } else if constexpr (std::is_same_v<First, ffi::RemainingRets>) {
    return Bind<Rest...>(std::move(binding).RemainingRets(), function, traits);
  } else if constexpr (std::is_same_v<First, ffi::Dictionary>) {
    return Bind<Rest...>(std::move(binding).template Attrs<ffi::Dictionary>(), function, traits);
  } else {
    static_assert(std::is_same_v<First, Device::Context>);
    return Bind<Rest...>(std::move(binding).template Ctx<Device::Binding>(), function, traits);
  }
}

template <auto function, ffi::ExecutionStage stage, typename... Parameters>
XLA_FFI_Error* CallBound(ffi::Error (*)(Parameters...), XLA_FFI_CallFrame* frame) {
  // XLA may capture calls of the execute stage into a CUDA graph.
  static auto* const handler = [] {
    if constexpr (stage == ffi::ExecutionStage::kExecute) {
      return Bind<Parameters...>(ffi::Ffi::Bind<stage>(), function, {ffi::Traits::kCmdBufferCompatible}).release();
    } else {
      return Bind<Parameters...>(ffi::Ffi::Bind<stage>(), function, {}).release();
    }
  }();
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
template <auto function, ffi::ExecutionStage stage = ffi::ExecutionStage::kExecute>
XLA_FFI_Error* CallFunction(const std::string_view name, XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  // A metadata query, which XLA makes at registration, has no operands to check.
  if (extension && extension->type == XLA_FFI_Extension_Metadata) return CallBound<function, stage>(function, frame);
  try {
    CheckBuffers(frame->args.size, frame->args.args);
    CheckBuffers(frame->rets.size, frame->rets.rets);
    return CallBound<function, stage>(function, frame);
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
