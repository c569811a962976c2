// Calls every function of the kernels' headers on small operands, to be run in the PTX interpreter, or on a GPU under a
// sanitizer. Operands are random, of every type, and cover the edge cases of shapes and sampling locations. Each
// operand is a separate allocation of exactly its size, so that accesses past its end are found. `launches FILE` writes
// the results to a file.
//
// With --leave-unwritten, results and workspaces are not filled in advance, for compute-sanitizer's initcheck: it
// reports elements that kernels, or the copies to the host, read before they are written.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "aggregation/aggregation.h"
#include "cuda/launch.h"
#include "deform_conv/deform_conv.h"
#include "roi_pool/roi_pool.h"
#include "sampling/sampling.h"

namespace dcn {
namespace {

constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

std::mt19937 generator;
bool fills_unwritten = true;
std::FILE* results = nullptr;  // to which results are written, to be compared: name, type and bytes of each

double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(generator); }

// A special coordinate: on the border, far outside, infinite or NaN.
double SpecialValue() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double kValues[] = {-1, 0, 1, 5, 1e30, -3e9, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  return kValues[generator() % (sizeof kValues / sizeof *kValues)];
}

void Check(const char* failure) {
  if (!failure) failure = Failure(cudaDeviceSynchronize());
  if (!failure) return;
  std::printf("%s\n", failure);
  std::exit(1);
}

// Random numbers in [-limit, limit], of which a fraction `special` are special values.
template <typename T>
std::vector<T> RandomNumbers(int64_t size, double limit, double special = 0) {
  std::vector<T> values;
  for (int64_t i = 0; i < size; ++i)
    values.push_back(T(Uniform(0, 1) < special ? SpecialValue() : Uniform(-limit, limit)));
  return values;
}

// An array in device memory. If fills_unwritten, unwritten elements have the byte `unwritten` everywhere. By default
// all bits are set, which no operand or result of floating-point numbers has, not even a NaN.
class Array {
 public:
  template <typename T>
  static Array Of(const std::vector<T>& values) {
    Array array(values.size(), sizeof(T));
    Check(Failure(cudaMemcpy(array.data(), values.data(), array.bytes_, cudaMemcpyHostToDevice)));
    return array;
  }

  static Array Random(DType dtype, int64_t size, double limit, double special = 0) {
    Array array = Dispatch<__half, __nv_bfloat16>(
        dtype, [&](auto tag) { return Of(RandomNumbers<decltype(tag)>(size, limit, special)); });
    array.dtype_ = dtype;
    return array;
  }

  static Array Unwritten(DType dtype, int64_t size) {
    Array array(size, Dispatch<__half, __nv_bfloat16>(dtype, [](auto tag) { return sizeof tag; }));
    array.dtype_ = dtype;
    return array;
  }

  static Array Integers(int64_t size, unsigned char unwritten = 0xff) {
    return Array(size, sizeof(int32_t), unwritten);
  }

  template <typename T = void>
  T* data() {
    return static_cast<T*>(memory_.get());
  }

  // Checks that `count` elements from `first` on are written, by default all, and no others.
  void CheckWritten(const char* name, int64_t first = 0, int64_t count = INT32_MAX) const {
    std::vector<unsigned char> bytes(bytes_);
    const std::vector<unsigned char> unwritten(element_, unwritten_);
    const size_t begin = fills_unwritten ? 0 : first * element_;
    const size_t size = fills_unwritten ? bytes_ : std::min(uint64_t(count) * element_, bytes_ - begin);
    const char* const source = static_cast<const char*>(memory_.get()) + begin;
    Check(Failure(cudaMemcpy(bytes.data() + begin, source, size, cudaMemcpyDeviceToHost)));
    if (!fills_unwritten) return;
    for (size_t i = 0; i < bytes_; i += element_) {
      const int64_t element = int64_t(i / element_);
      const bool is_written = std::memcmp(&bytes[i], unwritten.data(), element_) != 0;
      if (is_written == (element >= first && element - first < count)) continue;
      std::printf("element %lld of %s is %swritten\n", (long long)element, name, is_written ? "" : "not ");
      std::exit(1);
    }
    if (!results) return;
    std::fprintf(results, "%s %d %zu\n", name, int(dtype_), bytes_);
    if (bytes_) std::fwrite(bytes.data(), 1, bytes_, results);
  }

 private:
  struct Free {
    void operator()(void* address) const { cudaFree(address); }
  };

  Array(size_t size, size_t element, unsigned char unwritten = 0xff)
      : element_(element), bytes_(size * element), unwritten_(unwritten) {
    void* address = nullptr;
    Check(Failure(cudaMalloc(&address, bytes_)));
    memory_.reset(address);
    if (bytes_ && fills_unwritten) Check(Failure(cudaMemset(address, unwritten_, bytes_)));
  }

  size_t element_, bytes_;
  unsigned char unwritten_;
  DType dtype_ = DType::kF32;
  std::unique_ptr<void, Free> memory_;
};

// Boxes of all sizes, some with special values for corners. Image indices go from -1 to `images`, one past the last.
Array RandomBoxes(DType dtype, int64_t count, int64_t images) {
  return DispatchAccumulator(dtype, [&](auto tag) {
    std::vector<decltype(tag)> boxes = RandomNumbers<decltype(tag)>(count * 5, 8, 0.05);
    for (int64_t i = 0; i < count; ++i) boxes[i * 5] = decltype(tag)(i % (images + 2) - 1);
    return Array::Of(boxes);
  });
}

DType AccumulatorType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Sorts the samples of all images and rows of the positions, of which d_columns has those of the part.
void CallXCotangent(DType dtype, const Sizes& part, const Positions& positions, Array& d_columns, bool is_rounded) {
  Sizes all = part;
  all.images = part.images_of_positions;
  all.rows = part.rows_of_positions;
  const int64_t tables = all.images * all.offset_groups, samples = tables * all.samples();
  const DType wide = AccumulatorType(dtype);
  Device device(nullptr);

  Array records = Array::Unwritten(wide, 4 * samples);
  Array cell_start = Array::Integers(tables * (all.cells() + 1)), workspace = Array::Integers(samples);
  const SortedSamples sorted = {records.data(), cell_start.data<int32_t>()};
  Check(SortSamples(device, dtype, all, positions, sorted, workspace.data<int32_t>()));
  cell_start.CheckWritten("starts of cells");

  const GatherSizes sizes = {part.images,          part.height,    part.width,       part.channels, part.offset_groups,
                             part.window.circular, part.samples(), part.images_of_x, all.images,    all.samples()};
  const int32_t is_in_first_image = all.images > part.images;  // of x; then the samples are not those of the first
  const int32_t first_sample = int32_t(all.samples() - part.samples());
  Array start = Array::Of(std::vector<int32_t>{1 - is_in_first_image, is_in_first_image, first_sample});
  Array d_x = Array::Random(is_rounded ? dtype : wide, part.images_of_x * part.height * part.width * part.channels, 1);
  Check(GatherSamples(device, dtype, sizes, sorted, start.data<int32_t>(), d_columns.data(), is_rounded, d_x.data()));
  d_x.CheckWritten("d_x");
}

// The positions have more images than the part if there is a mask, and else, if it has one image, more rows.
void CallDeformConv(DType dtype, Sizes sizes, bool has_mask) {
  sizes.images_of_positions = sizes.images + has_mask;
  sizes.rows_of_positions = sizes.rows + (!has_mask && sizes.images <= 1);
  const DType wide = AccumulatorType(dtype);
  const int64_t positions_size =
      sizes.images_of_positions * sizes.rows_of_positions * sizes.columns * sizes.pixel_samples();
  const int64_t columns_size = sizes.pixels() * sizes.taps() * sizes.channels;
  const int64_t pixels = sizes.height * sizes.width * sizes.channels;
  Device device(nullptr);

  Array x = Array::Random(dtype, sizes.images_of_x * pixels, 1);
  Array offset = Array::Random(wide, 2 * positions_size, 3, 0.1);
  Array mask = Array::Random(wide, positions_size, 1);
  const std::vector<int32_t> start = {1, 0, 1, 1};
  const int64_t first_sample = sizes.first_sample(start.data());
  const int64_t samples = sizes.images * sizes.samples() * sizes.offset_groups;
  Array origin = Array::Of(start);
  const Positions positions = {offset.data(), has_mask ? mask.data() : nullptr, origin.data<int32_t>()};

  Array columns = Array::Unwritten(dtype, columns_size);
  Check(SampleColumns(device, dtype, sizes, positions, x.data(), columns.data()));
  columns.CheckWritten("columns");

  Array x_tangent = Array::Random(dtype, sizes.images_of_x * pixels, 1);
  Array offset_tangent = Array::Random(wide, 2 * positions_size, 1);
  Array mask_tangent = Array::Random(wide, positions_size, 1);
  Array both = Array::Unwritten(dtype, 2 * columns_size), tangents_only = Array::Unwritten(dtype, columns_size);
  const Tangents all = {x_tangent.data(), offset_tangent.data(), has_mask ? mask_tangent.data() : nullptr};
  const Tangents of_offset = {nullptr, offset_tangent.data(), nullptr};
  Check(SampleTangents(device, dtype, sizes, positions, all, x.data(), true, both.data()));
  both.CheckWritten("tangents and columns");
  Check(SampleTangents(device, dtype, sizes, positions, of_offset, x.data(), false, tangents_only.data()));
  tangents_only.CheckWritten("tangents");

  Array d_columns = Array::Random(Device::kRoundsColumnCotangents ? dtype : wide, columns_size, 1);
  Array d_offset = Array::Unwritten(wide, 2 * positions_size), d_mask = Array::Unwritten(wide, positions_size);
  Array requested_columns = Array::Unwritten(dtype, columns_size);
  Check(OffsetCotangent(device, dtype, sizes, positions, x.data(), d_columns.data(),
                        has_mask ? nullptr : d_offset.data(), has_mask ? d_mask.data() : nullptr,
                        has_mask ? requested_columns.data() : nullptr));
  if (has_mask) d_mask.CheckWritten("d_mask", first_sample, samples);
  if (has_mask) requested_columns.CheckWritten("requested columns");
  if (!has_mask) d_offset.CheckWritten("d_offset", 2 * first_sample, 2 * samples);

  CallXCotangent(dtype, sizes, positions, d_columns, false);
  sizes.rows_of_positions = sizes.rows;
  if (BytesOf(dtype) == 2) CallXCotangent(dtype, sizes, positions, d_columns, true);
}

void CallMaxPool(DType dtype, const PoolSizes& sizes, const Rois& rois, Array& x, Array& d_pooled) {
  const int64_t x_size = sizes.batches * sizes.images * sizes.height * sizes.width * sizes.channels;
  const int64_t pooled_size = sizes.batches * sizes.rois * sizes.bins() * sizes.channels;
  const Rois boxes = {rois.boxes, nullptr};
  Device device(nullptr);

  Array pooled = Array::Unwritten(dtype, pooled_size);
  Check(MaxPool(device, dtype, sizes, boxes, x.data(), pooled.data()));
  pooled.CheckWritten("the pooled maxima");
  Array argmax = Array::Integers(2 * pooled_size, 0x7f);  // larger than any index; all bits set would be -1
  Check(MaxPoolArgmax(device, dtype, sizes, boxes, x.data(), argmax.data<int32_t>()));
  argmax.CheckWritten("the argmax");
  Array d_x = Array::Unwritten(AccumulatorType(dtype), x_size);
  Check(MaxPoolXCotangent(device, dtype, sizes, boxes, d_pooled.data(), argmax.data<int32_t>(), d_x.data()));
  d_x.CheckWritten("d_x of the pooled maxima");
}

void CallPool(DType dtype, const PoolSizes& sizes, bool has_offset) {
  const DType wide = AccumulatorType(dtype);
  const int64_t x_size = sizes.batches * sizes.images * sizes.height * sizes.width * sizes.channels;
  const int64_t num_rois = sizes.batches * sizes.rois, pooled_size = num_rois * sizes.bins() * sizes.features();
  const int64_t offset_size = num_rois * sizes.part[0] * sizes.part[1] * sizes.classes * 2;
  Device device(nullptr);

  Array x = Array::Random(dtype, x_size, 1), d_pooled = Array::Random(dtype, pooled_size, 1);
  Array boxes = RandomBoxes(wide, num_rois, sizes.images), offset = Array::Random(wide, offset_size, 2, 0.1);
  const Rois rois = {boxes.data(), has_offset ? offset.data() : nullptr};

  Array pooled = Array::Unwritten(dtype, pooled_size);
  Check(Pool(device, dtype, sizes, rois, x.data(), pooled.data()));
  pooled.CheckWritten("pooled");
  Array d_x = Array::Unwritten(wide, x_size);
  Check(PoolXCotangent(device, dtype, sizes, rois, d_pooled.data(), d_x.data()));
  d_x.CheckWritten("d_x");
  if (sizes.groups() == 1 && sizes.classes == 1) CallMaxPool(dtype, sizes, rois, x, d_pooled);
  if (!has_offset) return;
  Array d_offset = Array::Unwritten(wide, offset_size);
  Check(PoolOffsetCotangent(device, dtype, sizes, rois, x.data(), d_pooled.data(), d_offset.data()));
  d_offset.CheckWritten("d_offset");
}

// `levels` have only their sizes and taps, except in SamplingMethod::kWindow, whose level follows from the grid.
AggregationSizes WithLevels(AggregationSizes sizes, std::vector<Level> levels) {
  if (sizes.sampling == SamplingMethod::kWindow) levels[0].taps = sizes.window.taps() - sizes.remove_center;
  for (Level& level : levels) {
    level.first_tap = sizes.taps;
    level.first_pixel = sizes.pixels;
    sizes.taps += level.taps;
    sizes.pixels += int64_t{level.height} * level.width;
    sizes.levels[sizes.num_levels++] = level;
  }
  return sizes;
}

struct Aggregation {
  AggregationSizes sizes;  // without levels
  std::vector<Level> levels;
  int64_t tables_at_once;
};

void CallAggregation(DType dtype, const Aggregation& call, bool is_wide) {
  const AggregationSizes sizes = WithLevels(call.sizes, call.levels);
  const DType wide = AccumulatorType(dtype);
  const int64_t taps_size = sizes.batches * sizes.queries() * sizes.heads * sizes.taps;
  const int64_t value_size = sizes.batches * sizes.pixels * sizes.heads * sizes.channels;
  const int64_t out_size = sizes.batches * sizes.queries() * sizes.heads * sizes.channels;
  Device device(nullptr);

  Array value = Array::Random(dtype, value_size, 1), d_out = Array::Random(dtype, out_size, 1);
  Array locations = Array::Random(wide, 2 * taps_size, sizes.sampling == SamplingMethod::kWindow ? 3 : 1.2, 0.1);
  Array weights = Array::Random(wide, taps_size, 1);
  Array origin = Array::Of(std::vector<int32_t>{1, 2});
  const Taps taps = {locations.data(), weights.data(), origin.data<int32_t>()};

  Array out = Array::Unwritten(dtype, out_size);
  Check(Aggregate(device, dtype, sizes, taps, value.data(), out.data()));
  out.CheckWritten("out");
  Array d_locations = Array::Unwritten(wide, 2 * taps_size), d_weights = Array::Unwritten(wide, taps_size);
  Check(TapCotangents(device, dtype, sizes, taps, value.data(), d_out.data(), d_locations.data(),
                      is_wide ? nullptr : d_weights.data()));
  d_locations.CheckWritten("d_locations");
  if (!is_wide) d_weights.CheckWritten("d_weights");
  Array d_value = Array::Unwritten(is_wide ? wide : dtype, value_size);
  const int64_t workspace_size = MinWorkspaceSize(dtype, sizes) * call.tables_at_once;
  Array workspace = Array::Integers(workspace_size);
  Check(ValueCotangent(device, dtype, sizes, taps, d_out.data(), is_wide, d_value.data(), workspace.data<int32_t>(),
                       workspace_size));
  d_value.CheckWritten("d_value");
}

void CallSampling(DType dtype, const SamplingSizes& sizes, bool is_wide) {
  const DType wide = AccumulatorType(dtype);
  const int64_t x_size = sizes.batches * sizes.pixels() * sizes.channels;
  const int64_t out_size = sizes.batches * sizes.points * sizes.channels;
  const int64_t locations_size = sizes.batches * sizes.points * sizes.dims;
  Device device(nullptr);

  Array x = Array::Random(dtype, x_size, 1), d_out = Array::Random(dtype, out_size, 1);
  Array locations = Array::Random(wide, locations_size, sizes.rules.units == Units::kPixels ? 9 : 1.5, 0.1);
  Array out = Array::Unwritten(dtype, out_size);
  Check(Sample(device, dtype, sizes, x.data(), locations.data(), out.data()));
  out.CheckWritten("samples");
  Array d_locations = Array::Unwritten(wide, locations_size);
  Check(SamplingLocationsCotangent(device, dtype, sizes, x.data(), locations.data(), d_out.data(), d_locations.data()));
  d_locations.CheckWritten("d_locations of samples");
  Array d_x = Array::Unwritten(is_wide ? wide : dtype, x_size);
  const int64_t workspace_size = MinWorkspaceSize(dtype, sizes) * 2;  // two images at a time
  Array workspace = Array::Integers(workspace_size);
  Check(SamplingXCotangent(device, dtype, sizes, locations.data(), d_out.data(), is_wide, d_x.data(),
                           workspace.data<int32_t>(), workspace_size));
  d_x.CheckWritten("d_x of samples");
}

// Window: kernel, strides, padding, dilation, circular. Then images, height, width, channels, rows, columns, offset
// groups, images of x.
const Sizes kConvolutions[] = {
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 1, 3, 4, 8, 2, 2, 1, 1},
    {{{2, 1}, {2, 1}, {0, 1}, {1, 2}, false}, 2, 4, 3, 48, 2, 2, 3, 4},
    {{{1, 3}, {1, 2}, {-1, 0}, {1, 1}, false}, 2, 3, 5, 20, 2, 2, 2, 3},
    {{{2, 2}, {1, 1}, {1, 1}, {2, 3}, true}, 1, 3, 4, 15, 2, 2, 3, 2},
    {{{2, 2}, {1, 1}, {0, 0}, {1, 1}, true}, 2, 1, 1, 1, 1, 1, 1, 2},
    {{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false}, 1, 64, 66, 1, 1, 2, 1, 1},     // several bins of cells, few samples
    {{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false}, 1, 512, 511, 1, 1, 40, 1, 1},  // bins too long for shared memory
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, true}, 1, 3, 4, 1, 50, 20, 1, 1},      // several parts of samples in few cells
    {{{2, 2}, {1, 1}, {1, 1}, {1, 1}, true}, 2, 1, 1, 1, 20, 20, 1, 2},      // all samples in one cell
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 0, 3, 4, 8, 3, 4, 1, 2},
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 1, 0, 4, 8, 2, 4, 1, 2},
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 1, 3, 4, 0, 3, 4, 1, 2},
    {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 1, 3, 4, 8, 0, 4, 1, 2},
};

// Batches, points, channels; axes and sizes; rules; whether locations are planar.
const SamplingSizes kSamplings[] = {
    {3, 7, 3, 2, {3, 4, 1}, {Interpolation::kLinear, Units::kEdges, Fold::kNone, Outside::kZero}, false},
    {1, 40, 16, 2, {3, 2, 1}, {Interpolation::kLinear, Units::kCorners, Fold::kReflect, Outside::kZero}, false},
    {2, 9, 40, 3, {2, 3, 2}, {Interpolation::kLinear, Units::kEdges, Fold::kClip, Outside::kZero}, false},
    {1, 9, 8, 2, {3, 5, 1}, {Interpolation::kCubic, Units::kEdges, Fold::kNone, Outside::kReflect}, false},
    {1, 9, 3, 2, {3, 5, 1}, {Interpolation::kCubic, Units::kCorners, Fold::kNone, Outside::kMirror}, false},
    {1, 9, 3, 3, {3, 2, 2}, {Interpolation::kLinear, Units::kCorners, Fold::kReflect, Outside::kZero}, false},
    {1, 33, 1, 1, {5, 1, 1}, {Interpolation::kLinear, Units::kPixels, Fold::kNone, Outside::kWrap}, true},
    {2, 5, 4, 3, {2, 1, 3}, {Interpolation::kRounded, Units::kPixels, Fold::kNone, Outside::kMirror}, true},
    {1, 5, 2, 2, {4, 4, 1}, {Interpolation::kNearest, Units::kCorners, Fold::kClip, Outside::kZero}, false},
    {2, 700, 3, 2, {1, 2, 1}, {Interpolation::kLinear, Units::kEdges, Fold::kClip, Outside::kZero}, false},
    {1, 5, 2, 2, {0, 4, 1}, {Interpolation::kLinear, Units::kPixels, Fold::kNone, Outside::kClip}, true},
    {2, 0, 2, 2, {4, 4, 1}, {Interpolation::kLinear, Units::kEdges, Fold::kNone, Outside::kZero}, false},
};

// Batches, images, height, width, channels, regions, classes; output, group, part, points (0: adaptive);
// convention, scale and trans_std.
const PoolSizes kPools[] = {
    {1, 2, 5, 6, 12, 4, 1, {2, 3}, {1, 2}, {2, 2}, {2, 3}, RoiConvention::kRounded, 0.5, 0.2},
    {2, 1, 4, 7, 36, 3, 3, {3, 2}, {3, 2}, {2, 3}, {2, 2}, RoiConvention::kRounded, 1, 0.1},
    {1, 1, 2, 3, 8, 70, 1, {2, 2}, {1, 1}, {2, 1}, {1, 1}, RoiConvention::kRounded, 0.5, 0.1},  // more bins than
                                                                                                // threads in a block
    {1, 1, 3, 2, 16, 3, 1, {2, 2}, {1, 1}, {2, 2}, {1, 2}, RoiConvention::kRounded, 0.5, 0.1},
    {1, 1, 1, 1, 3, 5, 3, {1, 1}, {1, 1}, {1, 1}, {1, 1}, RoiConvention::kRounded, 0.25, 0.5},
    {1, 1, 0, 6, 4, 2, 1, {2, 2}, {1, 1}, {1, 1}, {2, 2}, RoiConvention::kRounded, 1, 0.1},
    {1, 2, 5, 6, 4, 0, 1, {2, 2}, {1, 1}, {1, 1}, {2, 2}, RoiConvention::kRounded, 1, 0.1},
    {1, 2, 5, 6, 0, 3, 1, {2, 2}, {1, 1}, {1, 1}, {2, 2}, RoiConvention::kRounded, 1, 0.1},
    {1, 2, 5, 6, 0, 3, 1, {2, 2}, {1, 1}, {1, 1}, {2, 2}, RoiConvention::kRounded, 1, 0.1},  // with offsets, or without
    {0, 2, 5, 6, 4, 3, 1, {2, 2}, {1, 1}, {1, 1}, {2, 2}, RoiConvention::kRounded, 1, 0.1},
    {1, 2, 5, 6, 8, 4, 1, {2, 3}, {1, 1}, {2, 3}, {2, 1}, RoiConvention::kAligned, 0.5, 0.1},
    {1, 1, 6, 3, 12, 5, 1, {3, 2}, {1, 1}, {3, 2}, {0, 0}, RoiConvention::kAligned, 1, 0.1},
    {2, 1, 3, 7, 5, 3, 1, {2, 2}, {1, 1}, {2, 2}, {0, 3}, RoiConvention::kUnaligned, 1, 0.1},
    {1, 1, 5, 4, 12, 3, 1, {3, 2}, {3, 2}, {3, 2}, {0, 0}, RoiConvention::kAligned, 0.5, 0.1},
    {1, 1, 9, 40, 1, 90, 1, {2, 2}, {1, 1}, {2, 2}, {1, 1}, RoiConvention::kAligned, 64, 0.1},  // several tiles wide
};

// Batches, heads, channels, no pixels yet, rows and columns of queries, no taps and levels yet, sampling, whether
// the center is removed, window and scale. Then levels: height, width, taps. Then how many
// heads of an example are sorted at once.
const Aggregation kAggregations[] = {
    {{2, 3, 16, 0, 5, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0},
     {{2, 2, 0}, {4, 5, 3}, {1, 2, 0}, {0, 3, 1}, {2, 3, 5}, {1, 1, 0}},
     2},
    {{1, 2, 8, 0, 40, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0},
     {{2, 2, 6}, {1, 1, 4}},
     2},  // many samples in few cells
    {{1, 1, 72, 0, 3, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {{2, 1, 0}, {3, 7, 2}}, 1},
    {{1, 1, 264, 0, 2, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0},
     {{3, 2, 1}},
     1},  // more vectors than lanes
    {{2, 2, 5, 0, 4, 1, 0, 0, {}, SamplingMethod::kDiscrete, false, {}, 0}, {{3, 4, 4}, {2, 1, 1}}, 3},
    {{1, 2, 24, 0, 3, 4, 0, 0, {}, SamplingMethod::kWindow, true, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, false}, 1.5},
     {{5, 6, 0}},
     2},
    {{2, 1, 3, 0, 2, 3, 0, 0, {}, SamplingMethod::kWindow, false, {{2, 1}, {2, 1}, {0, -1}, {1, 2}, false}, 0.5},
     {{4, 3, 0}},
     1},
    {{0, 2, 8, 0, 3, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {{3, 4, 2}}, 1},
    {{1, 0, 8, 0, 3, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {{3, 4, 2}}, 1},
    {{1, 2, 0, 0, 3, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {{3, 4, 2}}, 1},
    {{1, 2, 8, 0, 0, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {{3, 4, 2}}, 1},
    {{1, 2, 8, 0, 3, 1, 0, 0, {}, SamplingMethod::kBilinear, false, {}, 0}, {}, 1},
    {{1, 2, 8, 0, 3, 1, 0, 0, {}, SamplingMethod::kDiscrete, false, {}, 0}, {{0, 4, 2}}, 1},
};

}  // namespace
}  // namespace dcn

int main(int num_arguments, char** arguments) {
  for (int i = 1; i < num_arguments; ++i) {
    if (std::strcmp(arguments[i], "--leave-unwritten") == 0) {
      dcn::fills_unwritten = false;
    } else {
      dcn::results = std::fopen(arguments[i], "wb");
    }
  }
  int iteration = 0;
  for (const dcn::DType dtype : dcn::kTypes) {
    for (const dcn::Sizes& sizes : dcn::kConvolutions) dcn::CallDeformConv(dtype, sizes, iteration++ % 2);
    for (const dcn::PoolSizes& sizes : dcn::kPools) dcn::CallPool(dtype, sizes, iteration++ % 2);
    for (const dcn::Aggregation& call : dcn::kAggregations) dcn::CallAggregation(dtype, call, iteration++ % 2);
    for (const dcn::SamplingSizes& sizes : dcn::kSamplings) dcn::CallSampling(dtype, sizes, iteration++ % 2);
    ++iteration;  // so that a case alternates between types in having the optional operand
  }
  std::puts("every launch is done");
}
