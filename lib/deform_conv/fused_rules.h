// What the fused kernels of a convolution accept, in the sentences that users read. Python asks before it lowers a
// call, on any machine and for any platform, and the handlers ask again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "deform_conv/fused.h"

namespace dcn {

// A symbolic dimension of an exported program. A rule takes it to be within its limit.
constexpr int64_t kSymbolic = -1;

// A convolution, as far as rules depend on it. The groups divide the channels and the features.
struct ConvolutionShape {
  DType dtype, y_dtype;                     // of x and weight; of the result
  int64_t images, height, width, channels;  // of x
  int64_t rows, columns, features;          // of the result
  int64_t taps, groups, offset_groups;
};

// The precision that a user requires of the matrix products.
struct ProductPrecision {
  std::string name;
  bool allows_tf32 = true;
  bool is_algorithm = false;  // one of XLA's algorithms, which only XLA's products follow
};

// The forward, or the operand whose gradient is computed.
enum class Computation { kForward, kX, kOffset, kMask, kWeight };

// Why the fused kernels of a platform cannot do a computation; empty if they can.
std::string UnsupportedByFusedCuda(Computation, const ConvolutionShape&, const ProductPrecision& = {});
std::string UnsupportedByFusedCpu(Computation, const ConvolutionShape&, const ProductPrecision& = {});

// The shape of the call that a handler decoded.
ConvolutionShape ShapeOf(const Convolution&, DType y_dtype);

}  // namespace dcn
