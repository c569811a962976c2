#include "ffi/handlers.h"

namespace dcn {

std::vector<std::vector<Handler>> BackendHandlers() { return {DeformConvHandlers(), PsRoiPoolHandlers()}; }

}  // namespace dcn
