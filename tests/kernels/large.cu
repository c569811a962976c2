// Calls the kernels with arrays of more than 2^32 elements, to find indices that overflow 32 bits. Only the last block
// of each launch runs, so that only the pages which it accesses take memory. It must write the last elements, and must
// not access memory outside the arrays.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "aggregation/aggregation.h"
#include "cuda/device.h"
#include "deform_conv/deform_conv.h"
#include "ptx/memory.h"
#include "ptx/runtime.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {
namespace {

constexpr int64_t kMargin = int64_t{16} << 30;  // inaccessible; an index that has lost its upper bits ends there
constexpr int64_t kBatches = 1 << 20, kChannels = 1 << 13;  // of one pixel, RoI or query each
constexpr int32_t kPoints = 1 << 12;                        // of one channel in each batch, in other tests
constexpr int32_t kWide = (1 << 16) + 1;                    // both sides of an image of more than 2^32 pixels

// An array of zeros between margins.
template <typename T>
class Large {
 public:
  explicit Large(int64_t size) {
    const int64_t bytes = (size * int64_t(sizeof(T)) + 4095) / 4096 * 4096;
    void* first = mmap(nullptr, bytes + 2 * kMargin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    // The upper margin follows the last element directly.
    char* end = static_cast<char*>(first) + kMargin + bytes;
    if (first == MAP_FAILED || mprotect(end - bytes, bytes, PROT_READ | PROT_WRITE)) {
      std::puts("no address space");
      std::exit(2);
    }
    end_ = reinterpret_cast<T*>(end);
    data_ = end_ - size;
    ptx::AddAllocation(data_, size_t(size) * sizeof(T), false, false);
  }

  T* data() { return data_; }
  T& last(int64_t i = 1) { return end_[-i]; }

 private:
  T *data_, *end_;
};

// Arrays with an element for each channel of a batch, of which the last is set.
struct LargeFloats : Large<float> {
  explicit LargeFloats(float last_value = 0) : Large(kBatches * kChannels) { last() = last_value; }
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

constexpr Window kOneTap = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, false};

void TestConvolution(Device& device) {
  const Sizes sizes = {kOneTap, kBatches, 1, 1, kChannels, 1, 1, 1, kBatches, kBatches, 1};
  LargeFloats x(3), d_columns(5), columns, d_x(2);
  Large<float> offset(2 * kBatches), d_offset(2 * kBatches), d_mask(kBatches);
  Large<int32_t> origin(4);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  Check(SampleColumns(device, DType::kF32, sizes, positions, x.data(), columns.data()));
  Expect("the last sample", columns.last(), 3);
  columns.last() = 0;
  const Tangents tangents = {x.data(), nullptr, nullptr};
  Check(SampleTangents(device, DType::kF32, sizes, positions, tangents, x.data(), false, columns.data()));
  Expect("the last sample's tangent", columns.last(), 3);
  Check(OffsetCotangent(device, DType::kF32, sizes, positions, x.data(), d_columns.data(), d_offset.data(),
                        d_mask.data(), nullptr));
  Expect("the last mask's cotangent", d_mask.last(), 15);
  Expect("the last offset's cotangent", d_offset.last(), -15);
  Large<int32_t> samples(4 * kBatches), cell_start(5 * kBatches), workspace(kBatches);
  const CsrTables sorted = {kBatches, sizes.cells(), 1, cell_start.data(), samples.data(), workspace.data()};
  Check(SortSamples(device, DType::kF32, sizes, positions, sorted));
  const GatherSizes gather = {kBatches, 1, 1, kChannels, 1, false, 1, kBatches, kBatches, 1};
  Check(GatherSamples(device, DType::kF32, gather, sorted, origin.data(), d_columns.data(), false, d_x.data()));
  Expect("the last pixel's cotangent", d_x.last(), 7);
}

void TestConvolutionOfWideImage(Device& device) {
  const Sizes sizes = {kOneTap, 1, kWide, kWide, 1, 1, 1, 1, 1, 1, 1};
  Large<float> x(int64_t{kWide} * kWide), offset(2), columns(1), d_columns(1), d_offset(2), d_mask(1);
  Large<int32_t> origin(4);
  const Positions positions = {offset.data(), nullptr, origin.data()};
  offset.last() = offset.last(2) = kWide - 1;
  x.last() = 3;
  d_columns.last() = 5;
  Check(SampleColumns(device, DType::kF32, sizes, positions, x.data(), columns.data()));
  Expect("the sample of a wide image", columns.last(), 3);
  Check(OffsetCotangent(device, DType::kF32, sizes, positions, x.data(), d_columns.data(), d_offset.data(),
                        d_mask.data(), nullptr));
  Expect("the mask's cotangent of a wide image", d_mask.last(), 15);
}

// Many samples of images of one pixel, of which the first and, in the last image, the last one are inside.
void TestConvolutionOfManySamples(Device& device) {
  const Sizes sizes = {kOneTap, kBatches, 1, 1, 1, 1, kPoints, 1, kBatches, kBatches, 1};
  Large<float> offset(2 * kBatches * kPoints), d_columns(kBatches * kPoints), d_x(kBatches);
  Large<int32_t> samples(4 * kBatches * kPoints), cell_start(5 * kBatches), ids(kBatches * kPoints), origin(4);
  const CsrTables sorted = {kBatches, sizes.cells(), kPoints, cell_start.data(), samples.data(), ids.data()};
  offset.last() = 1 - kPoints;  // to column 0
  d_columns.last() = 5;
  Check(SortSamples(device, DType::kF32, sizes, {offset.data(), nullptr, origin.data()}, sorted));
  Expect("the number of sorted samples", float(cell_start.last()), 2);
  const GatherSizes gather = {kBatches, 1, 1, 1, 1, false, kPoints, kBatches, kBatches, kPoints};
  Check(GatherSamples(device, DType::kF32, gather, sorted, origin.data(), d_columns.data(), false, d_x.data()));
  Expect("the last pixel's cotangent of many samples", d_x.last(), 5);
}

void TestPooling(Device& device) {
  PoolSizes sizes = {kBatches, 1, 1, 1, kChannels, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, RoiConvention::kRounded, 1, 1};
  LargeFloats x(3), d_pooled(5), pooled, d_x;
  Large<float> boxes(5 * kBatches), offset(2 * kBatches), d_offset(2 * kBatches);
  Large<int32_t> argmax(2 * kBatches * kChannels);
  const Rois rois = {boxes.data(), offset.data()}, fixed = {boxes.data(), nullptr};
  offset.last() = offset.last(2) = 0.5;  // moves the sample point from -1/2 to 0, onto the pixel
  Check(Pool(device, DType::kF32, sizes, rois, x.data(), pooled.data()));
  Expect("the last feature", pooled.last(), 3);
  Check(PoolXCotangent(device, DType::kF32, sizes, rois, d_pooled.data(), d_x.data()));
  Expect("the last pixel's cotangent, of pooling,", d_x.last(), 5);
  d_offset.last() = 9;
  Check(PoolOffsetCotangent(device, DType::kF32, sizes, rois, x.data(), d_pooled.data(), d_offset.data()));
  Expect("the last offset's cotangent, of pooling,", d_offset.last(), 0);
  sizes.convention = RoiConvention::kUnaligned;
  pooled.last() = d_x.last() = 0;
  argmax.last() = 9;
  Check(MaxPool(device, DType::kF32, sizes, fixed, x.data(), pooled.data()));
  Expect("the last maximum", pooled.last(), 3);
  Check(MaxPoolArgmax(device, DType::kF32, sizes, fixed, x.data(), argmax.data()));
  Expect("the last maximum's column", float(argmax.last()), 0);
  Check(MaxPoolXCotangent(device, DType::kF32, sizes, fixed, d_pooled.data(), argmax.data(), d_x.data()));
  Expect("the last pixel's cotangent, of maxima,", d_x.last(), 5);
}

void TestPoolingOfWideImage(Device& device) {
  const PoolSizes sizes = {1, 1, kWide, kWide, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, RoiConvention::kUnaligned,
                           1, 1};
  Large<float> x(int64_t{kWide} * kWide), boxes(5), pooled(1);
  const Rois rois = {boxes.data(), nullptr};
  for (int i = 1; i <= 4; ++i) boxes.last(i) = kWide - 1;
  x.last() = 3;
  Check(Pool(device, DType::kF32, sizes, rois, x.data(), pooled.data()));
  Expect("the feature of a wide image", pooled.last(), 3);
  pooled.last() = 0;
  Check(MaxPool(device, DType::kF32, sizes, rois, x.data(), pooled.data()));
  Expect("the maximum of a wide image", pooled.last(), 3);
}

// Attention with one tap per query to a level of one row, of which the last one reads the last pixel.
void TestAggregation(Device& device, int64_t batches, int64_t queries, int64_t heads, int64_t channels, int32_t width) {
  AggregationSizes sizes = {batches, heads, channels, width, queries, 1, 1, 1};
  sizes.levels[0] = {1, width, 1, 0, 0};
  sizes.sampling = SamplingMethod::kBilinear;
  const int64_t tables = batches * heads, samples = tables * queries, rows = queries + sizes.levels[0].cells();
  Large<float> value(tables * width * channels), d_value(tables * width * channels);
  Large<float> out(samples * channels), d_out(samples * channels);
  Large<float> locations(2 * samples), weights(samples), d_locations(2 * samples), d_weights(samples);
  Large<int32_t> origin(2), sorted(4 * samples), row_start(tables * (rows + 1)), ids(samples);
  const CsrTables room = {tables, rows, queries, row_start.data(), sorted.data(), ids.data()};
  const Taps taps = {locations.data(), weights.data(), origin.data()};
  locations.last(2) = 1 - 0.5f / float(width);
  locations.last() = 0.5;
  weights.last() = 2;
  value.last() = 3;
  d_out.last() = 5;
  Check(Aggregate(device, DType::kF32, sizes, taps, value.data(), out.data()));
  Expect("the last query's result", out.last(), 6);
  Check(TapCotangents(device, DType::kF32, sizes, taps, value.data(), d_out.data(), d_locations.data(),
                      d_weights.data()));
  Expect("the last weight's cotangent", d_weights.last(), 15);
  Expect("the last location's cotangent", d_locations.last(), -30);
  Check(ValueCotangent(device, DType::kF32, sizes, taps, d_out.data(), true, d_value.data(), room));
  Expect("the last value's cotangent", d_value.last(), 10);
}

void TestAggregationOfBatches(Device& device) { TestAggregation(device, kBatches, 1, 1, kChannels, 1); }
void TestAggregationOfHeads(Device& device) { TestAggregation(device, 1, 1, kBatches, kChannels / 2, 2); }
void TestAggregationOfQueries(Device& device) { TestAggregation(device, kBatches, kPoints, 1, 1, 1); }

void TestAggregationOfWideLevel(Device& device) {
  AggregationSizes sizes = {1, 1, 1, int64_t{kWide} * kWide, 1, 1, 1, 1};
  sizes.levels[0] = {kWide, kWide, 1, 0, 0};
  sizes.sampling = SamplingMethod::kBilinear;
  Large<float> value(sizes.pixels), locations(2), weights(1), out(1), d_out(1), d_locations(2), d_weights(1);
  Large<int32_t> origin(2);
  const Taps taps = {locations.data(), weights.data(), origin.data()};
  locations.last() = locations.last(2) = 1;  // the edge of the last pixel, with a weight of 1/4
  weights.last() = 2;
  value.last() = 3;
  d_out.last() = 5;
  Check(Aggregate(device, DType::kF32, sizes, taps, value.data(), out.data()));
  Expect("the result of a wide level", out.last(), 1.5);
  Check(TapCotangents(device, DType::kF32, sizes, taps, value.data(), d_out.data(), d_locations.data(),
                      d_weights.data()));
  Expect("the weight's cotangent of a wide level", d_weights.last(), 3.75);
}

// The coordinates along all axes, in one array.
template <typename T>
Coordinates<T> InOneArray(T* array) {
  return {{array, array, array}};
}

void TestSampling(Device& device, int64_t points, int64_t channels) {
  SamplingSizes sizes = {kBatches, points, channels, 2, {1, 1, 1}, {}, false};
  sizes.rules = {Interpolation::kLinear, Units::kPixels, Fold::kNone, Outside::kZero};
  const int64_t samples = kBatches * points, entries = sizes.sorted_entries();
  Large<float> x(kBatches * channels), d_x(kBatches * channels), out(samples * channels), d_out(samples * channels);
  Large<float> locations(2 * samples), d_locations(2 * samples);
  Large<int32_t> taps(2 * kBatches * entries), row_start(2 * kBatches), ids(kBatches * entries);
  const CsrTables room = {kBatches, 1, entries, row_start.data(), taps.data(), ids.data()};
  x.last() = 3;
  d_out.last() = 5;
  Check(Sample(device, DType::kF32, sizes, x.data(), InOneArray<const void>(locations.data()), out.data()));
  Expect("the last point", out.last(), 3);
  Check(SamplingXCotangent(device, DType::kF32, sizes, InOneArray<const void>(locations.data()), d_out.data(), true,
                           d_x.data(), room));
  Expect("the last pixel's cotangent, of sampling,", d_x.last(), 5);
  Check(SamplingLocationsCotangent(device, DType::kF32, sizes, x.data(), InOneArray<const void>(locations.data()),
                                   d_out.data(), InOneArray<void>(d_locations.data())));
  Expect("the last location's cotangent, of sampling,", d_locations.last(), -15);
}

void TestSamplingOfChannels(Device& device) { TestSampling(device, 1, kChannels); }
void TestSamplingOfPoints(Device& device) { TestSampling(device, kPoints, 1); }

// An image has at most 2^31 pixels here.
void TestSamplingOfWideImage(Device& device) {
  constexpr int32_t kSide = 1 << 15;
  SamplingSizes sizes = {1, 1, 4, 2, {kSide, kSide, 1}, {}, false};
  sizes.rules = {Interpolation::kLinear, Units::kPixels, Fold::kNone, Outside::kZero};
  Large<float> x(sizes.pixels() * 4), locations(2), out(4), d_out(4), d_locations(2);
  locations.last() = locations.last(2) = kSide - 1;
  x.last() = 3;
  d_out.last() = 5;
  Check(Sample(device, DType::kF32, sizes, x.data(), InOneArray<const void>(locations.data()), out.data()));
  Expect("the point of a wide image", out.last(), 3);
  Check(SamplingLocationsCotangent(device, DType::kF32, sizes, x.data(), InOneArray<const void>(locations.data()),
                                   d_out.data(), InOneArray<void>(d_locations.data())));
  Expect("the location's cotangent of a wide image", d_locations.last(), -15);
}

}  // namespace
}  // namespace dcn

int main() {
  *ptx::FindOption("only_last_block") = 1;
  dcn::Device device(nullptr);
  for (const auto test : {dcn::TestConvolution, dcn::TestConvolutionOfWideImage, dcn::TestConvolutionOfManySamples,
                          dcn::TestPooling, dcn::TestPoolingOfWideImage, dcn::TestAggregationOfBatches,
                          dcn::TestAggregationOfHeads, dcn::TestAggregationOfQueries, dcn::TestAggregationOfWideLevel,
                          dcn::TestSamplingOfChannels, dcn::TestSamplingOfPoints, dcn::TestSamplingOfWideImage}) {
    test(device);
  }
}
