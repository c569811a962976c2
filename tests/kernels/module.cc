// The library of the FFI handlers that run emulated kernels. Python looks the handlers up by name.
#include <array>
#include <cstring>
#include <utility>

#include "execution.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace {

const std::vector<dcn::Handler>& Handlers() {
  static const std::vector<dcn::Handler> handlers = [] {
    std::vector<dcn::Handler> all;
    for (const auto& of_operator : dcn::BackendHandlers())
      all.insert(all.end(), of_operator.begin(), of_operator.end());
    return all;
  }();
  return handlers;
}

bool HasResult(const XLA_FFI_CallFrame* frame) {
  for (int64_t i = 0; i < frame->rets.size; ++i) {
    const auto* result = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
    bool is_empty = false;
    for (int64_t d = 0; d < result->rank; ++d) is_empty |= result->dims[d] == 0;
    if (!is_empty) return true;
  }
  return false;
}

// Calls a handler, which must enqueue a node if it has a result that is not empty. XLA may capture the call into a CUDA
// graph of its own, and its older releases reject an empty graph. XLA removes calls of which all results are empty.
template <size_t index>
XLA_FFI_Error* CheckedHandler(XLA_FFI_CallFrame* frame) {
  const bool is_metadata_query = frame->extension_start != nullptr;
  const int64_t nodes_before = execution::num_nodes;
  XLA_FFI_Error* error = Handlers()[index].call(frame);
  if (error || is_metadata_query || execution::num_nodes > nodes_before || !HasResult(frame)) return error;
  return dcn::MakeError(frame, XLA_FFI_Error_Code_INTERNAL, "the call enqueued nothing");
}

constexpr size_t kMaxHandlers = 16;

template <size_t... indices>
XLA_FFI_Handler* CheckedHandlerAt(size_t index, std::index_sequence<indices...>) {
  static constexpr std::array<XLA_FFI_Handler*, kMaxHandlers> kHandlers = {&CheckedHandler<indices>...};
  return kHandlers.at(index);
}

}  // namespace

extern "C" XLA_FFI_Handler* FindHandler(const char* name) {
  for (size_t i = 0; i < Handlers().size(); ++i) {
    if (std::strcmp(Handlers()[i].name, name) != 0) continue;
    return CheckedHandlerAt(i, std::make_index_sequence<kMaxHandlers>());
  }
  return nullptr;
}

// The handler of the initialize stage as one of the execute stage, because XLA for CPUs executes no other stage.
extern "C" XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  frame->stage = XLA_FFI_ExecutionStage_INITIALIZE;
  return dcn::InitializeHandler()(frame);
}

extern "C" void AllowOnlyLoadedKernels() { execution::only_loaded_kernels = true; }

extern "C" void SetMaxSharedBytes(int bytes) { execution::max_shared_bytes = size_t(bytes); }

extern "C" void SetMachine(const execution::Machine* machine) { execution::machine = *machine; }
