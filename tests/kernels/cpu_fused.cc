// Runs the fused convolution of the CPU and its cotangents, with the instruction set of the processor or the one that
// JAX_DCN_CPU_INSTRUCTIONS names, and compares all results with plain loops. Shapes have tails in every dimension.
//
// Operands are multiples of a power of two so small that every sum is exact: results must be equal to the bit. Each
// operand, result and buffer of the kernels ends where an inaccessible page begins, since sanitizers do not
// instrument loads into AMX's tile registers. What is not written yet is NaN.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "bilinear.h"
#include "deform_conv/fused.h"
#include "device.h"
#include "element.h"
#include "xla/ffi/api/ffi.h"

namespace {

struct Mapping {
  void* start;
  size_t size;
};

// Memory that ends at an inaccessible page, up to `alignment`. Before it, its mapping is stored.
void* AllocateBeforeGuard(size_t size, size_t alignment) {
  static const size_t page = sysconf(_SC_PAGESIZE);  // 4 KiB on x86, up to 64 KiB on aarch64
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  const size_t pages = (rounded + 64 + page - 1) / page * page;
  void* const start = mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  mprotect(static_cast<char*>(start) + pages, page, PROT_NONE);
  char* const memory = static_cast<char*>(start) + pages - rounded;
  const Mapping mapping = {start, pages + page};
  std::memcpy(memory - sizeof mapping, &mapping, sizeof mapping);
  return memory;
}
void FreeBeforeGuard(void* memory) {
  if (!memory) return;
  Mapping mapping;
  std::memcpy(&mapping, static_cast<char*>(memory) - sizeof mapping, sizeof mapping);
  munmap(mapping.start, mapping.size);
}

}  // namespace

// The kernels' buffers are aligned; with sanitizers, they stay on the heap, which checks their beginning, too.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t size, std::align_val_t alignment) { return AllocateBeforeGuard(size, size_t(alignment)); }
void operator delete(void* memory, std::align_val_t) noexcept { FreeBeforeGuard(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { FreeBeforeGuard(memory); }
#endif

namespace dcn {
namespace {

std::mt19937 generator;

template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : size_(size), data_(static_cast<T*>(AllocateBeforeGuard(size * sizeof(T), sizeof(T)))) {
    for (int64_t i = 0; i < size; ++i) data_[i] = T(std::numeric_limits<float>::quiet_NaN());
  }
  // Random multiples of `step` in [-limit, limit] · step.
  Array(int64_t size, int limit, float step) : Array(size) {
    for (int64_t i = 0; i < size; ++i) data_[i] = T(float(int(generator() % (2 * limit + 1)) - limit) * step);
  }
  ~Array() { FreeBeforeGuard(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return data_; }
  float operator[](int64_t i) const { return float(data_[i]); }

  void Check(const char* name, const std::vector<double>& expected) const {
    for (int64_t i = 0; i < size_; ++i) {
      const float must = float(T(float(expected[i])));
      if (float(data_[i]) == must) continue;
      std::printf("element %lld of %s is %g, must be %g\n", static_cast<long long>(i), name, double(data_[i]), must);
      std::exit(1);
    }
  }
  void CheckNotWritten(const char* name) const {
    for (int64_t i = 0; i < size_; ++i) {
      if (float(data_[i]) != float(data_[i])) continue;
      std::printf("element %lld of %s is %g, must not be written\n", static_cast<long long>(i), name, double(data_[i]));
      std::exit(1);
    }
  }

 private:
  int64_t size_;
  T* data_;
};

// XLA's thread pool.
constexpr int64_t kThreads = 3;
std::vector<std::thread> threads;

XLA_FFI_Error* NumThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = kThreads;
  return nullptr;
}
XLA_FFI_Error* Schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  threads.emplace_back(args->task, args->data);
  return nullptr;
}

template <typename Call>
void Run(const Call& call) {
  XLA_FFI_Api api = {};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_ThreadPool_NumThreads = NumThreads;
  api.XLA_FFI_ThreadPool_Schedule = Schedule;
  xla::ffi::DiagnosticEngine diagnostic;
  auto pool = xla::ffi::CtxDecoding<xla::ffi::ThreadPool>::Decode(&api, nullptr, diagnostic);
  Device device(*pool);
  if (const char* failure = call(device)) {
    std::printf("%s\n", failure);
    std::exit(1);
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

struct Shape {
  int64_t images, height, width, channels, offset_groups, groups, features, rows, columns;
  int32_t kernel[2];
  bool has_mask = true, circular = false, is_on_grid = false;

  // The ordinary convolution of these sizes.
  Shape OnGrid() const {
    Shape shape = *this;
    shape.offset_groups = 1;
    shape.has_mask = false;
    shape.is_on_grid = true;
    return shape;
  }
};

template <typename T>
class Test {
 public:
  explicit Test(const Shape& shape)
      : sizes_{{{shape.kernel[0], shape.kernel[1]}, {1, 2}, {1, 0}, {2, 1}, shape.circular},
               shape.images,
               shape.height,
               shape.width,
               shape.channels,
               shape.rows,
               shape.columns,
               shape.offset_groups,
               shape.images},
        product_{shape.features, shape.groups},
        samples_(sizes_.pixels() * shape.offset_groups * sizes_.taps()),
        x_(shape.images * shape.height * shape.width * shape.channels, 2, 1),
        weight_(sizes_.taps() * shape.channels / shape.groups * shape.features, 2, 1),
        d_y_(sizes_.pixels() * shape.features, 2, 1),
        offset_(2 * samples_, shape.is_on_grid ? 0 : 5, 0.5f),
        mask_(samples_, 2, 0.5f),
        bias_(shape.features, 4, 1),
        is_on_grid_(shape.is_on_grid),
        positions_{is_on_grid_ ? nullptr : offset_.data(), shape.has_mask ? mask_.data() : nullptr, origin_},
        y_(d_y_size()),
        d_x_(shape.images * shape.height * shape.width * shape.channels),
        d_weight_(sizes_.taps() * shape.channels / shape.groups * shape.features),
        d_offset_(2 * samples_),
        d_mask_(samples_) {
    ComputeExpected();
  }

  void Forward() {
    Compare<T>();
    Compare<float>();
  }

  // The cotangents of the positions are those of the offset, of the mask or of both.
  void Cotangents(RequestedCotangents requested, bool of_offset = true, bool of_mask = true) {
    Cotangents(requested, of_offset, of_mask, ChooseCotangentDivision(convolution(), requested));
  }
  void Cotangents(RequestedCotangents requested, bool of_offset, bool of_mask, CotangentDivision division) {
    Array<T> d_x(d_x_.size());
    Array<float> d_offset(2 * samples_), d_mask(samples_), d_weight(d_weight_.size());
    Array<float> workspace(FusedCotangentsWorkspace(convolution(), requested, division));
    Run([&](Device& device) {
      return FusedCotangents(
          device, convolution(), division,
          {x_.data(), weight_.data(), d_y_.data(), requested, d_x.data(),
           requested.positions && of_offset ? d_offset.data() : nullptr,
           requested.positions && of_mask ? d_mask.data() : nullptr, d_weight.data(), workspace.data()});
    });
    requested.x ? d_x.Check("d_x", d_x_) : d_x.CheckNotWritten("d_x");
    if (requested.positions && of_offset) d_offset.Check("d_offset", d_offset_);
    if (requested.positions && of_mask) d_mask.Check("d_mask", d_mask_);
    requested.weight ? d_weight.Check("d_weight", d_weight_) : d_weight.CheckNotWritten("d_weight");
  }

 private:
  static constexpr DType DTypeOf() {
    if (std::is_same_v<T, F16>) return DType::kF16;
    return std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
  }

  Convolution convolution() const { return {DTypeOf(), sizes_, positions_, product_, is_on_grid_}; }
  int64_t d_y_size() const { return sizes_.pixels() * product_.features; }

  template <typename Y>
  void Compare() {
    Array<Y> y(d_y_size());
    Array<float> workspace(FusedForwardWorkspace(convolution()));
    Run([&](Device& device) {
      return FusedForward(
          device, convolution(),
          {x_.data(), weight_.data(), bias_.data(), sizeof(Y) == sizeof(float), y.data(), workspace.data()});
    });
    y.Check("y", y_);
  }

  void ComputeExpected() {
    const int64_t group_channels = sizes_.channels / product_.groups, features = product_.group_features();
    const Window& window = sizes_.window;
    for (int64_t p = 0; p < sizes_.pixels(); ++p) {
      const int64_t image = p / (sizes_.rows * sizes_.columns), row = p / sizes_.columns % sizes_.rows;
      const int64_t column = p % sizes_.columns;
      for (int64_t f = 0; f < product_.features; ++f) y_[p * product_.features + f] = bias_[f];
      for (int64_t s = 0; s < sizes_.offset_groups * sizes_.taps(); ++s) {
        const int64_t sample = p * sizes_.offset_groups * sizes_.taps() + s;
        const int32_t tap = int32_t(s % sizes_.taps());
        const float at[] = {offset_[2 * sample], offset_[2 * sample + 1]};
        const Point<float> point =
            SamplingLocation<float>(window.start(0, row + origin_[1]) + window.distance(0, tap),
                                    window.start(1, column + origin_[2]) + window.distance(1, tap), at);
        const auto corners = LocateCorners<float>(point.y, point.x, sizes_.height, sizes_.width, window.circular);
        const float mask = positions_.mask ? mask_[sample] : 1;
        float dot[4] = {};
        for (int64_t i = 0; i < sizes_.group_channels(); ++i) {
          const int64_t channel = s / sizes_.taps() * sizes_.group_channels() + i;
          const int64_t first_feature = channel / group_channels * features;
          const int64_t row_of_weight = (tap * group_channels + channel % group_channels) * product_.features;
          double value = 0, d_value = 0;
          for (int64_t f = first_feature; f < first_feature + features; ++f) {
            d_value += double(d_y_[p * product_.features + f]) * weight_[row_of_weight + f];
          }
          for (int corner = 0; corner < 4 && corners.is_inside(); ++corner) {
            if (!corners.is_read(corner)) continue;
            const int64_t pixel = corners.pixel(corner, image * sizes_.height, sizes_.width);
            const double blend = double(corners.weight(corner)) * mask;
            value += blend * x_[pixel * sizes_.channels + channel];
            d_x_[pixel * sizes_.channels + channel] += blend * d_value;
            dot[corner] += float(d_value * x_[pixel * sizes_.channels + channel]);
          }
          for (int64_t f = first_feature; f < first_feature + features; ++f) {
            y_[p * product_.features + f] += value * weight_[row_of_weight + f];
            d_weight_[row_of_weight + f] += value * d_y_[p * product_.features + f];
          }
        }
        const auto cotangents = CotangentsOfPosition<float>(corners, dot, mask);
        d_offset_[2 * sample] = cotangents.y;
        d_offset_[2 * sample + 1] = cotangents.x;
        d_mask_[sample] = cotangents.mask;
      }
    }
  }

  int32_t origin_[4] = {0, 1, -1, 0};
  Sizes sizes_;
  Product product_;
  int64_t samples_;
  Array<T> x_, weight_, d_y_;
  Array<float> offset_, mask_, bias_;
  bool is_on_grid_;
  Positions positions_;
  std::vector<double> y_, d_x_, d_weight_, d_offset_, d_mask_;
};

// Each has a tail of another kind. Channels and features that are multiples of 32 are multiplied in pairs.
constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, {1, 1}},               // one of everything
    {0, 3, 3, 2, 1, 1, 2, 2, 2, {2, 2}},               // no images
    {1, 0, 3, 2, 1, 1, 2, 2, 2, {2, 2}},               // no pixels of x
    {1, 3, 3, 2, 1, 1, 2, 0, 2, {2, 2}},               // no pixels of y
    {2, 5, 6, 3, 1, 1, 5, 3, 4, {3, 3}, false},        // no mask
    {40, 2, 3, 6, 2, 3, 9, 2, 3, {1, 2}},              // many images; neither group size divides the other
    {1, 7, 5, 20, 5, 2, 34, 11, 23, {1, 1}},           // four tiles of different sizes, narrow vectors
    {2, 4, 4, 70, 1, 1, 9, 3, 3, {2, 1}, true, true},  // slices that share an offset group
    {1, 4, 5, 201, 3, 3, 66, 3, 5, {1, 2}},            // slices of groups
    {1, 3, 3, 133, 1, 1, 261, 2, 3, {1, 3}},           // blocks of K and of features
    {2, 5, 5, 32, 1, 1, 32, 5, 5, {3, 3}},             // pairs: an odd number of pixels
    {1, 5, 9, 96, 3, 1, 64, 11, 23, {1, 2}, false, true},
    {3, 4, 4, 128, 1, 2, 128, 3, 3, {2, 1}},
    {1, 3, 3, 160, 1, 1, 544, 1, 1, {2, 2}},   // pairs: a last slice, and blocks of both
    {1, 3, 3, 64, 2, 1, 41, 3, 5, {1, 1}},     // pairs only in the forward
    {1, 3, 4, 6, 1, 2, 16, 3, 5, {1, 2}},      // groups that are half as wide as a panel of AVX2
    {1, 3, 4, 6, 1, 2, 32, 3, 5, {1, 2}},      // and of AVX-512
    {1, 9, 9, 32, 1, 1, 33, 45, 46, {1, 1}},   // tiles as large as those of large outputs
    {1, 9, 9, 48, 8, 1, 9, 40, 26, {3, 3}},    // with many offset groups, smaller ones
    {3, 7, 9, 40, 1, 1, 6, 40, 45, {1, 2}},    // many tiles that add to the same pixels
    {2, 140, 2, 65, 1, 1, 2, 139, 2, {1, 1}},  // patches of many rows
    {2, 140, 2, 9, 1, 1, 2, 128, 1, {1, 1}},   // tiles that read more rows than a patch has
};

template <typename T>
void RunAll() {
  for (const Shape& shape : kShapes) {
    Test<T> test(shape);
    test.Forward();
    for (int requested = 0; requested < 8; ++requested)
      test.Cotangents({bool(requested & 4), bool(requested & 2), bool(requested & 1)});
    test.Cotangents({true, true, true}, true, true, {1, 1});
    test.Cotangents({true, true, true}, true, true, {kMaxWeightSplits, kMaxResidentPlanes});
    test.Cotangents({false, true, false}, true, false);
    test.Cotangents({false, true, false}, false, true);
    Test<T> on_grid(shape.OnGrid());
    on_grid.Forward();
    on_grid.Cotangents({true, false, false});
    on_grid.Cotangents({false, false, true});
    on_grid.Cotangents({true, false, true});
  }
}

}  // namespace
}  // namespace dcn

// With an argument, only names the instruction set.
int main(int count, char**) {
  if (count == 1) {
    dcn::RunAll<float>();
    dcn::RunAll<dcn::BF16>();
    dcn::RunAll<dcn::F16>();
    std::printf("every result is right with ");
  }
  std::printf("%s\n", dcn::FusedInstructions());
}
