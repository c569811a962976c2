// The assignment on CPUs: a thread solves a problem.
#include "assignment/shortest_paths.h"
#include "device.h"
#include "instruction_sets.h"

DCN_BEGIN_TARGET
namespace {

struct Thread {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  static void Sync() {}
  static Candidate ReduceMin(const Candidate& candidate) { return candidate; }
};

}  // namespace

const char* Assign(Device& device, DType dtype, const AssignmentSizes& sizes, const AssignmentArrays& arrays) {
  DispatchAccumulator(dtype, [&](auto element) {
    device.ParallelFor(sizes.problems, [&](int64_t problem) {
      Thread thread;
      SolveAssignment<decltype(element)>(thread, sizes, arrays, problem);
    });
  });
  return nullptr;
}

DCN_END_TARGET
