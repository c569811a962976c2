// The Device of the CPU backend: it runs loops in parallel on XLA's intra-op thread pool.
#pragma once

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

  explicit Device(Context& pool) : pool(&pool) {}

  int64_t threads() const;

  // Calls body(i) once for each i in [0, n). If some calls throw, rethrows the last exception. The calling thread also
  // runs iterations, so that the loop finishes even if the pool never gets to the helper tasks.
  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    Run(n, &body, [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); });
  }

  Context* pool;  // outlives the Device

 private:
  void Run(int64_t n, const void* body, void (*call)(const void* body, int64_t i));
};

}  // namespace dcn
