// What remains of a deformable aggregation once the corners of its samples and their weights are known: a loop that
// multiplies and adds pixels. A row is a query and a head.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));

// `index`: of each corner's first channel in `pixels`.
void SumRow(const float* pixels, int64_t corners, const int32_t* index, const float* weight, float* out) {
  Lanes low = {}, high = {};
  for (int64_t i = 0; i < corners; ++i) {
    const Lanes* const pixel = reinterpret_cast<const Lanes*>(pixels + index[i]);
    low += weight[i] * pixel[0];
    high += weight[i] * pixel[1];
  }
  reinterpret_cast<Lanes*>(out)[0] = low;
  reinterpret_cast<Lanes*>(out)[1] = high;
}

}  // namespace

// Rows have 2 · kLanes channels.
extern "C" void SumRows(const float* pixels, int64_t rows, int64_t corners, const int32_t* index, const float* weight,
                        float* out, int64_t num_threads) {
  constexpr int64_t kRange = 256;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t begin; (begin = next.fetch_add(kRange)) < rows;) {
      for (int64_t row = begin; row < std::min(begin + kRange, rows); ++row) {
        SumRow(pixels, corners, index + row * corners, weight + row * corners, out + row * 2 * kLanes);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(run);
  run();
  for (auto& thread : threads) thread.join();
}
