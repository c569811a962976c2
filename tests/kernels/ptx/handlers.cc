// The library of the FFI handlers whose kernels run on the interpreter. Python looks them up by name.
#include "ffi/handlers.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "call.h"

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

// XLA's handlers have no state, so each has a function of its own.
template <size_t index>
XLA_FFI_Error* HandlerAt(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start) return Handlers()[index].call(frame);  // a metadata query
  return ptx::Call(Handlers()[index].call, frame);
}

constexpr size_t kMaxHandlers = 32;

template <size_t... indices>
XLA_FFI_Handler* FindHandlerAt(size_t index, std::index_sequence<indices...>) {
  static constexpr std::array<XLA_FFI_Handler*, kMaxHandlers> kHandlers = {&HandlerAt<indices>...};
  return kHandlers.at(index);
}

}  // namespace

extern "C" {

XLA_FFI_Handler* FindHandler(const char* name) {
  for (size_t i = 0; i < Handlers().size(); ++i) {
    if (std::strcmp(Handlers()[i].name, name) != 0) continue;
    return FindHandlerAt(i, std::make_index_sequence<kMaxHandlers>());
  }
  return nullptr;
}

// The handler of the initialize stage as one of the execute stage, because XLA for CPUs executes no other stage.
XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  frame->stage = XLA_FFI_ExecutionStage_INITIALIZE;
  return dcn::InitializeHandler()(frame);
}

uint64_t* FindInterpreterOption(const char* name) { return ptx::FindOption(name); }

}  // extern "C"
