// The Device of the CPU backend: it runs loops in parallel on XLA's intra-op thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xla::ffi {
class ThreadPool;
}

namespace dcn {

struct Device {
  using Binding = xla::ffi::ThreadPool;
  using Context = xla::ffi::ThreadPool;

  // XLA's products for CPUs have float32 results, which would have to be converted.
  static constexpr bool kRoundsColumnCotangents = false;
  static constexpr bool kSorts = false;

  explicit Device(Context& pool) : pool(&pool) {}

  int64_t threads() const;  // at least one

  // Calls body(i) once for each i in [0, n). If some calls throw, rethrows the last exception. The calling thread also
  // runs iterations, so that the loop finishes even if the pool never gets to the helper tasks.
  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    Run(n, &body, [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); });
  }

  // The same with body(state, i), where `state` is what make() returns. Each thread makes it once, before it takes an
  // iteration, so that it allocates memory only once. Iterations are taken in order, so a body may wait for earlier
  // ones; then it must not throw, because the iterations that its thread would have taken may be skipped.
  template <typename Make, typename Body>
  void ParallelFor(int64_t n, const Make& make, const Body& body) {
    std::atomic<int64_t> next{0};
    ParallelFor(std::min(n, threads()), [&](int64_t) {
      if (next.load() >= n) return;  // other threads have taken all iterations
      auto state = make();
      for (int64_t i; (i = next.fetch_add(1)) < n;) body(state, i);
    });
  }

  Context* pool;  // outlives the Device

 private:
  void Run(int64_t n, const void* body, void (*call)(const void* body, int64_t i));
};

}  // namespace dcn
