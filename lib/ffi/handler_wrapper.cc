#include "ffi/handler_wrapper.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "ffi/checks.h"

namespace dcn {
namespace {

// XLA compares the version with its own, and may capture calls into a CUDA graph.
void StoreMetadata(XLA_FFI_Metadata* metadata, XLA_FFI_ExecutionStage stage) {
  metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  const bool is_execution = stage == XLA_FFI_ExecutionStage_EXECUTE;
  metadata->traits = is_execution ? XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE : 0;
  metadata->state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
}

// Requires `expected` buffers, or more if others may follow them.
void CheckCount(Checks& checks, const char* buffers, int64_t count, int64_t expected, bool has_remaining) {
  checks.Require(count == expected || (has_remaining && count > expected),
                 "has " + std::to_string(count) + " " + buffers + ", must have " + (has_remaining ? "at least " : "") +
                     std::to_string(expected));
}

// Refuses a buffer that has a negative dimension or more than kMaxElements elements. Dimensions of 0 count as 1, so
// that in a buffer that passes, the product of any of its dimensions is at most kMaxElements.
void CheckElementCounts(Checks& checks, int64_t count, void** buffers) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t product = 1;
    const auto shape = ffi::AnyBuffer(buffers[i]).dimensions();
    for (const int64_t size : shape) {
      product = size < 0 ? kMaxElements + 1 : SaturatingMultiply(product, size == 0 ? 1 : size);
    }
    checks.Require(product <= kMaxElements,
                   "an operand or result has shape " + ToString(shape) + ", which no memory can hold");
  }
}

ffi::Error CheckAndCall(const XLA_FFI_CallFrame& frame, XLA_FFI_ExecutionStage stage, const Signature& signature,
                        ffi::Error (*function)(const XLA_FFI_CallFrame&)) {
  Checks checks("jax_dcn");
  checks.Require(frame.struct_size >= XLA_FFI_CallFrame_STRUCT_SIZE, "this release of jaxlib is too old");
  if (!checks.ok()) return checks.error();
  checks.Require(frame.stage == stage, "a handler was called in a stage that it is not made for");
  CheckCount(checks, "operands", frame.args.size, signature.operands, signature.has_remaining_operands);
  CheckCount(checks, "results", frame.rets.size, signature.results, signature.has_remaining_results);
  CheckElementCounts(checks, frame.args.size, frame.args.args);
  CheckElementCounts(checks, frame.rets.size, frame.rets.rets);
  return checks.ok() ? function(frame) : checks.error();
}

}  // namespace

XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

void* GetStream(const XLA_FFI_CallFrame& frame) {
  XLA_FFI_Stream_Get_Args args = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, nullptr};
  if (XLA_FFI_Error* error = frame.api->XLA_FFI_Stream_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroyed = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    frame.api->XLA_FFI_Error_Destroy(&destroyed);
    throw std::runtime_error("jax_dcn: the call has no stream");
  }
  return args.stream;
}

XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame, XLA_FFI_ExecutionStage stage, const Signature& signature,
                           ffi::Error (*function)(const XLA_FFI_CallFrame&)) {
  auto* const extension = frame->extension_start;
  if (extension && extension->type == XLA_FFI_Extension_Metadata) {
    StoreMetadata(reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata, stage);
    return nullptr;
  }
  try {
    const ffi::Error error = CheckAndCall(*frame, stage, signature, function);
    return error.code == XLA_FFI_Error_Code_OK ? nullptr : MakeError(frame, error.code, error.message.c_str());
  } catch (const std::bad_alloc&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::length_error&) {
    return MakeError(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_dcn: out of memory");
  } catch (const std::exception& exception) {
    return MakeError(frame, XLA_FFI_Error_Code_INTERNAL, exception.what());
  }
}

}  // namespace dcn
