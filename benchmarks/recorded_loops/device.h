// A Device that runs loops in one thread, times their iterations, and schedules them as threads would take them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace xla::ffi {
class ThreadPool;
}

namespace dcn {

// What all calls did since `Recorded` was cleared. Times are in seconds.
struct Recorded {
  int64_t threads = 1;  // that calls divide their work among
  int64_t tasks = 0;
  double serial = 0;    // outside of loops
  double makespan = 0;  // of all loops, if the thread that is free first takes the next iteration
};
inline Recorded recorded;
inline std::mutex only_call;  // XLA may call handlers at the same time

struct Device {
  using Binding = xla::ffi::ThreadPool;
  using Context = xla::ffi::ThreadPool;

  static constexpr bool kRoundsColumnCotangents = false;

  explicit Device(Context&) {}
  Device(const Device&) = delete;
  ~Device() { recorded.serial += Now() - begin_ - in_loops_; }

  int64_t threads() const { return recorded.threads; }

  template <typename Body>
  void ParallelFor(int64_t n, const Body& body) {
    ParallelFor(n, [] { return 0; }, [&](int, int64_t i) { body(i); });
  }
  template <typename Make, typename Body>
  void ParallelFor(int64_t n, const Make& make, const Body& body) {
    const double begin = Now();
    auto state = make();
    double last = Now();
    std::vector<double> free_at(std::max<int64_t>(1, std::min(n, threads())), last - begin);
    for (int64_t i = 0; i < n; ++i) {
      body(state, i);
      const double end = Now();
      *std::min_element(free_at.begin(), free_at.end()) += end - last;
      last = Now();
    }
    recorded.tasks += n;
    recorded.makespan += *std::max_element(free_at.begin(), free_at.end());
    in_loops_ += Now() - begin;
  }

 private:
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::lock_guard<std::mutex> alone_{only_call};
  double begin_ = Now(), in_loops_ = 0;
};

}  // namespace dcn
