// Calls kernels on operands of more than 2^32 numbers, of which only those are in memory that the last of all tasks or
// blocks reads or writes: what it computes must stand in the last places, and none of what it touches may lie
// outside.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cpu/element.h"
#include "deform_conv.h"
#include "deform_conv_fused.h"
#include "device.h"
#include "psroi_pool.h"

namespace dcn {
namespace {

constexpr int64_t kMargin = int64_t{16} << 30;  // which nothing may touch, and an overflow in 32 bits may reach

// Zeros, between margins.
template <typename T>
class Large {
 public:
  explicit Large(int64_t size) : size_(size) {
    const int64_t bytes = (size * int64_t(sizeof(T)) + 4095) / 4096 * 4096;
    auto* first = static_cast<char*>(
        mmap(nullptr, bytes + 2 * kMargin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    // Up to the page's end, for the last number to be before the margin.
    data_ = reinterpret_cast<T*>(first + kMargin + bytes) - size;
    if (first == MAP_FAILED || mprotect(first + kMargin, bytes, PROT_READ | PROT_WRITE)) {
      std::printf("no address space\n");
      std::exit(2);
    }
  }

  T* data() { return data_; }
  T& last(int64_t i = 1) { return data_[size_ - i]; }

 private:
  int64_t size_;
  T* data_;
};

void Check(const char* failure) {
  if (!failure) return;
  std::printf("%s\n", failure);
  std::exit(1);
}

void Expect(const char* what, float value, float expected) {
  if (value == expected) return;
  std::printf("%s is %g, must be %g\n", what, value, expected);
  std::exit(1);
}

Window OneTap() { return {{1, 1}, {1, 1}, {0, 0}, {1, 1}, false}; }

// Many pixels of few channels.
void Columns() {
  constexpr int64_t kSide = 1 << 15, kChannels = 4, kPixels = kSide * kSide;
  const Sizes sizes = {OneTap(), 1, kSide, kSide, kChannels, kSide, kSide, 1, 1};
  Large<float> x(kPixels * kChannels), offset(2 * kPixels), columns(kPixels * kChannels),
      d_columns(kPixels * kChannels);
  Large<float> d_offset(2 * kPixels), d_mask(kPixels);
  Large<int32_t> origin(3);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  x.last() = 3;
  d_columns.last() = 5;
  Device device(nullptr);
  Check(SampleColumns(device, DType::kF32, sizes, positions, x.data(), columns.data()));
  Expect("the last sample", columns.last(), 3);
  Check(OffsetCotangent(device, DType::kF32, sizes, positions, x.data(), d_columns.data(), d_offset.data(),
                        d_mask.data(), nullptr));
  Expect("the last mask's cotangent", d_mask.last(), 15);
  Expect("the last offset's cotangent", d_offset.last(), -15);
}

// Many images of one pixel and many channels, for of an image only 2^31 samples are taken.
void Images() {
  constexpr int64_t kImages = 1 << 20, kChannels = 1 << 12;
  const Sizes sizes = {OneTap(), kImages, 1, 1, kChannels, 1, 1, 1, kImages};
  Large<float> offset(2 * kImages), d_columns(kImages * kChannels), d_x(kImages * kChannels);
  Large<int32_t> origin(3), workspace(WorkspaceSize(sizes));
  d_columns.last() = 5;
  d_x.last() = 2;
  Device device(nullptr);
  Check(InputCotangent(device, DType::kF32, sizes, {offset.data(), nullptr, origin.data()}, d_columns.data(),
                       d_x.data(), workspace.data()));
  Expect("the last pixel's cotangent", d_x.last(), 7);
}

// Many batches of one region in an image of one pixel.
void Pooling() {
  constexpr int64_t kBatches = 1 << 20, kChannels = 1 << 12;
  const PoolSizes sizes = {kBatches, 1, 1, 1, kChannels, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, 1};
  Large<float> x(kBatches * kChannels), pooled(kBatches * kChannels), d_pooled(kBatches * kChannels);
  Large<float> d_x(kBatches * kChannels), boxes(5 * kBatches), offset(2 * kBatches), d_offset(2 * kBatches);
  const Rois rois = {boxes.data(), offset.data()};
  offset.last() = offset.last(2) = 0.5;  // from -1/2 on to the pixel
  x.last() = 3;
  d_pooled.last() = 5;
  Device device(nullptr);
  Check(Pool(device, DType::kF32, sizes, rois, x.data(), pooled.data()));
  Expect("the last feature", pooled.last(), 3);
  Check(PoolInputCotangent(device, DType::kF32, sizes, rois, d_pooled.data(), d_x.data()));
  Expect("the last pixel's cotangent, of pooling,", d_x.last(), 5);
  d_offset.last() = 9;
  Check(PoolOffsetCotangent(device, DType::kF32, sizes, rois, x.data(), d_pooled.data(), d_offset.data()));
  Expect("the last offset's cotangent, of pooling,", d_offset.last(), 0);
}

// An image with more columns than float has integers.
void WideImage() {
  constexpr int64_t kWidth = (1 << 24) + 4;
  const PoolSizes sizes = {1, 1, 1, kWidth, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, 1};
  Large<float> x(kWidth), pooled(1), boxes(5);
  const float box[] = {0, kWidth, 0, kWidth, 0};
  std::copy(box, box + 5, boxes.data());
  x.last() = 3;
  Device device(nullptr);
  Check(Pool(device, DType::kF32, sizes, {boxes.data(), nullptr}, x.data(), pooled.data()));
  Expect("the last of many columns", pooled.last(), 3);
}

#ifdef __global__
void Fused() {
  constexpr int64_t kSide = 1 << 15, kChannels = 8, kFeatures = 8, kPixels = kSide * kSide;
  const Sizes sizes = {OneTap(), 1, kSide, kSide, kChannels, kSide, kSide, 1, 1};
  const Product product = {kFeatures, 1};
  Large<BF16> x(kPixels * kChannels), y(kPixels * kFeatures), d_y(kPixels * kFeatures), weight(kChannels * kFeatures);
  Large<float> offset(2 * kPixels), bias(kFeatures), d_offset(2 * kPixels), d_mask(kPixels);
  Large<int32_t> origin(3);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  x.last() = BF16(3);
  weight.last() = BF16(2);
  d_y.last() = BF16(5);
  Device device(nullptr);
  Check(FusedForward(device, DType::kBF16, sizes, positions, product, 64, false, x.data(), weight.data(), bias.data(),
                     y.data()));
  Expect("the last output", y.last(), 6);
  Check(FusedOffsetCotangent(device, DType::kBF16, sizes, positions, product, 1, x.data(), weight.data(), d_y.data(),
                             d_offset.data(), d_mask.data()));
  Expect("the last mask's cotangent, fused,", d_mask.last(), 30);
  Expect("the last offset's cotangent, fused,", d_offset.last(), -30);

  constexpr int64_t kSplits = 1 << 20;
  Large<float> parts(kSplits * kChannels * kFeatures);
  Check(FusedWeightCotangent(device, DType::kBF16, sizes, positions, product, kSplits, x.data(), d_y.data(),
                             parts.data()));
  Expect("the last weight's cotangent", parts.last(), 15);
}

// Many groups of few channels, for only 2^31 contributions are listed.
void FusedGroups() {
  constexpr int64_t kSide = 1 << 8, kGroups = 1 << 14, kChannels = 8 * kGroups, kPixels = kSide * kSide;
  const Sizes sizes = {OneTap(), 1, kSide, kSide, kChannels, kSide, kSide, 1, 1};
  const Product product = {kChannels, kGroups};
  Large<BF16> weight(kChannels * 8), d_y(kPixels * kChannels), d_x(kPixels * kChannels);
  Large<float> offset(2 * kPixels);
  Large<int32_t> origin(3), starts(kPixels + 1), contributions(8 * kPixels), workspace(4 * kPixels);
  weight.last() = BF16(2);
  d_y.last() = BF16(5);
  const ScatterLists lists = {starts.data(), reinterpret_cast<Contribution*>(contributions.data()), workspace.data()};
  Device device(nullptr);
  Check(FusedInputCotangent(device, DType::kBF16, sizes, {offset.data(), nullptr, origin.data()}, product, lists,
                            weight.data(), d_y.data(), d_x.data()));
  Expect("the last pixel's cotangent, fused,", d_x.last(), 10);
}
#endif

}  // namespace
}  // namespace dcn

int main() {
#ifdef __global__
  execution::last_block_alone = true;
#endif
  dcn::Columns();
  dcn::Images();
  dcn::Pooling();
  dcn::WideImage();
#ifdef __global__
  dcn::Fused();
  dcn::FusedGroups();
#endif
  std::puts("all last places are right");
}
