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
  struct Progress {
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::exception_ptr failure;
    std::condition_variable finished;
  };
  const auto progress = std::make_shared<Progress>();
  // A helper task may start after this function has returned. It then finds no index left, so it never accesses `body`,
  // which is on the caller's stack; it shares ownership of `progress`.
  const auto run_iterations = [progress, n, body, call] {
    for (int64_t i; (i = progress->next.fetch_add(1)) < n;) {
      try {
        call(body, i);
      } catch (...) {  // XLA's threads do not catch exceptions
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->failure = std::current_exception();
      }
      if (progress->done.fetch_add(1) + 1 == n) {
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->finished.notify_one();
      }
    }
  };
  const int64_t num_helpers = std::min(n, threads()) - 1;
  try {
    for (int64_t i = 0; i < num_helpers; ++i) pool->Schedule(std::function<void()>(run_iterations));
  } catch (const std::bad_alloc&) {  // the caller runs what the missing helpers would have run
  }
  run_iterations();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->finished.wait(lock, [&] { return progress->done.load() >= n; });
  if (progress->failure) std::rethrow_exception(progress->failure);
}

}  // namespace dcn
