// What the fused kernels of a convolution accept, in the sentences that users read. Python asks before it lowers a
// call, and the handlers ask again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "deform_conv/fused.h"

namespace dcn {

// A symbolic dimension of an exported program. A rule takes it to be within its limit.
constexpr int64_t kSymbolic = -1;

// A convolution, as far as rules depend on it.
struct ConvolutionShape {
  DType dtype, y_dtype;                     // of x and weight; of the result
  int64_t images, height, width, channels;  // of x
  int64_t rows, columns, features;          // of the result
  int64_t taps;
};

// Why the fused kernels cannot compute the forward, or else the gradients; empty if they can. `algorithm` names the
// algorithm of XLA's products that the user requires, which only those follow; it may be empty.
std::string UnsupportedByFused(bool is_forward, const ConvolutionShape&, const std::string& algorithm = {});

// The shape of the call that a handler decoded.
ConvolutionShape ShapeOf(const Convolution&, DType y_dtype);

}  // namespace dcn
