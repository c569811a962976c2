// The library of the FFI handlers whose kernels run on the interpreter. A call's operands and results, which are
// buffers of XLA on the CPU, become the interpreter's allocations during the call: operands may only be read, and
// results have not been written.
#include <mutex>
#include <string>
#include <vector>

#include "checked_handlers.h"
#include "memory.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace {

std::mutex mutex;  // XLA may run independent calls at the same time

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
      Add(result, false);
    }
    for (int64_t i = 0; i < frame.args.size; ++i) Add(*static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]), true);
  }
  ~CallMemory() {
    for (const void* base : added_) ptx::RemoveAllocation(base);
  }
  CallMemory(const CallMemory&) = delete;

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
};

XLA_FFI_Error* Call(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  const std::lock_guard<std::mutex> lock(mutex);
  const CallMemory memory(*frame);
  return handler(frame);
}

}  // namespace

const checked_handlers::StandIn checked_handlers::stand_in = {Call, ptx::NumNodes};

extern "C" {

bool SetInterpreterOption(const char* name, uint64_t value) { return ptx::SetOption(name, value); }

// The text is valid until the next call.
const char* TakeInterpreterRecords() {
  static std::string records;
  records = ptx::TakeRecords();
  return records.c_str();
}

}  // extern "C"
