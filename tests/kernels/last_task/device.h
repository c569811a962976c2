// A Device for the CPU kernels that runs only the last task of each loop.
#pragma once

#include <cstdint>

namespace dcn {

struct Device {
  static constexpr bool kRoundsColumnCotangents = false;

  explicit Device(void*) {}

  int64_t threads() const { return 2; }

  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    if (n > 0) body(n - 1);
  }

  template <typename Make, typename Body>
  void ParallelFor(int64_t n, const Make& make, const Body& body) {
    auto state = make();
    if (n > 0) body(state, n - 1);
  }
};

}  // namespace dcn
