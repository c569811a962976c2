// Makes FFI handlers of functions.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "ffi/api.h"

namespace dcn {

XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* message);

// The buffers that the signature of a handler names, and whether more may follow them.
struct Signature {
  int64_t operands, results;
  bool has_remaining_operands, has_remaining_results;
};

// Answers XLA's query of a handler's metadata. In a call, checks the stage, the number of buffers, and that their
// element counts do not overflow, before it calls `function`. Converts C++ exceptions to FFI errors, because XLA is
// built without exceptions.
XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame, XLA_FFI_ExecutionStage stage, const Signature& signature,
                           ffi::Error (*function)(const XLA_FFI_CallFrame&));

// The stream of a call on a GPU.
void* GetStream(const XLA_FFI_CallFrame& frame);

// The execution context of a call: a stream, or what gives access to a pool of threads.
template <typename Context>
Context DecodeContext(const XLA_FFI_CallFrame& frame) {
  if constexpr (std::is_pointer_v<Context>) {
    return static_cast<Context>(GetStream(frame));
  } else {
    return {frame.api, frame.ctx};
  }
}

// Decodes the parameters of a handler's function one after the other.
class ParameterDecoder {
 public:
  explicit ParameterDecoder(const XLA_FFI_CallFrame& frame) : frame_(frame) {}

  template <typename T>
  T Next() {
    if constexpr (std::is_same_v<T, ffi::AnyBuffer>) {
      return T(frame_.args.args[operand_++]);
    } else if constexpr (std::is_same_v<T, ffi::Result<ffi::AnyBuffer>>) {
      return T(ffi::AnyBuffer(frame_.rets.rets[result_++]));
    } else if constexpr (std::is_same_v<T, ffi::RemainingArgs>) {
      return T(frame_.args.args + operand_, frame_.args.size - operand_);
    } else if constexpr (std::is_same_v<T, ffi::RemainingRets>) {
      return T(frame_.rets.rets + result_, frame_.rets.size - result_);
    } else if constexpr (std::is_same_v<T, ffi::Dictionary>) {
      return T(&frame_.attrs);
    } else {
      return DecodeContext<T>(frame_);
    }
  }

 private:
  const XLA_FFI_CallFrame& frame_;
  int64_t operand_ = 0, result_ = 0;
};

template <auto function, typename = decltype(function)>
struct HandlerOf;

template <auto function, typename... Parameters>
struct HandlerOf<function, ffi::Error (*)(Parameters...)> {
  template <typename T>
  static constexpr int64_t kCount = (int64_t{std::is_same_v<Parameters, T>} + ... + 0);
  static constexpr Signature kSignature = {kCount<ffi::AnyBuffer>, kCount<ffi::Result<ffi::AnyBuffer>>,
                                           kCount<ffi::RemainingArgs> > 0, kCount<ffi::RemainingRets> > 0};

  static ffi::Error DecodeAndCall(const XLA_FFI_CallFrame& frame) {
    [[maybe_unused]] ParameterDecoder decoder(frame);
    return std::apply(function, std::tuple<Parameters...>{decoder.Next<Parameters>()...});
  }
};

// The handler of a function for a stage. The function's parameters say what it is called with: the context of the
// Device, each operand (ffi::AnyBuffer) and result (ffi::Result), those that remain, and the attributes.
template <auto function, XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_EXECUTE>
XLA_FFI_Error* WrappedHandler(XLA_FFI_CallFrame* frame) {
  return CallHandler(frame, stage, HandlerOf<function>::kSignature, HandlerOf<function>::DecodeAndCall);
}

}  // namespace dcn
