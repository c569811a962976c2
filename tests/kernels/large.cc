// Calls kernels on operands of more than 2^32 elements, to find indices that overflow 32 bits. Only the last block of
// each launch runs, so only the pages that it accesses take memory. Its results must be in the last elements, and it
// must not access memory outside the operands.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "aggregation/aggregation.h"
#include "deform_conv/deform_conv.h"
#include "device.h"
#include "ptx/memory.h"
#include "roi_pool/roi_pool.h"

namespace dcn {
namespace {

constexpr int64_t kMargin = int64_t{16} << 30;  // inaccessible; wide enough to catch an index that overflows 32 bits

// An array of zeros between inaccessible margins.
template <typename T>
class Large {
 public:
  explicit Large(int64_t size) : size_(size) {
    const int64_t bytes = (size * int64_t(sizeof(T)) + 4095) / 4096 * 4096;
    auto* first = static_cast<char*>(
        mmap(nullptr, bytes + 2 * kMargin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    // Aligned to the end of a page, so that the margin follows the last element directly.
    data_ = reinterpret_cast<T*>(first + kMargin + bytes) - size;
    if (first == MAP_FAILED || mprotect(first + kMargin, bytes, PROT_READ | PROT_WRITE)) {
      std::printf("no address space\n");
      std::exit(2);
    }
    ptx::AddAllocation(data_, size_t(size) * sizeof(T), false, false);
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

// Many pixels with few channels.
void TestManyPixels() {
  constexpr int64_t kSide = 1 << 15, kChannels = 4, kPixels = kSide * kSide;
  const Sizes sizes = {OneTap(), 1, kSide, kSide, kChannels, kSide, kSide, 1, 1, 1, kSide};
  Large<float> x(kPixels * kChannels), offset(2 * kPixels), columns(kPixels * kChannels),
      d_columns(kPixels * kChannels);
  Large<float> d_offset(2 * kPixels), d_mask(kPixels);
  Large<int32_t> origin(4);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  x.last() = 3;
  d_columns.last() = 5;
  Device device(nullptr);
  Check(SampleColumns(device, DType::kF32, sizes, positions, x.data(), columns.data()));
  Expect("the last sample", columns.last(), 3);
  const Tangents tangents = {x.data(), nullptr, nullptr};
  columns.last() = 0;
  Check(SampleTangents(device, DType::kF32, sizes, positions, tangents, x.data(), false, columns.data()));
  Expect("the last sample's tangent", columns.last(), 3);
  Check(OffsetCotangent(device, DType::kF32, sizes, positions, x.data(), d_columns.data(), d_offset.data(),
                        d_mask.data(), nullptr));
  Expect("the last mask's cotangent", d_mask.last(), 15);
  Expect("the last offset's cotangent", d_offset.last(), -15);
}

// An image of more than 2^32 pixels, of which one sample reads the last.
void TestLargeImage() {
  constexpr int64_t kSide = (1 << 16) + 1;
  const Sizes sizes = {OneTap(), 1, kSide, kSide, 1, 1, 1, 1, 1, 1, 1};
  Large<float> x(kSide * kSide), offset(2), columns(1), d_columns(1), d_offset(2), d_mask(1);
  Large<int32_t> origin(4);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  offset.last() = offset.last(2) = kSide - 1;
  x.last() = 3;
  d_columns.last() = 5;
  Device device(nullptr);
  Check(SampleColumns(device, DType::kF32, sizes, positions, x.data(), columns.data()));
  Expect("the last pixel's sample", columns.last(), 3);
  Check(OffsetCotangent(device, DType::kF32, sizes, positions, x.data(), d_columns.data(), d_offset.data(),
                        d_mask.data(), nullptr));
  Expect("the last mask's cotangent, of a large image,", d_mask.last(), 15);
}

// Many images of one pixel with many channels, because the handler limits an image to 2^31 samples.
void TestManyImages() {
  constexpr int64_t kImages = 1 << 20, kChannels = 1 << 12;
  const Sizes sizes = {OneTap(), kImages, 1, 1, kChannels, 1, 1, 1, kImages, kImages, 1};
  Large<float> offset(2 * kImages), d_columns(kImages * kChannels), d_x(kImages * kChannels);
  d_columns.last() = 5;
  d_x.last() = 2;
  Device device(nullptr);
  Large<int32_t> origin(4);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  Large<int32_t> samples(4 * kImages), cell_start(5 * kImages), workspace(kImages);
  const SortedSamples sorted = {samples.data(), cell_start.data()};
  Check(SortSamples(device, DType::kF32, sizes, positions, sorted, workspace.data()));
  const GatherSizes gather = {kImages, 1, 1, kChannels, 1, false, 1, kImages, kImages, 1};
  Check(GatherSamples(device, DType::kF32, gather, sorted, origin.data(), d_columns.data(), false, d_x.data()));
  Expect("the last pixel's cotangent", d_x.last(), 7);
}

// Many batches of one RoI in an image of one pixel.
void TestManyBatchesOfRois() {
  constexpr int64_t kBatches = 1 << 20, kChannels = 1 << 12;
  const PoolSizes sizes = {kBatches, 1, 1, 1, kChannels, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, RoiConvention::kRounded,
                           1,        1};
  Large<float> x(kBatches * kChannels), pooled(kBatches * kChannels), d_pooled(kBatches * kChannels);
  Large<float> d_x(kBatches * kChannels), boxes(5 * kBatches), offset(2 * kBatches), d_offset(2 * kBatches);
  const Rois rois = {boxes.data(), offset.data()};
  offset.last() = offset.last(2) = 0.5;  // moves the sample point from -1/2 to 0, onto the pixel
  x.last() = 3;
  d_pooled.last() = 5;
  Device device(nullptr);
  Check(Pool(device, DType::kF32, sizes, rois, x.data(), pooled.data()));
  Expect("the last feature", pooled.last(), 3);
  Check(PoolXCotangent(device, DType::kF32, sizes, rois, d_pooled.data(), d_x.data()));
  Expect("the last pixel's cotangent, of pooling,", d_x.last(), 5);
  d_offset.last() = 9;
  Check(PoolOffsetCotangent(device, DType::kF32, sizes, rois, x.data(), d_pooled.data(), d_offset.data()));
  Expect("the last offset's cotangent, of pooling,", d_offset.last(), 0);
}

// An image with more columns than float32 has consecutive integers.
void TestWideImage() {
  constexpr int64_t kWidth = (1 << 24) + 4;
  const PoolSizes sizes = {1, 1, 1, kWidth, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, RoiConvention::kRounded, 1, 1};
  Large<float> x(kWidth), pooled(1), boxes(5);
  const float box[] = {0, kWidth, 0, kWidth, 0};
  std::copy(box, box + 5, boxes.data());
  x.last() = 3;
  Device device(nullptr);
  Check(Pool(device, DType::kF32, sizes, {boxes.data(), nullptr}, x.data(), pooled.data()));
  Expect("the last of many columns", pooled.last(), 3);
}

// An attention to a level, with one tap per query.
AggregationSizes OneTapPerQuery(int64_t batches, int64_t channels, int64_t queries, int32_t side) {
  AggregationSizes sizes = {batches, 1, channels, int64_t{side} * side, queries, 1, 1, 1};
  sizes.levels[0] = {side, side, 1, 0, 0};
  sizes.sampling = SamplingMethod::kBilinear;
  return sizes;
}

// Many pixels and as many queries, with few channels.
void TestManyQueries() {
  constexpr int64_t kSide = 1 << 15, kChannels = 4, kPixels = kSide * kSide;
  const AggregationSizes sizes = OneTapPerQuery(1, kChannels, kPixels, kSide);
  Large<float> value(kPixels * kChannels), out(kPixels * kChannels), d_out(kPixels * kChannels);
  Large<float> locations(2 * kPixels), weights(kPixels), d_locations(2 * kPixels), d_weights(kPixels);
  Large<int32_t> origin(2);
  const Taps taps = {locations.data(), weights.data(), origin.data()};
  locations.last() = locations.last(2) = 1 - 0.5f / kSide;  // the last pixel
  weights.last() = 2;
  value.last() = 3;
  d_out.last() = 5;
  Device device(nullptr);
  Check(Aggregate(device, DType::kF32, sizes, taps, value.data(), out.data()));
  Expect("the last query's result", out.last(), 6);
  Check(TapCotangents(device, DType::kF32, sizes, taps, value.data(), d_out.data(), d_locations.data(),
                      d_weights.data()));
  Expect("the last weight's cotangent, of aggregation,", d_weights.last(), 15);
  Expect("the last location's cotangent", d_locations.last(), -2 * 15 * float(kSide));
}

// Many batches of one query, because the handler limits a head to 2^31 samples.
void TestManyBatchesOfQueries() {
  constexpr int64_t kBatches = 1 << 20, kChannels = 1 << 12;
  const AggregationSizes sizes = OneTapPerQuery(kBatches, kChannels, 1, 1);
  const int64_t workspace_size = kBatches * MinWorkspaceSize(DType::kF32, sizes);
  Large<float> locations(2 * kBatches), weights(kBatches), d_out(kBatches * kChannels), d_value(kBatches * kChannels);
  Large<int32_t> origin(2), workspace(workspace_size);
  locations.last() = locations.last(2) = 0.5;
  weights.last() = 2;
  d_out.last() = 5;
  Device device(nullptr);
  Check(ValueCotangent(device, DType::kF32, sizes, {locations.data(), weights.data(), origin.data()}, d_out.data(),
                       true, d_value.data(), workspace.data(), workspace_size));
  Expect("the last value's cotangent", d_value.last(), 10);
}

}  // namespace
}  // namespace dcn

int main() {
  dcn::TestManyPixels();
  dcn::TestLargeImage();
  dcn::TestManyImages();
  dcn::TestManyBatchesOfRois();
  dcn::TestWideImage();
  dcn::TestManyQueries();
  dcn::TestManyBatchesOfQueries();
  std::puts("all last places are right");
}
