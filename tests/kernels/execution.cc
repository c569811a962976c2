// The scheduler of the emulation. It is compiled without sanitizers, because its own state is not under test, and works
// with kernels that are compiled with any of them.
#include "execution.h"

#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" {  // null if the sanitizer is not linked
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}

namespace execution {
namespace {

constexpr size_t kStack = 64 << 10;
constexpr int kPoison = 0xff;  // NaN in every floating-point type, -1 in every integer
constexpr uint64_t kUnknown = ~uint64_t{0};
constexpr size_t kMaxPendingCopies = 64;             // per thread
constexpr size_t kDefaultMaxSharedBytes = 48 << 10;  // dynamic shared memory without SetAttribute

// A fiber of ThreadSanitizer: the memory accesses of one CUDA thread and their happens-before order.
class History {
 public:
  static History Current() { return History(__tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr); }
  static History Create() { return History(__tsan_create_fiber ? __tsan_create_fiber(0) : nullptr); }

  // ThreadSanitizer has at most 8128 threads, its fibers included. In a larger grid, blocks iterate.
  static unsigned MaxBlocks(unsigned threads) {
    constexpr unsigned kMaxFibers = 6144;
    return __tsan_create_fiber && threads > 0 ? std::max(kMaxFibers / threads, 1u) : ~0u;
  }

  // Attributes the following accesses to this history, without ordering them after earlier ones.
  void Continue() const {
    if (fiber_) __tsan_switch_to_fiber(fiber_, 1);
  }
  // Accesses after an Acquire of an address are ordered after those before a Release to it.
  void Acquire(void* address) const {
    if (fiber_) As(&__tsan_acquire, address);
  }
  void Release(void* address) const {
    if (fiber_) As(&__tsan_release, address);
  }

 private:
  explicit History(void* fiber) : fiber_(fiber) {}

  void As(void (*order)(void*), void* address) const {
    const History mine = Current();
    Continue();
    order(address);
    mine.Continue();
  }

  void* fiber_;
};

// What a thread waits for: a set of threads of its block that must all reach the same line of the source.
struct Meeting {
  int first = 0;      // the index of the first thread
  unsigned mask = 0;  // lanes of its warp; 0 for the whole block
  SourceLocation location = {};
  bool orders_memory = false;

  bool operator==(const Meeting& other) const {
    return first == other.first && mask == other.mask && location.line == other.location.line &&
           std::strcmp(location.file, other.location.file) == 0;
  }
};

unsigned Volume(const dim3& size) { return size.x * size.y * size.z; }
dim3 Index(unsigned i, const dim3& size) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

struct Thread {
  enum State { kNew, kReady, kWaiting, kEnded };

  Thread(int number, dim3 index, History history) : number(number), index(index), history(history) {}

  int number;
  dim3 index;
  History history;
  State state = kNew;
  Meeting meeting;
  LaneRegisters registers = {};
  std::array<Copy, kMaxPendingCopies> pending_copies;
  size_t num_pending_copies = 0;
  void* left_at[5];  // for __builtin_longjmp
};

class Block {
 public:
  // `histories` has one for each thread.
  Block(const std::function<void()>& kernel, char* stacks, const History* histories)
      : kernel_(kernel), stacks_(stacks), scheduler_history_(History::Current()) {
    for (int i = 0; i < int(Volume(blockDim)); ++i) threads_.emplace_back(i, Index(i, blockDim), histories[i]);
    for (LaneRegisters& registers : registers_) std::fill(std::begin(registers.words), std::end(registers.words), ~0u);
  }

  Thread& current() const { return *current_; }
  // The registers of the current warp's lanes at their last barrier; valid until the next one.
  const LaneRegisters* Registers() const { return &registers_[warp()]; }
  Meeting OfWarp(unsigned mask, SourceLocation location, bool orders_memory) const {
    return {warp() + __builtin_ctz(mask), mask, location, orders_memory};
  }

  // Runs all threads to completion. Returns an empty string, or a description of the deadlock.
  std::string Run() {
    scheduler_history_.Release(this);
    for (const Thread& thread : threads_) thread.history.Acquire(this);
    do {
      for (Thread& thread : threads_) {
        if (thread.state == Thread::kNew || thread.state == Thread::kReady) Resume(thread);
      }
    } while (Meet());
    for (const Thread& thread : threads_) {
      if (thread.state == Thread::kWaiting) return Describe(thread);
    }
    return "";
  }

  // Called by a CUDA thread: suspends it until all threads of `meeting` wait.
  void Wait(const Meeting& meeting, const LaneRegisters& registers = {}) {
    current_->meeting = meeting;
    current_->registers = registers;
    Leave(Thread::kWaiting);
  }

 private:
  int warp() const { return current_->number / kWarp * kWarp; }

  void Resume(Thread& thread) {
    current_ = &thread;
    threadIdx = thread.index;
    thread.history.Continue();
    if (thread.state == Thread::kNew) {
      Start(thread);
    } else {
      Switch(scheduler_left_at_, thread.left_at);
    }
    scheduler_history_.Continue();
  }

  void Leave(Thread::State state) {
    current_->state = state;
    Switch(current_->left_at, scheduler_left_at_);
  }

  // setjmp and longjmp are much faster than swapcontext, which makes system calls.
  __attribute__((noipa)) static void Switch(void** from, void** to) {
    if (__builtin_setjmp(from) == 0) Jump(to);
  }
  __attribute__((noipa, noreturn)) static void Jump(void** to) { __builtin_longjmp(to, 1); }

  __attribute__((noipa)) void Start(Thread& thread) {
    static Block* starting;
    starting = this;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_ + thread.number * kStack;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, [] { starting->Enter(); }, 0);
    if (__builtin_setjmp(scheduler_left_at_) == 0) setcontext(&context);
  }

  void Enter() {
    kernel_();
    Leave(Thread::kEnded);
  }

  std::vector<Thread*> Members(const Meeting& meeting) {
    std::vector<Thread*> members;
    const size_t warp = meeting.first / kWarp * kWarp, end = meeting.mask ? warp + kWarp : threads_.size();
    for (size_t i = warp; i < std::min(end, threads_.size()); ++i) {
      if (!meeting.mask || meeting.mask >> (i - warp) & 1) members.push_back(&threads_[i]);
    }
    return members;
  }

  // Resumes the threads of each complete meeting, in which every member waits for the same one. Returns whether there
  // was any.
  bool Meet() {
    bool has_resumed = false;
    for (const Thread& first : threads_) {
      if (first.state != Thread::kWaiting || first.meeting.first != first.number) continue;
      const Meeting meeting = first.meeting;
      const std::vector<Thread*> members = Members(meeting);
      bool is_complete = true;
      for (const Thread* t : members) is_complete &= t->state == Thread::kWaiting && t->meeting == meeting;
      if (!is_complete) continue;
      // The address of the first member identifies its meetings for ThreadSanitizer. It can be reused, because that
      // thread has already acquired what the members of earlier meetings released.
      for (const Thread* t : members) {
        if (meeting.orders_memory) t->history.Release(members[0]);
      }
      for (Thread* t : members) {
        if (meeting.orders_memory) t->history.Acquire(members[0]);
        registers_[t->number] = t->registers;
        t->state = Thread::kReady;
      }
      has_resumed = true;
    }
    return has_resumed;
  }

  static std::string Describe(const SourceLocation& location) {
    const std::string path = location.file;
    return path.substr(path.rfind('/') + 1) + ":" + std::to_string(location.line);
  }

  std::string Describe(const Thread& waiting) {
    const std::string text =
        "thread " + std::to_string(waiting.number) + " waits at " + Describe(waiting.meeting.location) + " for thread ";
    for (const Thread* t : Members(waiting.meeting)) {
      if (t->state == Thread::kEnded) return text + std::to_string(t->number) + ", which has ended";
      if (!(t->meeting == waiting.meeting)) {
        return text + std::to_string(t->number) + ", which waits at " + Describe(t->meeting.location);
      }
    }
    return text + "none";
  }

  const std::function<void()>& kernel_;
  char* stacks_;
  History scheduler_history_;
  std::vector<Thread> threads_;
  // Static, because CUDA threads read it and no barrier orders these reads before the block's destruction.
  inline static LaneRegisters registers_[kMaxThreads];
  Thread* current_ = nullptr;
  void* scheduler_left_at_[5];
};

Block* block;
std::string failure;

// The thread-local storage of the kernels' module in this thread, which is their shared memory and nothing else.
std::pair<char*, size_t> SharedMemory() {
  std::pair<char*, size_t> shared;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* shared) {
        const auto* known = reinterpret_cast<char*>(dynamic_shared);  // an address in the segment
        auto* data = static_cast<char*>(info->dlpi_tls_data);
        for (int i = 0; data && i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_TLS || known < data || known >= data + segment.p_memsz) continue;
          *static_cast<std::pair<char*, size_t>*>(shared) = {data, segment.p_memsz};
        }
        return 0;
      },
      &shared);
  return shared;
}

// Fills the shared memory of a block with kPoison, and with AddressSanitizer forbids accesses to dynamic shared memory
// past the size of the launch.
class Poison {
 public:
  explicit Poison(size_t used)
      : end_(reinterpret_cast<char*>(dynamic_shared) + used), excess_(sizeof dynamic_shared - used) {
    const auto [shared, size] = SharedMemory();
    std::memset(shared, kPoison, size);
    if (__asan_poison_memory_region) __asan_poison_memory_region(end_, excess_);
  }
  ~Poison() {
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(end_, excess_);
  }

 private:
  char* end_;
  size_t excess_;
};

// The stacks of a block's fibers. They are at the same addresses for every block, but mapped anew, so that
// ThreadSanitizer forgets earlier accesses.
char* NewStacks() {
  static void* stacks = nullptr;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (stacks ? MAP_FIXED : 0);
  stacks = mmap(stacks, kMaxThreads * kStack, PROT_READ | PROT_WRITE, flags, -1, 0);
  return static_cast<char*>(stacks);
}

std::mutex launch_mutex;
std::map<const void*, size_t> max_dynamic_shared;
std::set<const void*> loaded_kernels;

}  // namespace

cudaError_t Load(const void* kernel) {
  if (!machine.has_memory) return cudaErrorMemoryAllocation;
  if (!machine.has_machine_code) {
    if (!machine.has_ptx) return cudaErrorNoKernelImageForDevice;
    if (machine.driver_version < kRuntimeVersion) return cudaErrorUnsupportedPtxVersion;
  }
  std::lock_guard<std::mutex> lock(launch_mutex);
  loaded_kernels.insert(kernel);
  return cudaSuccess;
}

cudaError_t SetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const bool is_carve_out = attribute == cudaFuncAttributePreferredSharedMemoryCarveout;
  if (value < 0 || size_t(value) > (is_carve_out ? 100 : max_shared_bytes)) return cudaErrorInvalidConfiguration;
  std::lock_guard<std::mutex> lock(launch_mutex);
  if (!is_carve_out) max_dynamic_shared[kernel] = size_t(value);
  return cudaSuccess;
}

cudaError_t Launch(const cudaLaunchConfig_t& config, const void* address, const std::function<void()>& kernel) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  const unsigned threads = Volume(config.blockDim), max_blocks = std::min(max_grid_blocks, History::MaxBlocks(threads));
  const dim3 grid = {std::min(config.gridDim.x, max_blocks), config.gridDim.y, config.gridDim.z};
  const unsigned blocks = Volume(grid);
  const size_t allowed = std::max(kDefaultMaxSharedBytes, max_dynamic_shared[address]);
  if (blocks == 0 || threads == 0 || threads > kMaxThreads || config.dynamicSmemBytes > allowed) {
    return cudaErrorInvalidConfiguration;
  }
  if (only_loaded_kernels && loaded_kernels.count(address) == 0) {
    failure = "the kernel was not loaded before its first launch";
    return cudaErrorLaunchFailure;
  }
  ++num_nodes;
  gridDim = grid;
  blockDim = config.blockDim;
  failure.clear();
  // One history per thread of all blocks. Creating them is expensive, so the next launch, which is ordered after this
  // one, reuses them.
  static std::vector<History> histories;
  const unsigned first = only_last_block ? blocks - 1 : 0;
  while (histories.size() < size_t{blocks - first} * threads) histories.push_back(History::Create());
  for (unsigned i = first; i < blocks && failure.empty(); ++i) {
    blockIdx = Index(i, gridDim);
    std::thread([&] {
      const Poison poison(config.dynamicSmemBytes);
      // On the heap, because ThreadSanitizer forgets the order that an address stands for when the address is freed.
      const auto running = std::make_unique<Block>(kernel, NewStacks(), &histories[(i - first) * threads]);
      block = running.get();
      failure = block->Run();
    }).join();
  }
  for (unsigned i = 0; i < (blocks - first) * threads; ++i) histories[i].Release(&histories);
  History::Current().Acquire(&histories);
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

int Lane() { return block->current().number % kWarp; }

void WaitForBlock(SourceLocation location) { block->Wait({0, 0, location, true}); }

void WaitForWarp(unsigned mask, SourceLocation location) { block->Wait(block->OfWarp(mask, location, true)); }

const LaneRegisters* AllGatherWarp(const LaneRegisters& registers, SourceLocation location) {
  block->Wait(block->OfWarp(~0u, location, false), registers);
  return block->Registers();
}

void EnqueueCopy(const Copy& copy) {
  Thread& thread = block->current();
  thread.pending_copies.at(thread.num_pending_copies++) = copy;
}

bool PopPendingCopy(Copy* copy) {
  Thread& thread = block->current();
  if (thread.num_pending_copies == 0) return false;
  *copy = thread.pending_copies[--thread.num_pending_copies];
  return true;
}

uint64_t ShuffleBits(unsigned mask, uint64_t bits, int from, SourceLocation location) {
  LaneRegisters registers = {};
  std::memcpy(registers.words, &bits, sizeof bits);
  block->Wait(block->OfWarp(mask, location, false), registers);
  if (!(mask >> from & 1)) return kUnknown;
  std::memcpy(&bits, block->Registers()[from].words, sizeof bits);
  return bits;
}

unsigned Ballot(unsigned mask, bool predicate, SourceLocation location) {
  block->Wait(block->OfWarp(mask, location, false), {{predicate}});
  unsigned ballot = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (mask >> lane & 1) ballot |= (block->Registers()[lane].words[0] & 1) << lane;
  }
  return ballot;
}

unsigned Match(unsigned mask, uint32_t value, SourceLocation location) {
  block->Wait(block->OfWarp(mask, location, false), {{value}});
  unsigned peers = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (mask >> lane & 1) peers |= unsigned{block->Registers()[lane].words[0] == value} << lane;
  }
  return peers;
}

}  // namespace execution

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : execution::failure.c_str();
}
