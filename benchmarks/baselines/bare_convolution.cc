// A modulated deformable convolution of float32, 3 x 3, and its gradients, reduced to their steps: locate the samples
// of some pixels, interpolate them into a buffer in the L2 cache, multiply the buffer by the weight or by the cotangent
// of y, and add what each sample contributes to the gradients of x, offset and mask. They know one border rule, stride
// 1 and offset groups of 8 channels only.
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
constexpr int kRowSize = kBlock + 16;  // of the buffer: an odd number of cache lines
constexpr int64_t kTilePixels = 126 / kRows * kRows;

typedef float Channels __attribute__((vector_size(kGroupChannels * sizeof(float)), aligned(4)));
typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef float Lanes __attribute__((vector_size(kPanel / 2 * sizeof(float)), aligned(4)));

}  // namespace

// As in native.py. K is [offset groups, taps, channels]. The weight is [features / kPanel, K, kPanel], and transposed
// [K / kPanel, features, kPanel]; d_weight is [K, features].
struct Convolution {
  int64_t images, height, width, channels, features;
  const float *x, *offset, *mask, *weight;
  float* y;
  const float *transposed, *d_y;
  float *d_x, *d_offset, *d_mask, *d_weight;
};

namespace {

// A matrix of some pixels and all K, in blocks of K.
class Buffer {
 public:
  explicit Buffer(int64_t size) : data_((size + kBlock - 1) / kBlock * kTilePixels * kRowSize) {}

  float* At(int64_t row, int64_t k) { return data_.data() + (k / kBlock * kTilePixels + row) * kRowSize + k % kBlock; }

 private:
  std::vector<float> data_;
};

// Adds to kCount rows of `out` the product of rows of `a` and a panel of `b`, over `length` steps.
template <int kCount>
void Multiply(const float* a, int64_t row_stride, int64_t step_stride, const float* b, int64_t b_stride, int64_t length,
              float* out, int64_t out_stride) {
  Lanes sum[kCount][2];
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < 2; ++v) sum[r][v] = reinterpret_cast<Lanes*>(out + r * out_stride)[v];
  }
  for (int64_t i = 0; i < length; ++i, a += step_stride, b += b_stride) {
    const Lanes* const columns = reinterpret_cast<const Lanes*>(b);
#pragma GCC unroll 16
    for (int r = 0; r < kCount; ++r) {
      sum[r][0] += a[r * row_stride] * columns[0];
      sum[r][1] += a[r * row_stride] * columns[1];
    }
  }
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < 2; ++v) reinterpret_cast<Lanes*>(out + r * out_stride)[v] = sum[r][v];
  }
}

// The same for any number of rows.
void MultiplyRows(int64_t rows, const float* a, int64_t row_stride, int64_t step_stride, const float* b,
                  int64_t b_stride, int64_t length, float* out, int64_t out_stride) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    Multiply<kRows>(a + row * row_stride, row_stride, step_stride, b, b_stride, length, out + row * out_stride,
                    out_stride);
  }
  for (; row < rows; ++row) {
    Multiply<1>(a + row * row_stride, row_stride, step_stride, b, b_stride, length, out + row * out_stride, out_stride);
  }
}

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
        fraction_(2 * samples_),
        dot_(4 * samples_),
        columns_(k_),
        d_columns_(call.d_y ? k_ : 0) {
    for (int64_t s = 0; s < samples_; ++s) {
      first_channel_[s] = s / kTaps * kGroupChannels;
      tap_row_[s] = s % kTaps / 3 - 1;
      tap_column_[s] = s % 3 - 1;
    }
  }

  void Compute(int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      Locate(pixel);
      Interpolate(Image(pixel), pixel - begin);
    }
    float* const y = call_.y + begin * call_.features;
    std::fill_n(y, (end - begin) * call_.features, 0.0f);
    for (int64_t k = 0; k < k_; k += kBlock) {
      for (int64_t feature = 0; feature < call_.features; feature += kPanel) {
        MultiplyRows(end - begin, columns_.At(0, k), kRowSize, 1, call_.weight + feature * k_ + k * kPanel, kPanel,
                     std::min<int64_t>(kBlock, k_ - k), y + feature, call_.features);
      }
    }
  }

  // All gradients of some pixels of one image. Those of x and of the weight are added to these arrays.
  void Differentiate(int64_t begin, int64_t end, float* d_x, float* d_weight) {
    const int64_t features = call_.features;
    const float* const d_y = call_.d_y + begin * features;
    for (int64_t k = 0; k < k_; k += kPanel) {
      for (int64_t row = 0; row < end - begin; ++row) std::fill_n(d_columns_.At(row, k), kPanel, 0.0f);
      MultiplyRows(end - begin, d_y, features, 1, call_.transposed + k * features, kPanel, features,
                   d_columns_.At(0, k), kRowSize);
    }
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      Locate(pixel);
      Interpolate(Image(pixel), pixel - begin);
      Scatter(Image(pixel), pixel - begin, d_x);
      DifferentiatePositions(pixel);
    }
    for (int64_t k = 0; k < k_; k += kBlock) {
      for (int64_t feature = 0; feature < features; feature += kPanel) {
        MultiplyRows(std::min<int64_t>(kBlock, k_ - k), columns_.At(0, k), 1, kRowSize, d_y + feature, features,
                     end - begin, d_weight + k * features + feature, features);
      }
    }
  }

 private:
  int64_t Image(int64_t pixel) const { return pixel / (call_.height * call_.width); }
  int64_t ImageSize() const { return call_.height * call_.width * call_.channels; }

  void Locate(int64_t pixel) {
    const float *const offset = call_.offset + pixel * samples_ * 2, *const mask = call_.mask + pixel * samples_;
    const float *const tap_row = tap_row_.data(), *const tap_column = tap_column_.data();
    const int32_t *const first_channel = first_channel_.data(), width = call_.width, channels = call_.channels;
    const float row = pixel / call_.width % call_.height, column = pixel % call_.width;
    const float last_row = call_.height - 1, last_column = call_.width - 1;
    int32_t* __restrict const index = index_.data();
    float* __restrict const weight = weight_.data();
    float* __restrict const fraction = fraction_.data();
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
      fraction[s] = down;
      fraction[samples + s] = right;
    }
  }

  void Interpolate(int64_t image, int64_t row) {
    const float* const x = call_.x + image * ImageSize();
    for (int64_t s = 0; s < samples_; ++s) {
      Channels sum = {};
      for (int corner = 0; corner < 4; ++corner) {
        const int64_t i = corner * samples_ + s;
        sum += weight_[i] * *reinterpret_cast<const Channels*>(x + index_[i]);
      }
      *reinterpret_cast<Channels*>(columns_.At(row, s * kGroupChannels)) = sum;
    }
  }

  // Adds to the gradient of x, and computes the dot products of a sample's corners and its cotangent.
  void Scatter(int64_t image, int64_t row, float* d_x) {
    const float* const x = call_.x + image * ImageSize();
    d_x += image * ImageSize();
    for (int64_t s = 0; s < samples_; ++s) {
      const Channels d = *reinterpret_cast<const Channels*>(d_columns_.At(row, s * kGroupChannels));
      Four half[4];
      for (int corner = 0; corner < 4; ++corner) {
        const int64_t i = corner * samples_ + s;
        const Channels product = d * *reinterpret_cast<const Channels*>(x + index_[i]);
        *reinterpret_cast<Channels*>(d_x + index_[i]) += weight_[i] * d;
        half[corner] =
            Four{product[0], product[1], product[2], product[3]} + Four{product[4], product[5], product[6], product[7]};
      }
      const auto& [a, b, c, e] = half;
      const Four top = Four{a[0], b[0], a[1], b[1]} + Four{a[2], b[2], a[3], b[3]};
      const Four bottom = Four{c[0], e[0], c[1], e[1]} + Four{c[2], e[2], c[3], e[3]};
      *reinterpret_cast<Four*>(&dot_[4 * s]) =
          Four{top[0], top[1], bottom[0], bottom[1]} + Four{top[2], top[3], bottom[2], bottom[3]};
    }
  }

  // A corner that is not in the image has a dot product of 0; its weight is 0 whatever the fractions are.
  void DifferentiatePositions(int64_t pixel) {
    const float* const mask = call_.mask + pixel * samples_;
    const float *const down = fraction_.data(), *const right = down + samples_;
    const float row = pixel / call_.width % call_.height, column = pixel % call_.width;
    const float *const tap_row = tap_row_.data(), *const tap_column = tap_column_.data();
    const float* const offset = call_.offset + pixel * samples_ * 2;
    const float last_row = call_.height - 1, last_column = call_.width - 1;
    const float* const dot = dot_.data();
    float* __restrict const d_offset = call_.d_offset + pixel * samples_ * 2;
    float* __restrict const d_mask = call_.d_mask + pixel * samples_;
    const int64_t samples = samples_;
#pragma GCC ivdep
    for (int64_t s = 0; s < samples; ++s) {
      const float top = std::floor(row + tap_row[s] + offset[2 * s]);
      const float left = std::floor(column + tap_column[s] + offset[2 * s + 1]);
      const float has_top = top >= 0 && top <= last_row, has_bottom = top >= -1 && top < last_row;
      const float has_left = left >= 0 && left <= last_column, has_right = left >= -1 && left < last_column;
      const float top_left = has_top * has_left * dot[4 * s], top_right = has_top * has_right * dot[4 * s + 1];
      const float bottom_left = has_bottom * has_left * dot[4 * s + 2];
      const float bottom_right = has_bottom * has_right * dot[4 * s + 3];
      const float on_top = (1 - right[s]) * top_left + right[s] * top_right;
      const float on_bottom = (1 - right[s]) * bottom_left + right[s] * bottom_right;
      const float on_left = (1 - down[s]) * top_left + down[s] * bottom_left;
      const float on_right = (1 - down[s]) * top_right + down[s] * bottom_right;
      d_offset[2 * s] = mask[s] * (on_bottom - on_top);
      d_offset[2 * s + 1] = mask[s] * (on_right - on_left);
      d_mask[s] = (1 - down[s]) * on_top + down[s] * on_bottom;
    }
  }

  const Convolution& call_;
  const int64_t samples_, k_;  // of a pixel
  std::vector<int32_t> first_channel_;
  std::vector<float> tap_row_, tap_column_;
  std::vector<int32_t> index_;                  // [4, samples]
  std::vector<float> weight_, fraction_, dot_;  // [4, samples], [2, samples], [samples, 4]
  Buffer columns_, d_columns_;
};

template <typename Run>
void RunThreads(int64_t num_threads, const Run& run) {
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < num_threads; ++i) threads.emplace_back(run, i);
  run(0);
  for (auto& thread : threads) thread.join();
}

}  // namespace

extern "C" const int64_t panel_features = kPanel;

extern "C" void Convolve(const Convolution* call, int64_t num_threads) {
  const int64_t pixels = call->images * call->height * call->width;
  std::atomic<int64_t> next{0};
  RunThreads(num_threads, [&](int64_t) {
    Thread thread(*call);
    for (int64_t begin; (begin = next.fetch_add(kTilePixels)) < pixels;) {
      thread.Compute(begin, std::min(begin + kTilePixels, pixels));
    }
  });
}

// A thread takes whole images, and has a gradient of the weight of its own, which are added at the end.
extern "C" void Differentiate(const Convolution* call, int64_t num_threads) {
  const int64_t image_pixels = call->height * call->width, image_size = image_pixels * call->channels;
  const int64_t weight_size = kTaps * call->channels * call->features;
  std::vector<std::vector<float>> d_weights(num_threads);
  std::atomic<int64_t> next{0};
  RunThreads(num_threads, [&](int64_t i) {
    d_weights[i].assign(weight_size, 0);
    Thread thread(*call);
    for (int64_t image; (image = next.fetch_add(1)) < call->images;) {
      std::fill_n(call->d_x + image * image_size, image_size, 0.0f);
      const int64_t end = (image + 1) * image_pixels;
      for (int64_t pixel = image * image_pixels; pixel < end; pixel += kTilePixels) {
        thread.Differentiate(pixel, std::min(pixel + kTilePixels, end), call->d_x, d_weights[i].data());
      }
    }
  });
  std::fill_n(call->d_weight, weight_size, 0.0f);
  for (const auto& d_weight : d_weights) {
    for (int64_t i = 0; i < weight_size; ++i) call->d_weight[i] += d_weight[i];
  }
}
