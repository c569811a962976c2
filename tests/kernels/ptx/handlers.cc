// The library of the FFI handlers whose kernels run on the machine. A call's operands and results, which are buffers of
// XLA on the CPU, become the machine's allocations during the call: operands may only be read, and results have not
// been written.
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ffi/handlers.h"
#include "memory.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace {

constexpr size_t kMaxHandlers = 64;

std::mutex mutex;  // XLA may run independent calls at the same time
std::array<XLA_FFI_Handler*, kMaxHandlers> handlers;

size_t Bytes(const XLA_FFI_Buffer& buffer) {
  size_t bytes = xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(buffer.dtype));
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= size_t(buffer.dims[i]);
  return bytes;
}

// The buffers of a call as allocations, while it lives.
class CallMemory {
 public:
  explicit CallMemory(const XLA_FFI_CallFrame& frame) {
    for (int64_t i = 0; i < frame.rets.size; ++i) {
      const auto& result = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]);
      has_results_ |= Bytes(result) > 0;
      Add(result, false);
    }
    for (int64_t i = 0; i < frame.args.size; ++i) Add(*static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]), true);
  }
  ~CallMemory() {
    for (const void* base : added_) ptx::RemoveAllocation(base);
  }
  CallMemory(const CallMemory&) = delete;

  bool has_results() const { return has_results_; }

 private:
  void Add(const XLA_FFI_Buffer& buffer, bool is_operand) {
    const size_t bytes = Bytes(buffer);
    if (bytes == 0) return;
    if (ptx::FindAllocation(reinterpret_cast<uint64_t>(buffer.data))) {
      // An operand that is passed twice, or whose memory is also a result's, which then has been written.
      if (is_operand) ptx::RecordHostWrite(buffer.data, bytes, true);
      return;
    }
    ptx::AddAllocation(buffer.data, bytes, is_operand, ptx::ChecksRaces());
    added_.push_back(buffer.data);
  }

  std::vector<const void*> added_;
  bool has_results_ = false;
};

XLA_FFI_Error* Call(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;
  if (extension && extension->type == XLA_FFI_Extension_Metadata) return handler(frame);
  const std::lock_guard<std::mutex> lock(mutex);
  const CallMemory memory(*frame);
  const uint64_t nodes = ptx::NumNodes();
  XLA_FFI_Error* error = handler(frame);
  if (error || !memory.has_results() || ptx::NumNodes() > nodes) return error;
  // As a part of a CUDA graph, which XLA captures, this would be an error.
  const char* message = "the handler put nothing on the stream, although a result is not empty";
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                    XLA_FFI_Error_Code_INTERNAL};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// XLA's handlers have no state, so that each has a function of its own.
template <size_t index>
XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame) {
  return Call(handlers[index], frame);
}

template <size_t... indices>
constexpr std::array<XLA_FFI_Handler*, sizeof...(indices)> Callers(std::index_sequence<indices...>) {
  return {CallHandler<indices>...};
}

}  // namespace

extern "C" {

XLA_FFI_Handler* FindHandler(const char* name) {
  static constexpr auto callers = Callers(std::make_index_sequence<kMaxHandlers>());
  size_t index = 0;
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      if (index == kMaxHandlers) return nullptr;
      handlers[index] = handler.call;
      if (std::strcmp(handler.name, name) == 0) return callers[index];
      ++index;
    }
  }
  return nullptr;
}

bool SetMachineOption(const char* name, uint64_t value) { return ptx::SetOption(name, value); }

// The text is valid until the next call.
const char* TakeMachineRecords() {
  static std::string records;
  records = ptx::TakeRecords();
  return records.c_str();
}

}  // extern "C"
