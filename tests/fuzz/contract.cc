// Kernels that compute nothing. They check what real kernels assume of calls that the handlers accept: that all
// elements that they would read and write are in the buffers, and that their indices fit in 32 and 64 bits. The checks
// compute sizes as doubles, which do not overflow.
#include "contract.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "aggregation/aggregation.h"
#include "deform_conv/deform_conv.h"
#include "deform_conv/fused.h"
#include "deform_conv/fused_cpu/plan.h"
#include "device.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {
namespace {

fuzz::Contract contract;
const bool installed = (fuzz::contract = &contract, true);

constexpr double k32 = 1u << 31, k64 = 9e18;

void Require(bool condition, const char* what, int line) {
  if (condition) return;
  std::fprintf(stderr, "contract.cc:%d: %s\n", line, what);
  std::abort();
}
#define REQUIRE(condition) Require(condition, #condition, __LINE__)

#ifdef DCN_CPU
constexpr bool kNeedsWorkspace = false;  // to sort
#else
constexpr bool kNeedsWorkspace = true;
#endif

double AccumulatorSize(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }
double ColumnCotangentSize(DType dtype) {
  return Device::kRoundsColumnCotangents ? double(BytesOf(dtype)) : AccumulatorSize(dtype);
}

void CheckWindow(const Sizes& s) {
  for (int axis = 0; axis < 2; ++axis) {
    REQUIRE(s.window.kernel[axis] >= 1 && s.window.strides[axis] >= 1 && s.window.dilation[axis] >= 1);
    // The last row or column that a sample can have: the origin, the part and the padding have 31 bits each.
    const double part = axis == 0 ? s.rows : s.columns;
    REQUIRE(0 <= part && part < k32);
    const double reach = double(s.window.kernel[axis] - 1) * s.window.dilation[axis];
    REQUIRE((k32 + part) * s.window.strides[axis] + k32 + reach < 0x1p63);
  }
  REQUIRE(double(s.window.kernel[0]) * s.window.kernel[1] < k32);
  REQUIRE(0 <= s.height && s.height < k32 && 0 <= s.width && s.width < k32);
  REQUIRE(0 <= s.images && s.images <= s.images_of_x && s.offset_groups >= 1);
  REQUIRE(s.images <= s.images_of_positions && 0 <= s.rows && s.rows <= s.rows_of_positions);
  REQUIRE(s.images <= 1 || s.rows == s.rows_of_positions);
  REQUIRE(s.channels >= 0 && s.channels % s.offset_groups == 0);
  REQUIRE(double(s.images_of_x) * s.height * s.width * s.channels < k64);
}

double PositionCount(const Sizes& s) {
  return double(s.images_of_positions) * s.rows_of_positions * s.columns * s.offset_groups * s.taps();
}
double ColumnsCount(const Sizes& s) { return double(s.images) * s.rows * s.columns * s.taps() * s.channels; }
double ImageCount(const Sizes& s, double images) { return images * s.height * s.width * s.channels; }

void CheckPositions(const Sizes& s, const Positions& positions, double size) {
  CheckWindow(s);
  REQUIRE(PositionCount(s) * 32 < k64);  // a kernel uses one warp per position
  REQUIRE(contract.Holds(positions.offset, 2 * PositionCount(s), size));
  REQUIRE(!positions.mask || contract.Holds(positions.mask, PositionCount(s), size));
  REQUIRE(contract.Holds(positions.origin, 4, 4));
}

}  // namespace

const char* SampleColumns(Device&, DType dtype, const Sizes& s, const Positions& positions, const void* x,
                          void* columns) {
  CheckPositions(s, positions, AccumulatorSize(dtype));
  REQUIRE(contract.Holds(x, ImageCount(s, s.images_of_x), BytesOf(dtype)));
  REQUIRE(contract.Holds(columns, ColumnsCount(s), BytesOf(dtype)));
  return nullptr;
}

const char* SampleTangents(Device&, DType dtype, const Sizes& s, const Positions& positions, const Tangents& tangents,
                           const void* x, bool columns_requested, void* columns) {
  const double wide = AccumulatorSize(dtype);
  CheckPositions(s, positions, wide);
  REQUIRE(contract.Holds(x, ImageCount(s, s.images_of_x), BytesOf(dtype)));
  REQUIRE(!tangents.x || contract.Holds(tangents.x, ImageCount(s, s.images_of_x), BytesOf(dtype)));
  REQUIRE(!tangents.offset || contract.Holds(tangents.offset, 2 * PositionCount(s), wide));
  REQUIRE(!tangents.mask || contract.Holds(tangents.mask, PositionCount(s), wide));
  REQUIRE(positions.mask || !tangents.mask);
  REQUIRE(contract.Holds(columns, (columns_requested ? 2 : 1) * ColumnsCount(s), BytesOf(dtype)));
  return nullptr;
}

const char* OffsetCotangent(Device& device, DType dtype, const Sizes& s, const Positions& positions, const void* x,
                            const void* d_columns, void* d_offset, void* d_mask, void* columns) {
  const double wide = AccumulatorSize(dtype);
  if (columns) SampleColumns(device, dtype, s, positions, x, columns);
  CheckPositions(s, positions, wide);
  REQUIRE(contract.Holds(x, ImageCount(s, s.images_of_x), BytesOf(dtype)));
  REQUIRE(contract.Holds(d_columns, ColumnsCount(s), ColumnCotangentSize(dtype)));
  REQUIRE(!d_offset || contract.Holds(d_offset, 2 * PositionCount(s), wide));
  REQUIRE(!d_mask || contract.Holds(d_mask, PositionCount(s), wide));
  return nullptr;
}

const char* XCotangent(Device&, DType dtype, const Sizes& s, const Positions& positions, const void* d_columns,
                       void* d_x) {
  const double wide = AccumulatorSize(dtype);
  CheckPositions(s, positions, wide);
  REQUIRE(s.images_of_x >= s.images);
  REQUIRE(contract.Holds(d_columns, ColumnsCount(s), wide));
  REQUIRE(contract.Holds(d_x, ImageCount(s, s.images_of_x), wide));
  return nullptr;
}

namespace {

// A sample has four numbers.
void CheckSorted(DType dtype, const SortedSamples& sorted, double tables, double samples, double height, double width) {
  const double cells = (height + 1) * (width + 1);
  REQUIRE(cells < k32 && samples < k32 && tables * (samples + cells) * 32 < k64);
  REQUIRE(contract.Holds(sorted.samples, 4 * tables * samples, AccumulatorSize(dtype)));
  REQUIRE(contract.Holds(sorted.cell_start, tables * (cells + 1), 4));
}

}  // namespace

const char* SortSamples(Device&, DType dtype, const Sizes& s, const Positions& positions, const SortedSamples& sorted,
                        int32_t* workspace) {
  const double tables = double(s.images) * s.offset_groups, samples = double(s.rows) * s.columns * s.taps();
  CheckPositions(s, positions, AccumulatorSize(dtype));
  CheckSorted(dtype, sorted, tables, samples, double(s.height), double(s.width));
  REQUIRE(contract.Holds(workspace, tables * samples, 4));
  return nullptr;
}

const char* GatherSamples(Device&, DType dtype, const GatherSizes& s, const SortedSamples& sorted, const int32_t* start,
                          const void* d_columns, bool is_rounded, void* d_x) {
  const double pixels = double(s.images_of_x) * s.height * s.width;
  REQUIRE(0 <= s.height && s.height < k32 && 0 <= s.width && s.width < k32);
  REQUIRE(s.offset_groups >= 1 && s.channels % s.offset_groups == 0 && double(s.channels) * BytesOf(dtype) < k32);
  REQUIRE(0 <= s.images && s.images <= s.images_of_x && s.images <= s.images_of_samples);
  REQUIRE(0 <= s.samples && s.samples <= s.sorted_samples);
  CheckSorted(dtype, sorted, double(s.images_of_samples) * s.offset_groups, double(s.sorted_samples), double(s.height),
              double(s.width));
  REQUIRE(contract.Holds(start, 3, 4));
  REQUIRE(contract.Holds(d_columns, double(s.images) * s.samples * s.channels, BytesOf(dtype)));
  REQUIRE(!is_rounded || (BytesOf(dtype) == 2 && s.samples == s.sorted_samples));
  REQUIRE(pixels * s.offset_groups * 32 < k64);
  REQUIRE(contract.Holds(d_x, pixels * s.channels, is_rounded ? BytesOf(dtype) : AccumulatorSize(dtype)));
  return nullptr;
}

namespace {

double WeightCount(const Sizes& s, const Product& product) {
  return double(s.channels) * s.taps() * product.group_features();
}

void CheckCpuFused(const Convolution& convolution, const void* x, const void* weight, const void* y, double y_size) {
  const auto& [dtype, s, positions, product, is_on_grid] = convolution;
  if (is_on_grid) {
    CheckWindow(s);
    REQUIRE(s.offset_groups == 1);
  } else {
    CheckPositions(s, positions, 4);
  }
  REQUIRE(dtype != DType::kF64);
  REQUIRE(s.images_of_x == s.images && double(s.height) * s.width < k32);
  REQUIRE(0 < s.channels && s.channels < k32 && product.features > 0 && product.groups >= 1);
  REQUIRE(s.channels % product.groups == 0 && product.features % product.groups == 0);
  REQUIRE(contract.Holds(x, ImageCount(s, s.images), BytesOf(dtype)));
  REQUIRE(contract.Holds(weight, WeightCount(s, product), BytesOf(dtype)));
  REQUIRE(contract.Holds(y, double(s.images) * s.rows * s.columns * product.features, y_size));
}

}  // namespace

const char* FusedForward(Device&, const Convolution& convolution, const FusedForwardArrays& arrays) {
  const auto& [dtype, s, positions, product, is_on_grid] = convolution;
  CheckCpuFused(convolution, arrays.x, arrays.weight, arrays.y, arrays.is_y_float ? 4 : BytesOf(dtype));
  REQUIRE(contract.Holds(arrays.bias, product.features, 4));
  const double padded = std::ceil(double(product.group_features()) / kFeaturePadding) * kFeaturePadding;
  const double packed = double(s.taps()) * s.channels * padded;
  REQUIRE(dtype != DType::kBF16 || contract.Holds(arrays.workspace, packed, BytesOf(dtype)));
  return nullptr;
}

const char* FusedCotangents(Device&, const Convolution& convolution, CotangentDivision division,
                            const FusedCotangentArrays& arrays) {
  const auto& [dtype, s, positions, product, is_on_grid] = convolution;
  CheckCpuFused(convolution, arrays.x, arrays.weight, arrays.d_y, BytesOf(dtype));
  const RequestedCotangents requested = arrays.requested;
  REQUIRE(!requested.x || contract.Holds(arrays.d_x, ImageCount(s, s.images), BytesOf(dtype)));
  REQUIRE(!arrays.d_offset || contract.Holds(arrays.d_offset, 2 * PositionCount(s), 4));
  REQUIRE(!arrays.d_mask || contract.Holds(arrays.d_mask, PositionCount(s), 4));
  REQUIRE(requested.positions || (!arrays.d_offset && !arrays.d_mask));
  REQUIRE(!requested.positions || !is_on_grid);
  REQUIRE(!requested.weight || contract.Holds(arrays.d_weight, WeightCount(s, product), 4));
  const ChannelSlices slices(convolution);
  REQUIRE(double(slices.count) * slices.channels >= s.channels && slices.channels <= slices.padded_channels);
  REQUIRE(division.num_splits >= 1 && division.num_splits <= kMaxWeightSplits);
  REQUIRE(division.num_planes >= 1 && division.num_planes <= kMaxResidentPlanes);
  const double weight = double(s.taps()) * slices.count * slices.padded_channels * product.group_features();
  const double packed = requested.x || requested.positions ? BytesOf(dtype) / 4. : 0.;
  const double weights = packed + (requested.weight ? double(division.num_splits) : 0.);
  const double plane = double(s.height) * s.width * slices.padded_channels;
  const double plane_sums = requested.x && dtype != DType::kF32 ? division.num_planes * plane : 0.;
  REQUIRE(contract.Holds(arrays.workspace, weight * weights + plane_sums, 4));
  return nullptr;
}

namespace {

// Without `pooled`, the result is checked by the caller.
void CheckPool(DType dtype, const PoolSizes& s, const Rois& rois, const void* x, double x_size, const void* pooled) {
  const double wide = AccumulatorSize(dtype);
  for (int axis = 0; axis < 2; ++axis) {
    REQUIRE(s.output[axis] >= 1 && s.group[axis] >= 1 && s.part[axis] >= 1);
    REQUIRE(s.points[axis] >= (s.is_rounded() ? 1 : 0) && BinPoints<double>::MostVisited(s, axis) < k32);
  }
  REQUIRE(RoiConvention::kRounded <= s.convention && s.convention <= RoiConvention::kUnaligned);
  REQUIRE(s.batches >= 0 && s.images >= 0 && s.rois >= 0 && s.channels >= 0 && s.classes >= 1);
  REQUIRE(0 <= s.height && s.height < k32 && 0 <= s.width && s.width < k32);
  REQUIRE(s.channels % s.groups() == 0 && s.features() % s.classes == 0);
  const double pooled_count = double(s.batches) * s.rois * s.output[0] * s.output[1] * s.features();
  const double parts = double(s.batches) * s.rois * s.part[0] * s.part[1] * s.classes;
  const double image = double(s.height) * s.width * s.channels;
  REQUIRE(contract.Holds(x, double(s.batches) * s.images * image, x_size));
  REQUIRE(!pooled || contract.Holds(pooled, pooled_count, BytesOf(dtype)));
  REQUIRE(contract.Holds(rois.boxes, double(s.batches) * s.rois * 5, wide));
  REQUIRE(!rois.offset || contract.Holds(rois.offset, 2 * parts, wide));
  REQUIRE(double(s.batches) * s.images * image < k64 && pooled_count < k64 && parts * 32 < k64);
}

}  // namespace

const char* Pool(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* x, void* pooled) {
  CheckPool(dtype, s, rois, x, BytesOf(dtype), pooled);
  return nullptr;
}

const char* PoolXCotangent(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* d_pooled,
                           void* d_x) {
  CheckPool(dtype, s, rois, d_x, AccumulatorSize(dtype), d_pooled);
  return nullptr;
}

const char* PoolOffsetCotangent(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* x,
                                const void* d_pooled, void* d_offset) {
  CheckPool(dtype, s, rois, x, BytesOf(dtype), d_pooled);
  const double parts = double(s.batches) * s.rois * s.part[0] * s.part[1] * s.classes;
  REQUIRE(rois.offset);
  REQUIRE(contract.Holds(d_offset, 2 * parts, AccumulatorSize(dtype)));
  return nullptr;
}

namespace {

void CheckMaxPool(DType dtype, const PoolSizes& s, const Rois& rois, const void* x, double x_size, const void* pooled) {
  CheckPool(dtype, s, rois, x, x_size, pooled);
  REQUIRE(s.groups() == 1 && s.classes == 1 && !rois.offset);
}

void CheckArgmax(const PoolSizes& s, const int32_t* argmax) {
  REQUIRE(contract.Holds(argmax, 2 * double(s.batches) * s.rois * s.output[0] * s.output[1] * s.channels, 4));
}

}  // namespace

const char* MaxPool(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* x, void* pooled) {
  CheckMaxPool(dtype, s, rois, x, BytesOf(dtype), pooled);
  return nullptr;
}

const char* MaxPoolArgmax(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* x, int32_t* argmax) {
  CheckMaxPool(dtype, s, rois, x, BytesOf(dtype), nullptr);
  CheckArgmax(s, argmax);
  return nullptr;
}

const char* MaxPoolXCotangent(Device&, DType dtype, const PoolSizes& s, const Rois& rois, const void* d_pooled,
                              const int32_t* argmax, void* d_x) {
  CheckMaxPool(dtype, s, rois, d_x, AccumulatorSize(dtype), d_pooled);
  CheckArgmax(s, argmax);
  return nullptr;
}

namespace {

double ValueCount(const AggregationSizes& s) { return double(s.batches) * s.pixels * s.heads * s.channels; }
double OutCount(const AggregationSizes& s) { return double(s.batches) * s.rows * s.columns * s.heads * s.channels; }
double TapCount(const AggregationSizes& s) { return double(s.batches) * s.rows * s.columns * s.heads * s.taps; }

void CheckAggregation(DType dtype, const AggregationSizes& s, const Taps& taps, const void* out) {
  REQUIRE(s.batches >= 0 && s.heads >= 0 && s.channels >= 0);
  REQUIRE(0 <= s.rows && s.rows < k32 && 0 <= s.columns && s.columns < k32);
  REQUIRE(0 <= s.num_levels && s.num_levels <= kMaxLevels);
  double level_pixels = 0, level_taps = 0;
  for (int32_t i = 0; i < s.num_levels; ++i) {
    const Level& level = s.levels[i];
    REQUIRE(level.height >= 0 && level.width >= 0 && level.taps >= 0);
    REQUIRE(level.first_pixel == level_pixels && level.first_tap == level_taps);
    level_pixels += double(level.height) * level.width;
    level_taps += level.taps;
  }
  REQUIRE(level_pixels == s.pixels && level_taps == s.taps && level_taps < k32);
  if (s.sampling == SamplingMethod::kWindow) {
    for (int axis = 0; axis < 2; ++axis) {
      REQUIRE(s.window.kernel[axis] >= 1 && s.window.strides[axis] >= 1 && s.window.dilation[axis] >= 1);
      REQUIRE((s.window.kernel[axis] - 1.) * s.window.dilation[axis] < k32);
    }
    REQUIRE(double(s.window.kernel[0]) * s.window.kernel[1] < k32 && s.window.taps() - s.remove_center == s.taps);
  }
  // A kernel uses one warp per query and head, and packs flags into the indices of pixels.
  REQUIRE(TapCount(s) * 2 < k64 && OutCount(s) < k64 && ValueCount(s) * 8 < k64);
  REQUIRE(double(s.batches) * s.rows * s.columns * s.heads * 32 < k64);
  REQUIRE(contract.Holds(taps.locations, 2 * TapCount(s), AccumulatorSize(dtype)));
  REQUIRE(contract.Holds(taps.weights, TapCount(s), AccumulatorSize(dtype)));
  REQUIRE(contract.Holds(taps.origin, 2, 4));
  REQUIRE(contract.Holds(out, OutCount(s), BytesOf(dtype)));
}

}  // namespace

const char* Aggregate(Device&, DType dtype, const AggregationSizes& s, const Taps& taps, const void* value, void* out) {
  CheckAggregation(dtype, s, taps, out);
  REQUIRE(contract.Holds(value, ValueCount(s), BytesOf(dtype)));
  return nullptr;
}

// A table has, for each sample, a record of four numbers, an id and the start of a row; and the starts of the cells.
int64_t MinWorkspaceSize(DType dtype, const AggregationSizes& s) {
  if (!kNeedsWorkspace) return 0;
  int64_t cells = 0;
  for (int32_t i = 0; i < s.num_levels; ++i) cells += (s.levels[i].height + int64_t{1}) * (s.levels[i].width + 1);
  return (int64_t(AccumulatorSize(dtype)) + 2) * s.queries() * s.taps + cells + 1;
}

const char* ValueCotangent(Device&, DType dtype, const AggregationSizes& s, const Taps& taps, const void* d_out,
                           bool is_wide, void* d_value, int32_t* workspace, int64_t workspace_size) {
  CheckAggregation(dtype, s, taps, d_out);
  REQUIRE(contract.Holds(d_value, ValueCount(s), is_wide ? AccumulatorSize(dtype) : BytesOf(dtype)));
  if (!kNeedsWorkspace) return nullptr;
  double cells = 0;
  for (int32_t i = 0; i < s.num_levels; ++i) cells += (s.levels[i].height + 1.) * (s.levels[i].width + 1.);
  const double samples = double(s.rows) * s.columns * s.taps;
  REQUIRE(samples + cells < k32 && double(s.heads) * s.channels * BytesOf(dtype) < k32);
  REQUIRE(double(s.batches) * s.heads * (samples + cells) * 32 < k64);
  REQUIRE(workspace_size >= (AccumulatorSize(dtype) + 2) * samples + cells + 1);
  REQUIRE(contract.Holds(workspace, double(workspace_size), 4));
  return nullptr;
}

const char* TapCotangents(Device& device, DType dtype, const AggregationSizes& s, const Taps& taps, const void* value,
                          const void* d_out, void* d_locations, void* d_weights) {
  Aggregate(device, dtype, s, taps, value, const_cast<void*>(d_out));
  REQUIRE(!d_locations || contract.Holds(d_locations, 2 * TapCount(s), AccumulatorSize(dtype)));
  REQUIRE(!d_weights || contract.Holds(d_weights, TapCount(s), AccumulatorSize(dtype)));
  return nullptr;
}

namespace {

double ImageCount(const SamplingSizes& s) { return double(s.batches) * s.pixels() * s.channels; }
double LocationCount(const SamplingSizes& s) { return double(s.batches) * s.points * s.dims; }
double SampleTaps(const SamplingSizes& s) {
  return s.dims == 3 ? 8 : s.rules.interpolation == Interpolation::kCubic ? 16 : 4;
}

void CheckSampling(DType dtype, const SamplingSizes& s, const void* locations, const void* out) {
  REQUIRE(s.batches >= 0 && 0 <= s.points && s.points < k32 && s.channels >= 0);
  REQUIRE(1 <= s.dims && s.dims <= kMaxAxes);
  double pixels = 1;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    REQUIRE(0 <= s.size[axis] && s.size[axis] < kMaxAxisSize && (axis < s.dims || s.size[axis] == 1));
    pixels *= s.size[axis];
  }
  REQUIRE(pixels < k32 && s.points * SampleTaps(s) < k32 && double(s.channels) * BytesOf(dtype) < k32);
  REQUIRE(s.rules.interpolation != Interpolation::kCubic || s.dims == 2);
  REQUIRE(contract.Holds(locations, LocationCount(s), AccumulatorSize(dtype)));
  REQUIRE(contract.Holds(out, double(s.batches) * s.points * s.channels, BytesOf(dtype)));
}

}  // namespace

const char* Sample(Device&, DType dtype, const SamplingSizes& s, const void* x, const void* locations, void* out) {
  CheckSampling(dtype, s, locations, out);
  REQUIRE(contract.Holds(x, ImageCount(s), BytesOf(dtype)));
  return nullptr;
}

// A table has, for each pixel of a sample, a record of two numbers and an id; and the starts of the pixels.
int64_t MinWorkspaceSize(DType dtype, const SamplingSizes& s) {
  const int64_t words = int64_t(AccumulatorSize(dtype)) / 2 + 1;
  return kNeedsWorkspace ? words * int64_t(SampleTaps(s)) * s.points + s.pixels() + 1 : 0;
}

const char* SamplingXCotangent(Device&, DType dtype, const SamplingSizes& s, const void* locations, const void* d_out,
                               bool is_wide, void* d_x, int32_t* workspace, int64_t workspace_size) {
  CheckSampling(dtype, s, locations, d_out);
  REQUIRE(contract.Holds(d_x, ImageCount(s), is_wide ? AccumulatorSize(dtype) : BytesOf(dtype)));
  REQUIRE(workspace_size >= MinWorkspaceSize(dtype, s));
  REQUIRE(contract.Holds(workspace, double(workspace_size), 4));
  return nullptr;
}

const char* SamplingLocationsCotangent(Device& device, DType dtype, const SamplingSizes& s, const void* x,
                                       const void* locations, const void* d_out, void* d_locations) {
  Sample(device, dtype, s, x, locations, const_cast<void*>(d_out));
  REQUIRE(contract.Holds(d_locations, LocationCount(s), AccumulatorSize(dtype)));
  return nullptr;
}

}  // namespace dcn
