// Products of positions. The last bit of a position decides on which side of a pixel a sample lies, where its
// derivative jumps. Products and sums of positions are therefore rounded separately: host code that calls this is
// compiled with -ffp-contract=off, device code multiplies with an instruction that is not contracted.
#pragma once

#include "host_device.h"

namespace dcn {

// A product that is rounded before anything is added to it.
template <typename A>
DCN_HOST_DEVICE A RoundedProduct(A a, A b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(A) == sizeof(float)) {
    return __fmul_rn(a, b);
  } else {
    return __dmul_rn(a, b);
  }
#else
  return a * b;
#endif
}

}  // namespace dcn
