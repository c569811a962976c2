// Calls of FFI handlers whose kernels run on the interpreter.
#pragma once

#include <mutex>
#include <vector>

#include "ffi/handler_wrapper.h"
#include "memory.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace ptx {

// While it lives, the buffers of a call are allocations. Operands may only be read, and results have not been written.
class CallMemory {
 public:
  explicit CallMemory(const XLA_FFI_CallFrame& frame) {
    for (int64_t i = 0; i < frame.rets.size; ++i) Add(*static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i]), false);
    for (int64_t i = 0; i < frame.args.size; ++i) Add(*static_cast<XLA_FFI_Buffer*>(frame.args.args[i]), true);
  }
  ~CallMemory() {
    for (const void* base : added_) RemoveAllocation(base);
  }
  CallMemory(const CallMemory&) = delete;

 private:
  void Add(const XLA_FFI_Buffer& buffer, bool is_operand) {
    size_t bytes = xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(buffer.dtype));
    for (int64_t i = 0; i < buffer.rank; ++i) bytes *= size_t(buffer.dims[i]);
    if (bytes == 0) return;
    if (FindAllocation(reinterpret_cast<uint64_t>(buffer.data))) {
      // An operand that is passed twice, or whose memory is also a result's, which then has been written.
      if (is_operand) RecordHostWrite(buffer.data, bytes, true);
      return;
    }
    AddAllocation(buffer.data, bytes, is_operand);
    added_.push_back(buffer.data);
  }

  std::vector<const void*> added_;
};

// Calls a handler, which must put a node on the stream, also where all results are empty: XLA may capture the call into
// a CUDA graph of its own, and rejects an empty graph.
inline XLA_FFI_Error* Call(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  static std::mutex mutex;  // XLA may run independent calls at the same time
  const std::lock_guard<std::mutex> lock(mutex);
  const CallMemory memory(*frame);
  const int64_t nodes_before = NumNodes();
  XLA_FFI_Error* error = handler(frame);
  if (error || NumNodes() > nodes_before) return error;
  return dcn::MakeError(frame, XLA_FFI_Error_Code_INTERNAL, "the call enqueued nothing");
}

}  // namespace ptx
