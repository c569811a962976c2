#include "device.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace dcn {

int64_t Device::threads() const { return std::max<int64_t>(pool->num_threads(), 1); }

void Device::Run(int64_t n, const void* body, void (*call)(const void*, int64_t)) {
  struct LoopState {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::exception_ptr failure;
    std::condition_variable finished;
  };
  const auto state = std::make_shared<LoopState>();
  // A helper task may start after this function has returned. It then finds no index left, so it never accesses `body`,
  // which is on the caller's stack; it shares ownership of `state`.
  const auto run_iterations = [state, n, body, call] {
    for (int64_t i; (i = state->next.fetch_add(1)) < n;) {
      try {
        call(body, i);
      } catch (...) {  // XLA's threads do not catch exceptions
        std::lock_guard<std::mutex> lock(state->mutex);
        state->failure = std::current_exception();
      }
      if (state->done.fetch_add(1) + 1 == n) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->finished.notify_one();
      }
    }
  };
  const int64_t num_helpers = std::min(n, threads()) - 1;
  try {
    for (int64_t i = 0; i < num_helpers; ++i) pool->Schedule(std::function<void()>(run_iterations));
  } catch (const std::bad_alloc&) {  // the caller runs what the missing helpers would have run
  }
  run_iterations();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->finished.wait(lock, [&] { return state->done.load() >= n; });
  if (state->failure) std::rethrow_exception(state->failure);
}

}  // namespace dcn
