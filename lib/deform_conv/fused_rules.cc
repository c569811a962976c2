#include "deform_conv/fused_rules.h"

#include <algorithm>
#include <limits>

#include "saturating.h"

namespace dcn {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

std::string NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF32:
      return "float32";
    case DType::kF64:
      break;
  }
  return "float64";
}

// Known sizes only: symbolic ones count as 1.
int64_t KnownProduct(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product = SaturatingMultiply(product, size == kSymbolic ? 1 : size);
  return product;
}

// The first rule that a computation breaks.
class Rules {
 public:
  std::string reason() const { return reason_; }

  void Require(bool condition, const std::string& reason) {
    if (reason_.empty() && !condition) reason_ = reason;
  }

  void AtMost(int64_t limit, const std::string& prefix, int64_t number, const std::string& what) {
    Require(number <= limit,
            prefix + " " + std::to_string(number) + " " + what + "; the fused kernels allow " + std::to_string(limit));
  }

 private:
  std::string reason_;
};

}  // namespace

ConvolutionShape ShapeOf(const Convolution& convolution, DType y_dtype) {
  const Sizes& sizes = convolution.sizes;
  const Product& product = convolution.product;
  return {convolution.dtype, y_dtype,    sizes.images,  sizes.height,     sizes.width,
          sizes.channels,    sizes.rows, sizes.columns, product.features, sizes.taps()};
}

std::string UnsupportedByFused(bool is_forward, const ConvolutionShape& shape, const std::string& algorithm) {
  Rules rules;
  rules.Require(shape.dtype != DType::kF64,
                "the data are float64; the fused kernels need float16, bfloat16 or float32");
  const std::string types = "the result is " + NameOf(shape.y_dtype) + " for " + NameOf(shape.dtype) + " data; ";
  rules.Require(shape.y_dtype == shape.dtype || shape.y_dtype == DType::kF32,
                types + "the fused kernels need " + NameOf(shape.dtype) + " or float32");
  rules.Require(is_forward || shape.y_dtype == shape.dtype, types + "the fused gradients need " + NameOf(shape.dtype));
  const int64_t smallest = std::min({shape.images, shape.height, shape.width, shape.rows, shape.columns});
  rules.Require(is_forward || smallest != kSymbolic,
                "a size is symbolic; the fused gradients need it for their workspace");
  rules.Require(algorithm.empty(), "precision names an algorithm of XLA's products, " + algorithm);
  rules.Require(shape.channels > 0 && shape.features > 0, "x has no channels or the result has none");
  rules.AtMost(kInt32Max, "weight has", shape.taps, "taps");
  rules.AtMost(kInt32Max, "an image of x has", KnownProduct({shape.height, shape.width}), "pixels");
  rules.AtMost(kInt32Max, "x has", shape.channels, "channels");
  return rules.reason();
}

}  // namespace dcn
