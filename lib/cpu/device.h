// The Device of the CPU backend: it runs loops in parallel on XLA's intra-op thread pool.
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

  // XLA's products for CPUs have float32 results, which would have to be converted.
  static constexpr bool kRoundsColumnCotangents = false;

  explicit Device(Context pool) : pool(pool) {}

  int64_t threads() const { return pool.num_threads(); }

  // Calls body(i) once for each i in [0, n). If some calls throw, rethrows the last exception. The calling thread also
  // runs iterations, so that the loop finishes even if the pool never gets to the helper tasks.
  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    struct Progress {
      std::atomic<int64_t> next{0}, done{0};
      std::mutex mutex;
      std::exception_ptr failure;
      std::condition_variable finished;
    };
    const auto progress = std::make_shared<Progress>();
    // A helper task may start after this function has returned. It then finds no index left, so it never accesses
    // `body`, which is on the caller's stack; it shares ownership of `progress`.
    const auto run_iterations = [progress, n, body = &body] {
      for (int64_t i; (i = progress->next.fetch_add(1)) < n;) {
        try {
          (*body)(i);
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
      for (int64_t i = 0; i < num_helpers; ++i) pool.Schedule(std::function<void()>(run_iterations));
    } catch (const std::bad_alloc&) {  // the caller runs what the missing helpers would have run
    }
    run_iterations();
    std::unique_lock<std::mutex> lock(progress->mutex);
    progress->finished.wait(lock, [&] { return progress->done.load() >= n; });
    if (progress->failure) std::rethrow_exception(progress->failure);
  }

  Context pool;
};

}  // namespace dcn
