// Simulates how the tasks of one call of the fused CPU convolution occupy threads. The tiles and the tasks are the
// package's own.
//
// All threads are equally fast. A tile costs its pixels times the channels of the task. Packing the weight and adding
// up the parts of its cotangent are left out.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "deform_conv_fused.h"
#include "fused/plan.h"
#include "instruction_sets.h"

namespace {

using namespace dcn;

// Threads take tasks in order, the one that is free first takes the next.
class Threads {
 public:
  explicit Threads(int64_t count) : free_at_(count) {}

  // `run` is called with the time when the task starts, and returns the time when it ends.
  template <typename Run>
  void Take(const Run& run) {
    int64_t& first = *std::min_element(free_at_.begin(), free_at_.end());
    first = run(first);
  }
  int64_t makespan() const { return *std::max_element(free_at_.begin(), free_at_.end()); }

 private:
  std::vector<int64_t> free_at_;
};

int64_t ForwardMakespan(const Tiling& tiling, int64_t num_threads) {
  Threads threads(num_threads);
  for (int64_t tile = 0; tile < tiling.count(); ++tile) {
    threads.Take([&](int64_t time) { return time + tiling[tile].pixels(); });
  }
  return threads.makespan();
}

int64_t CotangentsMakespan(const CotangentPlan& plan, int64_t num_threads) {
  const Tiling& tiling = plan.tiling;
  const int64_t parts = plan.division.parts;
  Threads threads(std::min(num_threads, plan.division.concurrent));
  std::vector<std::vector<int64_t>> finished(plan.tasks());  // the times when the tiles of a task are finished
  for (int64_t task = 0; task < plan.tasks(); ++task) {
    const int64_t part = task % parts;
    const int64_t first = plan.first_image(part) * tiling.image_tiles();
    const int64_t end = plan.first_image(part + 1) * tiling.image_tiles();
    const CotangentPlan::Slice slice = plan.slice(task / parts);
    const bool waits = plan.WaitsForSliceBefore(slice);
    threads.Take([&](int64_t time) {
      for (int64_t tile = first; tile < end; ++tile) {
        if (waits) time = std::max(time, finished[task - parts][tile - first]);
        time += tiling[tile].pixels() * slice.channels;
        finished[task].push_back(time);
      }
      return time;
    });
  }
  return threads.makespan();
}

}  // namespace

struct Problem {
  int64_t kernel, images, height, width, channels, rows, columns, features, groups, offset_groups;
  int64_t is_bfloat16;
  int64_t x_requested, positions_requested, weight_requested;  // none: the forward
};

// Writes the makespan for each number of threads, and returns how many tiles or tasks there are, and how many of these
// may run at a time.
extern "C" void Simulate(const Problem* problem, int64_t count, const int64_t* num_threads, int64_t* makespans,
                         int64_t* tasks, int64_t* slots) {
  const int32_t kernel = int32_t(problem->kernel);
  const Sizes sizes = {{{kernel, kernel}, {1, 1}, {}, {1, 1}, false},
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
  const InstructionSet set = InstructionSetFor(BestInstructionSet(), convolution, !requested.any());
  if (requested.any()) {
    const FusedTasks chosen = ChooseFusedTasks(convolution, requested);
    const CotangentPlan plan = {convolution, requested, chosen, CotangentTiling(set, sizes), Slices(convolution)};
    *tasks = plan.tasks();
    *slots = chosen.concurrent;
    for (int64_t i = 0; i < count; ++i) makespans[i] = CotangentsMakespan(plan, num_threads[i]);
  } else {
    const Tiling tiling = ForwardTiling(set, convolution);
    *tasks = *slots = tiling.count();
    for (int64_t i = 0; i < count; ++i) makespans[i] = ForwardMakespan(tiling, num_threads[i]);
  }
}
