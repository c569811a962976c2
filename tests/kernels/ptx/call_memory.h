// The buffers of an FFI call as the interpreter's memory.
#pragma once

#include <vector>

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
    AddAllocation(buffer.data, bytes, is_operand, ChecksRaces());
    added_.push_back(buffer.data);
  }

  std::vector<const void*> added_;
};

}  // namespace ptx
