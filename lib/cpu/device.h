// The CPU as a Device: a loop that runs in parallel on XLA's intra-op threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace dcn {

struct Device {
  using Binding = xla::ffi::ThreadPool;
  using Context = xla::ffi::ThreadPool;

  explicit Device(Context pool) : pool(pool) {}

  int64_t threads() const { return pool.num_threads(); }

  // Calls body(i) once for every i in [0, n), and throws what the last of them threw. The caller works too, so a busy
  // pool cannot make it wait for ever.
  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    struct Progress {
      std::atomic<int64_t> next{0}, done{0};
      std::mutex mutex;
      std::exception_ptr failure;
      std::condition_variable finished;
    };
    const auto progress = std::make_shared<Progress>();
    // A helper that starts after the last index is taken touches `progress` alone, never `body`.
    const auto work = [progress, n, body = &body] {
      for (int64_t i; (i = progress->next.fetch_add(1)) < n;) {
        try {
          (*body)(i);
        } catch (...) {  // which no thread of XLA's would
          std::lock_guard<std::mutex> lock(progress->mutex);
          progress->failure = std::current_exception();
        }
        if (progress->done.fetch_add(1) + 1 == n) {
          std::lock_guard<std::mutex> lock(progress->mutex);
          progress->finished.notify_one();
        }
      }
    };
    const int64_t helpers = std::min(n, threads()) - 1;
    try {
      for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(work));
    } catch (const std::bad_alloc&) {  // the caller does without
    }
    work();
    std::unique_lock<std::mutex> lock(progress->mutex);
    progress->finished.wait(lock, [&] { return progress->done.load() >= n; });
    if (progress->failure) std::rethrow_exception(progress->failure);
  }

  Context pool;
};

}  // namespace dcn
