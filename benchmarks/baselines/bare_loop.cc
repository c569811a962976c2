// What remains of a deformable aggregation once the corners of its samples and their weights are known: a loop that
// multiplies and adds pixels. A row is a query and a head.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// Lanes of a vector: of one that is wider than the processor's, GCC makes many times as many instructions.
#ifdef __AVX512F__
constexpr int kWide = 16;
#else
constexpr int kWide = 8;
#endif

// `index`: of each corner's first channel in `pixels`.
template <int kChannels>
void SumRow(const float* pixels, int64_t corners, const int32_t* index, const float* weight, float* out) {
  constexpr int kLanes = kChannels % kWide ? 1 : kWide, kVectors = kChannels / kLanes;
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
  Lanes sum[kVectors] = {};
  for (int64_t i = 0; i < corners; ++i) {
    const Lanes* const pixel = reinterpret_cast<const Lanes*>(pixels + index[i]);
    for (int v = 0; v < kVectors; ++v) sum[v] += weight[i] * pixel[v];
  }
  for (int v = 0; v < kVectors; ++v) reinterpret_cast<Lanes*>(out)[v] = sum[v];
}

using Sum = decltype(&SumRow<1>);
Sum SumOf(int64_t channels) {
  return channels == 1 ? SumRow<1> : channels == 3 ? SumRow<3> : channels == 32 ? SumRow<32> : SumRow<64>;
}

}  // namespace

// Rows have 1, 3, 32 or 64 channels.
extern "C" void SumRows(const float* pixels, int64_t channels, int64_t rows, int64_t corners, const int32_t* index,
                        const float* weight, float* out, int64_t num_threads) {
  const Sum sum = SumOf(channels);
  constexpr int64_t kRange = 256;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t begin; (begin = next.fetch_add(kRange)) < rows;) {
      for (int64_t row = begin; row < std::min(begin + kRange, rows); ++row) {
        sum(pixels, corners, index + row * corners, weight + row * corners, out + row * channels);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(run);
  run();
  for (auto& thread : threads) thread.join();
}
