// The Device of the CPU backend: it runs loops in parallel on XLA's intra-op thread pool.
#pragma once

#include <cstdint>

struct XLA_FFI_Api;
struct XLA_FFI_ExecutionContext;

namespace dcn {

struct Device {
  // What gives a call access to XLA's thread pool.
  struct Context {
    const XLA_FFI_Api* api;
    XLA_FFI_ExecutionContext* context;
  };

  // XLA's products for CPUs have float32 results, which would have to be converted.
  static constexpr bool kRoundsColumnCotangents = false;

  explicit Device(const Context& context) : context_(context) {}

  int64_t threads() const;

  // Calls body(i) once for each i in [0, n). If some calls throw, rethrows the last exception. The calling thread also
  // runs iterations, so that the loop finishes even if the pool never gets to the helper tasks.
  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    Run(n, &body, [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); });
  }

 private:
  void Run(int64_t n, const void* body, void (*call)(const void* body, int64_t i));

  Context context_;
};

}  // namespace dcn
