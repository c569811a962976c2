// Simulates how the tasks of one call of the fused CPU convolution occupy threads. The tiles, the tasks and what they
// wait for are the package's own.
//
// All threads are equally fast, and each kind of work has a cost, which the caller fits to measurements. Every tile has
// a window, because offsets are a few pixels.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "deform_conv_fused.h"
#include "fused/plan.h"
#include "fused/progress.h"
#include "instruction_sets.h"

namespace {

using namespace dcn;

// What one unit of each kind of work costs.
struct Costs {
  double multiply_add, interpolation, copy;  // of one channel of a sample, and of one float

  double location() const { return 20 * interpolation; }  // of a sample
};

// Threads take tasks in order: the one that is free first takes the next.
class Threads {
 public:
  explicit Threads(int64_t count) : free_at_(count) {}

  // `run` is called with the time when the task starts, and returns the time when it ends.
  template <typename Run>
  void Take(const Run& run) {
    double& first = *std::min_element(free_at_.begin(), free_at_.end());
    first = run(first);
  }
  // A loop whose end all threads wait for.
  void Loop(int64_t count, double cost) {
    Wait();
    for (int64_t i = 0; i < count; ++i) Take([&](double time) { return time + cost; });
    Wait();
  }
  double makespan() const { return *std::max_element(free_at_.begin(), free_at_.end()); }

 private:
  void Wait() { std::fill(free_at_.begin(), free_at_.end(), makespan()); }

  std::vector<double> free_at_;
};

double ForwardMakespan(const Convolution& convolution, const Tiling& tiling, const Costs& costs, int64_t num_threads) {
  const auto& [dtype, sizes, positions, product] = convolution;
  const double columns = double(sizes.taps()) * sizes.channels;
  const double pixel_cost = columns * product.group_features() * costs.multiply_add + columns * costs.interpolation +
                            double(sizes.pixel_samples()) * costs.location() + double(product.features) * costs.copy;
  Threads threads(num_threads);
  for (int64_t tile = 0; tile < tiling.count(); ++tile) {
    threads.Take([&](double time) { return time + double(tiling[tile].pixels()) * pixel_cost; });
  }
  return threads.makespan();
}

// The pixels that the samples of a tile read, if offsets are at most kReach pixels.
constexpr int32_t kReach = 7;  // of some thousand offsets with a standard deviation of 2
PixelBox BoxOf(const Sizes& sizes, const OutputTile& tile) {
  const Window& window = sizes.window;
  const auto bound = [](int64_t pixel, int64_t size) { return int32_t(std::clamp<int64_t>(pixel, 0, size - 1)); };
  const auto first = [&](int axis, int64_t output) { return window.start(axis, output) - kReach; };
  const auto last = [&](int axis, int64_t output) {
    return window.start(axis, output) + int64_t{window.kernel[axis] - 1} * window.dilation[axis] + kReach + 1;
  };
  return {bound(first(0, tile.row), sizes.height), bound(last(0, tile.row + tile.rows - 1), sizes.height),
          bound(first(1, tile.column), sizes.width), bound(last(1, tile.column + tile.columns - 1), sizes.width)};
}

// When a tile reaches each of its steps: fused/progress.h has them.
struct TileTimes {
  PixelBox box;
  double finished;
  std::vector<double> steps;
};

double CotangentsMakespan(const CotangentPlan& plan, const Costs& costs, int64_t num_threads) {
  const auto& [dtype, sizes, positions, product] = plan.convolution;
  const int64_t taps = sizes.taps(), tiles = plan.tiles(), planes = plan.planes(), features = product.group_features();
  const double slice_weight = double(plan.slices.padded_channels) * features;
  Threads threads(num_threads);
  if (plan.requested.x || plan.requested.positions) threads.Loop(taps * plan.slices.count, slice_weight * costs.copy);
  std::vector<TileTimes> times(planes * tiles);
  std::vector<double> recycled(planes + plan.resident_planes()), finished(planes);
  for (int64_t block = 0; block < int64_t(recycled.size()); ++block) {
    const int64_t rounded = block - plan.resident_planes();
    const bool rounds = plan.HasPlaneSums() && rounded >= 0, begins = block < planes;
    const double plane_cost =
        double(sizes.height * sizes.width * plan.slices.channels) * (rounds + begins) * costs.copy;
    const double chunk_cost = plan.chunks() ? plane_cost / double(plan.chunks()) : 0;
    for (int64_t chunk = 0; chunk < plan.chunks(); ++chunk) {
      threads.Take([&](double time) {
        if (rounds) time = std::max(time, finished[rounded]);
        recycled[block] = std::max(recycled[block], time + chunk_cost);
        return time + chunk_cost;
      });
    }
    if (!begins) continue;
    const int64_t image = plan.image_of(block), index = plan.slice_index_of(block);
    const CotangentPlan::Slice slice = plan.slice(index);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t tile_index = image * tiles + t, tile_before = plan.TileBefore(tile_index);
      const OutputTile tile = plan.Tile(image, t);
      const double pixels = double(tile.pixels()), columns = pixels * slice.channels;
      TileTimes& mine = times[block * tiles + t];
      mine.box = BoxOf(sizes, tile);
      const double box = double(mine.box.rows() * mine.box.columns()) * slice.channels;
      threads.Take([&](double time) {
        const int64_t groups = 1 + (slice.channels - 1) / sizes.group_channels();
        time += pixels * taps * groups * costs.location() + pixels * features * costs.copy;
        if (plan.requested.x) time += box * costs.copy;
        for (int64_t tap = 0; tap < taps; ++tap) {
          if (plan.requested.x || plan.requested.positions) time += columns * features * costs.multiply_add;
          time += columns * costs.interpolation;
          if (plan.requested.positions && plan.SharesPositions(slice)) {
            time = std::max(time, times[(block - 1) * tiles + t].steps[2 * tap]);
          }
          mine.steps.push_back(time);
          if (plan.requested.weight) {
            if (tile_before >= 0) {
              const int64_t plane = plan.plane(tile_before / tiles, index);
              time = std::max(time, times[plane * tiles + tile_before % tiles].steps[2 * tap + 1]);
            }
            time += columns * features * costs.multiply_add;
          }
          mine.steps.push_back(time);
        }
        if (plan.requested.x) {
          time = std::max(time, recycled[block]);
          for (int64_t before = 0; before < t; ++before) {
            const TileTimes& other = times[block * tiles + before];
            if (other.box.Overlaps(mine.box)) time = std::max(time, other.finished);
          }
          time += 2 * box * costs.copy;
        }
        mine.finished = time;
        finished[block] = std::max(finished[block], time);
        return time;
      });
    }
  }
  const double sum_cost = slice_weight * plan.used_splits() * costs.copy;
  if (plan.requested.weight) threads.Loop(taps * plan.slices.count, sum_cost);
  return threads.makespan();
}

}  // namespace

struct Problem {
  int64_t kernel, stride, dilation, images, height, width, channels, rows, columns, features, groups, offset_groups;
  int64_t is_bfloat16;
  int64_t x_requested, positions_requested, weight_requested;  // none: the forward
};

extern "C" int64_t MaxSliceChannels() { return Slices::kMaxChannels; }

// Writes the makespan for each number of threads, and returns how many tiles or tasks there are.
extern "C" int64_t Simulate(const Problem* problem, const double* costs, int64_t count, const int64_t* num_threads,
                            double* makespans) {
  const int32_t kernel = int32_t(problem->kernel), stride = int32_t(problem->stride);
  const int32_t dilation = int32_t(problem->dilation), padding = dilation * (kernel / 2);
  const Sizes sizes = {{{kernel, kernel}, {stride, stride}, {padding, padding}, {dilation, dilation}, false},
                       problem->images,
                       problem->height,
                       problem->width,
                       problem->channels,
                       problem->rows,
                       problem->columns,
                       problem->offset_groups,
                       problem->images,
                       problem->images,
                       problem->rows};
  const DType dtype = problem->is_bfloat16 ? DType::kBF16 : DType::kF32;
  const Convolution convolution = {dtype, sizes, {}, {problem->features, problem->groups}};
  const RequestedCotangents requested = {problem->x_requested != 0, problem->positions_requested != 0,
                                         problem->weight_requested != 0};
  const Costs one = {costs[0], costs[1], costs[2]};
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), convolution, !requested.any());
  if (!requested.any()) {
    const Tiling tiling = ForwardTiling(set, convolution);
    for (int64_t i = 0; i < count; ++i) makespans[i] = ForwardMakespan(convolution, tiling, one, num_threads[i]);
    return tiling.count();
  }
  const CotangentDivision division = ChooseCotangentDivision(convolution, requested);
  const Slices slices(convolution);
  const CotangentPlan plan = {convolution, requested, division, CotangentTiling(set, sizes, slices), slices};
  for (int64_t i = 0; i < count; ++i) makespans[i] = CotangentsMakespan(plan, one, num_threads[i]);
  return plan.planes() * plan.tiles();
}
