#include "ffi/handlers.h"

namespace dcn {

std::vector<std::vector<Handler>> BackendHandlers() {
  return {DeformConvHandlers(),  SortedDeformConvHandlers(), RoiPoolHandlers(),
          AggregationHandlers(), SamplingHandlers(),         AssignmentHandlers()};
}

}  // namespace dcn
