// The fuzz target, for libFuzzer and replay.cc: decodes one call of a handler from bytes and makes it under a
// sanitizer. For any bytes, the handler must return an error, or succeed and write all its results. It is linked with
// the kernels of the CPU, with those of CUDA in the PTX interpreter, or with contract.cc, which allows any size because
// it needs no memory.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include "call.h"
#include "contract.h"
#include "cpu/element.h"
#include "ffi/handlers.h"
#include "xla/ffi/api/ffi.h"
#ifdef DCN_EXECUTES_PTX
#include "ptx/call.h"
#endif

struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};

namespace fuzz {

Contract* contract = nullptr;

namespace {

[[noreturn]] void Fail(const Call& call, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", call.handler.c_str(), why.c_str());
  std::abort();
}

// The number of allocations before one fails; negative if none fails. Allocations of this file are not counted.
std::atomic<int64_t> allocations_left{-1};
thread_local bool is_uncounted = false;  // while allocations are not counted

struct Uncounted {
  bool previous = std::exchange(is_uncounted, true);
  ~Uncounted() { is_uncounted = previous; }
};

// The part of XLA's FFI API that the handlers call.
std::vector<std::thread> threads;
std::vector<std::pair<XLA_FFI_Task*, void*>> deferred_tasks;
enum class Schedule { kImmediate, kDeferred, kThreads } schedule;

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  const Uncounted uncounted;
  return new XLA_FFI_Error{args->message, args->errc};
}
#if XLA_FFI_API_MINOR < 4  // before jaxlib 0.11
void GetMessage(XLA_FFI_Error_GetMessage_Args* args) { args->message = args->error->message.c_str(); }
#else
void GetDetails(XLA_FFI_Error_GetDetails_Args* args) {
  args->message = args->error->message.c_str();
  args->errc = args->error->code;
}
#endif
void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
XLA_FFI_Error* NumThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 3;
  return nullptr;
}
XLA_FFI_Error* ScheduleTask(XLA_FFI_ThreadPool_Schedule_Args* args) {
  const Uncounted uncounted;
  if (schedule == Schedule::kImmediate) args->task(args->data);
  if (schedule == Schedule::kDeferred) deferred_tasks.emplace_back(args->task, args->data);
  if (schedule == Schedule::kThreads) threads.emplace_back(args->task, args->data);
  return nullptr;
}
void FinishTasks() {
  for (const auto& [task, data] : std::exchange(deferred_tasks, {})) task(data);
  for (std::thread& thread : std::exchange(threads, {})) thread.join();
}

XLA_FFI_Api MakeApi() {
  XLA_FFI_Api api = {};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = CreateError;
#if XLA_FFI_API_MINOR < 4
  api.XLA_FFI_Error_GetMessage = GetMessage;
#else
  api.XLA_FFI_Error_GetDetails = GetDetails;
#endif
  api.XLA_FFI_Error_Destroy = DestroyError;
  api.XLA_FFI_ThreadPool_Schedule = ScheduleTask;
  api.XLA_FFI_ThreadPool_NumThreads = NumThreads;
  return api;
}

// Larger calls are skipped, except on contract.cc: they would take too much memory or time.
constexpr int64_t kMaxElements = 1 << 14;         // per buffer
constexpr int64_t kMaxScratchElements = 1 << 16;  // per workspace
constexpr int64_t kMaxPoints = 1 << 8;            // per bin and axis

size_t SizeOf(XLA_FFI_DataType type) { return xla::ffi::ByteWidth(xla::ffi::DataType(type)); }

// The bytes of an unwritten element: a NaN with a payload that no arithmetic produces.
std::string Unwritten(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F16:
      return "\xa5\xfd";
    case XLA_FFI_DataType_BF16:
      return "\xa5\xff";
    case XLA_FFI_DataType_F32:
      return "\xa5\xa5\xa5\xff";
    case XLA_FFI_DataType_F64:
      return "\xa5\xa5\xa5\xa5\xa5\xa5\xf4\xff";
    default:
      return std::string(SizeOf(type), '\xa5');
  }
}

// The element count of a shape; -1 if it is impossible.
int64_t Count(const std::vector<int64_t>& dims) {
  int64_t count = 1, nonzero_count = 1;  // nonzero_count: without the dimensions of 0
  for (const int64_t size : dims) {
    if (size < 0 || __builtin_mul_overflow(nonzero_count, std::max<int64_t>(size, 1), &nonzero_count)) return -1;
    count = size == 0 ? 0 : count;
  }
  return nonzero_count > int64_t{1} << 47 ? -1 : count ? nonzero_count : 0;
}

class NumberGenerator {
 public:
  explicit NumberGenerator(unsigned seed) : generator_(seed) {}

  double Next() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static const double kSpecial[] = {0.,    -0.,  1e-310,  1e-42,   -1e-42,    6e-8,       0.5,         2.5,
                                      -0.5,  -1,   -1.5,    9,       1 << 24,   16777217,   2147483648., -2147483649.,
                                      65504, 1e38, -3.4e38, 1.7e308, kInfinity, -kInfinity, std::nan("")};
    if (generator_() % 8 == 0) return kSpecial[generator_() % (sizeof kSpecial / sizeof *kSpecial)];
    return double(generator_() % 65) / 4 - 4;
  }

  void Fill(const Buffer& buffer, char* data, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (buffer.role == Role::kOrigin && buffer.dtype == XLA_FFI_DataType_S32) {
        static const int32_t kOrigins[] = {0, 0, 1, 2, -1, INT32_MAX, INT32_MIN};
        Put(data, i, kOrigins[generator_() % 7]);
      } else if (buffer.role == Role::kRois && i % 5 == 0 && generator_() % 4) {
        PutNumber(buffer.dtype, data, i, double(generator_() % 2));
      } else {
        PutNumber(buffer.dtype, data, i, Next());
      }
    }
  }

 private:
  template <typename T>
  static void Put(char* data, int64_t i, T value) {
    std::memcpy(data + i * sizeof value, &value, sizeof value);
  }
  static void PutNumber(XLA_FFI_DataType type, char* data, int64_t i, double value) {
    switch (type) {
      case XLA_FFI_DataType_F16:
        return Put(data, i, dcn::F16(float(value)));
      case XLA_FFI_DataType_BF16:
        return Put(data, i, dcn::BF16(float(value)));
      case XLA_FFI_DataType_F32:
        return Put(data, i, float(value));
      case XLA_FFI_DataType_F64:
        return Put(data, i, value);
      default:
        std::memset(data + i * SizeOf(type), 1, SizeOf(type));
    }
  }

  std::minstd_rand generator_;
};

// The XLA_FFI_CallFrame of a call. Each buffer is a separate allocation of exactly its size.
class Frame {
 public:
  Frame(const Call& call, unsigned seed) : call_(call), numbers_(seed) {
    for (const Buffer& buffer : call.arguments) AddBuffer(buffer);
    for (const Buffer& buffer : call.results) AddBuffer(buffer);
    for (const auto& [name, attribute] : call.attributes) AddAttribute(name, attribute);
    for (XLA_FFI_Buffer& buffer : buffers_) pointers_.push_back(&buffer);
    argument_types_.assign(call.arguments.size(), XLA_FFI_ArgType_BUFFER);
    result_types_.assign(call.results.size(), XLA_FFI_RetType_BUFFER);
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
  }

  // Whether the call is small enough to be made here. Shapes that are impossible anywhere are left to the handler,
  // which must reject them.
  bool is_runnable() const { return is_runnable_; }
  bool is_valid() const { return call_.is_valid && !has_impossible_shape_; }

  XLA_FFI_Error* Run(XLA_FFI_Handler* handler) {
    const XLA_FFI_Api api = MakeApi();
    XLA_FFI_CallFrame frame = {};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, int64_t(argument_types_.size()), argument_types_.data(),
                  pointers_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, int64_t(result_types_.size()), result_types_.data(),
                  pointers_.data() + argument_types_.size()};
    frame.attrs = {
        XLA_FFI_Attrs_STRUCT_SIZE, nullptr,           int64_t(attribute_types_.size()), attribute_types_.data(),
        name_pointers_.data(),     attributes_.data()};
#ifdef DCN_EXECUTES_PTX
    if (!has_impossible_shape_) return ptx::Call(handler, &frame);
#endif
    return handler(&frame);
  }

  void CheckSuccess() const {
    if (has_impossible_shape_) Fail(call_, "takes shapes that no memory has");
    if (contract) return;
    for (size_t b = 0; b < call_.results.size(); ++b) {
      const size_t size = SizeOf(call_.results[b].dtype);
      if (call_.results[b].role != Role::kResult) continue;
      const std::string unwritten = Unwritten(call_.results[b].dtype);
      const std::unique_ptr<char[]>& memory = memory_[call_.arguments.size() + b];
      for (int64_t i = 0; i < Count(call_.results[b].dims); ++i) {
        if (std::memcmp(&memory[i * size], unwritten.data(), size) != 0) continue;
        Fail(call_, "does not write element " + std::to_string(i) + " of result " + std::to_string(b));
      }
    }
  }

 private:
  void AddBuffer(const Buffer& buffer) {
    const int64_t count = Count(buffer.dims), bytes = count * int64_t(SizeOf(buffer.dtype));
    has_impossible_shape_ |= count < 0;
    is_runnable_ &= contract || count <= (buffer.role == Role::kScratch ? kMaxScratchElements : kMaxElements);
    memory_.emplace_back();
    dims_.push_back(buffer.dims);
    char* data = nullptr;
    const int place = buffer.role == Role::kInPlace ? buffer.place : 0;
    if (contract) {
      data = contract->Address(memory_.size(), place, bytes);
    } else if (place && in_place_.count(place)) {
      data = in_place_[place];
    } else if (count >= 0 && is_runnable_) {  // an empty buffer has an address too
      memory_.back().reset(new char[bytes]);
      data = memory_.back().get();
      const std::string unwritten = Unwritten(buffer.dtype);
      for (int64_t i = 0; i < count; ++i) std::memcpy(data + i * unwritten.size(), unwritten.data(), unwritten.size());
      if (memory_.size() <= call_.arguments.size()) numbers_.Fill(buffer, data, count);
      if (place) in_place_[place] = data;
    }
    buffers_.push_back(
        {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, buffer.dtype, data, int64_t(buffer.dims.size()), dims_.back().data()});
  }

  void AddAttribute(const std::string& name, const Attribute& attribute) {
    static XLA_FFI_Attrs empty_dictionary = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 0, nullptr, nullptr, nullptr};
    names_.push_back({name.data(), name.size()});
    attribute_types_.push_back(attribute.type);
    char* bytes = const_cast<char*>(attribute.bytes.data());
    void* value = &empty_dictionary;
    if (attribute.type == XLA_FFI_AttrType_ARRAY) {
      const size_t count = attribute.bytes.size() / std::max<size_t>(1, SizeOf(attribute.dtype));
      arrays_.push_back(std::make_unique<XLA_FFI_Array>(XLA_FFI_Array{attribute.dtype, count, bytes}));
      value = arrays_.back().get();
    } else if (attribute.type == XLA_FFI_AttrType_SCALAR) {
      scalars_.push_back(std::make_unique<XLA_FFI_Scalar>(XLA_FFI_Scalar{attribute.dtype, bytes}));
      value = scalars_.back().get();
    } else if (attribute.type == XLA_FFI_AttrType_STRING) {
      strings_.push_back(std::make_unique<XLA_FFI_ByteSpan>(XLA_FFI_ByteSpan{bytes, attribute.bytes.size()}));
      value = strings_.back().get();
    }
    attributes_.push_back(value);
    if (name == "points" && attribute.bytes.size() >= sizeof(int64_t[2])) {  // many points only take long
      int64_t points[2];
      std::memcpy(points, bytes, sizeof points);
      is_runnable_ &= contract || std::max(points[0], points[1]) <= kMaxPoints;
    }
  }

  const Call& call_;
  NumberGenerator numbers_;
  bool is_runnable_ = true, has_impossible_shape_ = false;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<XLA_FFI_Buffer> buffers_;
  std::vector<XLA_FFI_ArgType> argument_types_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<XLA_FFI_AttrType> attribute_types_;
  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<void*> pointers_, attributes_;
  std::vector<std::unique_ptr<XLA_FFI_Array>> arrays_;
  std::vector<std::unique_ptr<XLA_FFI_Scalar>> scalars_;
  std::vector<std::unique_ptr<XLA_FFI_ByteSpan>> strings_;
  std::map<int, char*> in_place_;  // by place
};

XLA_FFI_Handler* Find(const std::string& name) {
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      if (handler.name == name) return handler.call;
    }
  }
  return nullptr;
}

}  // namespace
}  // namespace fuzz

// Some libraries call the operators below and others AddressSanitizer's, so new and delete may not match.
extern "C" const char* __asan_default_options() { return "alloc_dealloc_mismatch=0"; }

void* operator new(size_t size) { return operator new(size, std::align_val_t(alignof(std::max_align_t))); }
void* operator new(size_t size, std::align_val_t alignment) {
  if (!fuzz::is_uncounted && fuzz::allocations_left >= 0 && fuzz::allocations_left-- == 0) throw std::bad_alloc();
  void* memory;
  if (posix_memalign(&memory, size_t(alignment), size) == 0) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuzz;
  static const bool is_cpu = !Find("dcn_sort_samples");
  Bytes bytes(data, size);
  const Call call = ReadCall(bytes, is_cpu);
  XLA_FFI_Handler* handler = Find(call.handler);
  schedule = Schedule(bytes.Below(3));
  const int64_t failing_allocation = int64_t{bytes.Next()} - 192;  // mostly negative: none fails
  Frame frame(call, bytes.Next());
  if (!handler || !frame.is_runnable()) return 0;
  // Only valid calls: if XLA cannot allocate its own message about an invalid attribute, it ends the process.
  const bool has_failing_allocation = (is_cpu || contract) && frame.is_valid() && failing_allocation >= 0;
  allocations_left = has_failing_allocation ? failing_allocation : -1;
  const std::unique_ptr<XLA_FFI_Error> error(frame.Run(handler));
  allocations_left = -1;
  FinishTasks();
  if (!error) {
    frame.CheckSuccess();
  } else if (error->message.empty()) {
    Fail(call, "gives no reason");
  } else if (error->code != XLA_FFI_Error_Code_INVALID_ARGUMENT &&
             !(has_failing_allocation && error->code == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED)) {
    Fail(call, "fails: " + error->message);
  } else if (frame.is_valid() && !has_failing_allocation) {
    Fail(call, "refuses what is right: " + error->message);
  }
  return 0;
}
