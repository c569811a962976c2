// The library of the FFI handlers whose kernels run on the interpreter. Python looks them up by name.
#include "ffi/handlers.h"

#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "call_memory.h"
#include "ffi/handler_wrapper.h"

namespace {

const std::vector<dcn::Handler>& Handlers() {
  static const std::vector<dcn::Handler> handlers = [] {
    std::vector<dcn::Handler> all;
    for (const auto& of_operator : dcn::BackendHandlers()) {
      all.insert(all.end(), of_operator.begin(), of_operator.end());
    }
    return all;
  }();
  return handlers;
}

std::mutex mutex;  // XLA may run independent calls at the same time

bool HasResult(const XLA_FFI_CallFrame* frame) {
  for (int64_t i = 0; i < frame->rets.size; ++i) {
    const auto* result = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
    bool is_empty = false;
    for (int64_t d = 0; d < result->rank; ++d) is_empty |= result->dims[d] == 0;
    if (!is_empty) return true;
  }
  return false;
}

// Calls a handler, which must put a node on the stream if it has a result that is not empty. XLA may capture the call
// into a CUDA graph of its own, and its older releases reject an empty graph. XLA removes calls of which all results
// are empty. XLA's handlers have no state, so each has a function of its own.
template <size_t index>
XLA_FFI_Error* CheckedHandler(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start) return Handlers()[index].call(frame);  // a metadata query
  const std::lock_guard<std::mutex> lock(mutex);
  const ptx::CallMemory memory(*frame);
  const int64_t nodes_before = ptx::NumNodes();
  XLA_FFI_Error* error = Handlers()[index].call(frame);
  if (error || ptx::NumNodes() > nodes_before || !HasResult(frame)) return error;
  return dcn::MakeError(frame, XLA_FFI_Error_Code_INTERNAL, "the call enqueued nothing");
}

constexpr size_t kMaxHandlers = 32;

template <size_t... indices>
XLA_FFI_Handler* CheckedHandlerAt(size_t index, std::index_sequence<indices...>) {
  static constexpr std::array<XLA_FFI_Handler*, kMaxHandlers> kHandlers = {&CheckedHandler<indices>...};
  return kHandlers.at(index);
}

}  // namespace

extern "C" {

XLA_FFI_Handler* FindHandler(const char* name) {
  for (size_t i = 0; i < Handlers().size(); ++i) {
    if (std::strcmp(Handlers()[i].name, name) != 0) continue;
    return CheckedHandlerAt(i, std::make_index_sequence<kMaxHandlers>());
  }
  return nullptr;
}

// The handler of the initialize stage as one of the execute stage, because XLA for CPUs executes no other stage.
XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  frame->stage = XLA_FFI_ExecutionStage_INITIALIZE;
  return dcn::InitializeHandler()(frame);
}

uint64_t* FindInterpreterOption(const char* name) { return ptx::FindOption(name); }

// The text is valid until the next call.
const char* TakeInterpreterRecords() {
  static std::string records;
  records = ptx::TakeRecords();
  return records.c_str();
}

}  // extern "C"
