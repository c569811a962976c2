#include "ffi/handlers.h"

namespace dcn {

std::vector<std::vector<Handler>> BackendHandlers() {
  return {DeformConvHandlers(),  CpuDeformConvHandlers(), RoiPoolHandlers(),
          AggregationHandlers(), SamplingHandlers(),      AssignmentHandlers()};
}

XLA_FFI_Handler* InitializeHandler() { return nullptr; }

}  // namespace dcn
