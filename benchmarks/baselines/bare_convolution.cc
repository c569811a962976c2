// A modulated deformable convolution of float32, 3 x 3, reduced to its three steps: locate the samples of some pixels,
// interpolate them into a buffer in the L2 cache, multiply the buffer by the weight. It knows one border rule, stride 1
// and offset groups of 8 channels only.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int kGroupChannels = 8, kTaps = 9;
// Of the product: rows, features and K in the L1 cache.
#ifdef __AVX512F__
constexpr int kRows = 14, kPanel = 32, kBlock = 256;
#else
constexpr int kRows = 6, kPanel = 16, kBlock = 256;
#endif
constexpr int kRowSize = kBlock + 16;                 // of the buffer: an odd number of cache lines
constexpr int64_t kTilePixels = 126 / kRows * kRows;

typedef float Channels __attribute__((vector_size(kGroupChannels * sizeof(float)), aligned(4)));
typedef float Lanes __attribute__((vector_size(kPanel / 2 * sizeof(float)), aligned(4)));

}  // namespace

// As in native.py. The weight is [features / kPanel, K, kPanel], where K is [offset groups, taps, channels].
struct Convolution {
  int64_t images, height, width, channels, features;
  const float *x, *offset, *mask, *weight;
  float* y;
};

namespace {

class Thread {
 public:
  explicit Thread(const Convolution& call)
      : call_(call),
        samples_(call.channels / kGroupChannels * kTaps),
        k_(samples_ * kGroupChannels),
        first_channel_(samples_),
        tap_row_(samples_),
        tap_column_(samples_),
        index_(4 * samples_),
        weight_(4 * samples_),
        buffer_((k_ + kBlock - 1) / kBlock * kTilePixels * kRowSize) {
    for (int64_t s = 0; s < samples_; ++s) {
      first_channel_[s] = s / kTaps * kGroupChannels;
      tap_row_[s] = s % kTaps / 3 - 1;
      tap_column_[s] = s % 3 - 1;
    }
  }

  void Compute(int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      Locate(pixel);
      Interpolate(pixel / (call_.height * call_.width), buffer_.data() + (pixel - begin) * kRowSize);
    }
    float* const y = call_.y + begin * call_.features;
    std::fill_n(y, (end - begin) * call_.features, 0.0f);
    for (int64_t k = 0; k < k_; k += kBlock) {
      for (int64_t feature = 0; feature < call_.features; feature += kPanel) {
        const float* const panel = call_.weight + feature * k_ + k * kPanel;
        int64_t row = 0;
        for (; row + kRows <= end - begin; row += kRows) Multiply<kRows>(row, k, panel, y + feature);
        for (; row < end - begin; ++row) Multiply<1>(row, k, panel, y + feature);
      }
    }
  }

 private:
  void Locate(int64_t pixel) {
    const float *const offset = call_.offset + pixel * samples_ * 2, *const mask = call_.mask + pixel * samples_;
    const float *const tap_row = tap_row_.data(), *const tap_column = tap_column_.data();
    const int32_t *const first_channel = first_channel_.data(), width = call_.width, channels = call_.channels;
    const float row = pixel / call_.width % call_.height, column = pixel % call_.width;
    const float last_row = call_.height - 1, last_column = call_.width - 1;
    int32_t* __restrict const index = index_.data();
    float* __restrict const weight = weight_.data();
    const int64_t samples = samples_;
#pragma GCC ivdep
    for (int64_t s = 0; s < samples; ++s) {
      const float y = row + tap_row[s] + offset[2 * s], x = column + tap_column[s] + offset[2 * s + 1];
      const float top = std::floor(y), left = std::floor(x), down = y - top, right = x - left;
      const float w_top = top >= 0 && top <= last_row ? mask[s] * (1 - down) : 0.0f;
      const float w_bottom = top >= -1 && top < last_row ? mask[s] * down : 0.0f;
      const float w_left = left >= 0 && left <= last_column ? 1 - right : 0.0f;
      const float w_right = left >= -1 && left < last_column ? right : 0.0f;
      const auto clamp = [](float position, float last) { return int32_t(std::min(std::max(position, 0.0f), last)); };
      const int32_t y0 = clamp(top, last_row) * width, y1 = clamp(top + 1, last_row) * width;
      const int32_t x0 = clamp(left, last_column), x1 = clamp(left + 1, last_column);
      index[s] = (y0 + x0) * channels + first_channel[s];
      index[samples + s] = (y0 + x1) * channels + first_channel[s];
      index[2 * samples + s] = (y1 + x0) * channels + first_channel[s];
      index[3 * samples + s] = (y1 + x1) * channels + first_channel[s];
      weight[s] = w_top * w_left;
      weight[samples + s] = w_top * w_right;
      weight[2 * samples + s] = w_bottom * w_left;
      weight[3 * samples + s] = w_bottom * w_right;
    }
  }

  void Interpolate(int64_t image, float* out) const {
    const float* const x = call_.x + image * call_.height * call_.width * call_.channels;
    for (int64_t s = 0; s < samples_; ++s) {
      Channels sum = {};
      for (int corner = 0; corner < 4; ++corner) {
        const int64_t i = corner * samples_ + s;
        sum += weight_[i] * *reinterpret_cast<const Channels*>(x + index_[i]);
      }
      const int64_t k = s * kGroupChannels;
      *reinterpret_cast<Channels*>(out + k / kBlock * kTilePixels * kRowSize + k % kBlock) = sum;
    }
  }

  // Adds the product of some rows of the buffer and a panel, over a block of K that starts at k.
  template <int kCount>
  void Multiply(int64_t row, int64_t k, const float* panel, float* y) const {
    Lanes sum[kCount][2];
    for (int r = 0; r < kCount; ++r) {
      for (int v = 0; v < 2; ++v) sum[r][v] = reinterpret_cast<Lanes*>(y + (row + r) * call_.features)[v];
    }
    const float* samples = buffer_.data() + (k / kBlock * kTilePixels + row) * kRowSize;
    const int64_t length = std::min<int64_t>(kBlock, k_ - k);
    for (int64_t i = 0; i < length; ++i, ++samples, panel += kPanel) {
      const Lanes* const features = reinterpret_cast<const Lanes*>(panel);
#pragma GCC unroll 16
      for (int r = 0; r < kCount; ++r) {
        sum[r][0] += samples[r * kRowSize] * features[0];
        sum[r][1] += samples[r * kRowSize] * features[1];
      }
    }
    for (int r = 0; r < kCount; ++r) {
      for (int v = 0; v < 2; ++v) reinterpret_cast<Lanes*>(y + (row + r) * call_.features)[v] = sum[r][v];
    }
  }

  const Convolution& call_;
  const int64_t samples_, k_;  // of a pixel
  std::vector<int32_t> first_channel_;
  std::vector<float> tap_row_, tap_column_;
  std::vector<int32_t> index_;  // [4, samples]
  std::vector<float> weight_;
  std::vector<float> buffer_;  // [blocks of K, pixels, kRowSize]
};

}  // namespace

extern "C" void Convolve(const Convolution* call, int64_t num_threads) {
  const int64_t pixels = call->images * call->height * call->width;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    Thread thread(*call);
    for (int64_t begin; (begin = next.fetch_add(kTilePixels)) < pixels;) {
      thread.Compute(begin, std::min(begin + kTilePixels, pixels));
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(run);
  run();
  for (auto& thread : threads) thread.join();
}
