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

bool IsSymbolic(const ConvolutionShape& shape) {
  return std::min({shape.height, shape.width, shape.rows, shape.columns}) == kSymbolic;
}

// For example "12 channels in each of 2 groups".
std::string InEach(int64_t total, const std::string& what, int64_t count, const std::string& kind) {
  const int64_t each = total / count;
  const std::string where = count > 1 ? " in each of " + std::to_string(count) + " " + kind + "s" : "";
  return std::to_string(each) + " " + what + (each == 1 ? "" : "s") + where;
}

// The first rule that a computation breaks.
class Rules {
 public:
  bool broken() const { return !reason_.empty(); }
  std::string reason() const { return reason_; }

  void Require(bool condition, const std::string& reason) {
    if (!broken() && !condition) reason_ = reason;
  }

  void AtMost(int64_t limit, const std::string& prefix, int64_t number, const std::string& what) {
    Require(number <= limit,
            prefix + " " + std::to_string(number) + " " + what + "; the fused kernels allow " + std::to_string(limit));
  }

 private:
  std::string reason_;
};

void RequireResultDtype(Rules& rules, Computation computation, const ConvolutionShape& shape) {
  const std::string types = "the result is " + NameOf(shape.y_dtype) + " for " + NameOf(shape.dtype) + " data; ";
  rules.Require(shape.y_dtype == shape.dtype || shape.y_dtype == DType::kF32,
                types + "the fused kernels need " + NameOf(shape.dtype) + " or float32");
  rules.Require(computation == Computation::kForward || shape.y_dtype == shape.dtype,
                types + "the fused gradients need " + NameOf(shape.dtype));
}

// The rules of CUDA's forward, which hold for the gradient of weight too.
void RequireForward(Rules& rules, const ConvolutionShape& shape, const ProductPrecision& precision) {
  rules.Require(shape.dtype != DType::kF64,
                "the data are float64; the fused kernels need float16, bfloat16 or float32");
  rules.Require(shape.dtype != DType::kF32 || precision.allows_tf32,
                "the data are float32, and precision " + precision.name + " does not allow tf32 products");
  RequireResultDtype(rules, Computation::kForward, shape);
  if (rules.broken()) return;
  const int64_t vector = FusedVector(shape.dtype);
  const auto require_vectors = [&](int64_t count, const char* kind) {
    rules.Require(shape.channels / count % vector == 0, "x has " + InEach(shape.channels, "channel", count, kind) +
                                                            "; the fused kernels need a multiple of " +
                                                            std::to_string(vector) + ", which is 16 bytes of " +
                                                            NameOf(shape.dtype));
  };
  require_vectors(shape.groups, "group");
  require_vectors(shape.offset_groups, "offset group");
  rules.Require(shape.features / shape.groups % 2 == 0,
                "weight has " + InEach(shape.features, "output channel", shape.groups, "group") +
                    "; the fused kernels need an even number");
  rules.AtMost(kInt32Max, "x has", KnownProduct({shape.channels / vector, FusedLimits::kVectorBytes}), "bytes a pixel");
  rules.AtMost(kInt32Max, "weight has", shape.features, "output channels");
  rules.AtMost(kInt32Max, "an output channel of weight has",
               KnownProduct({shape.taps, shape.channels / shape.groups / vector}), "vectors of 16 bytes");
  rules.AtMost(kMaxPixels - 1, "x has", KnownProduct({shape.images, shape.height, shape.width}),
               "pixels in all images");
}

// The further rules of CUDA's gradient of weight.
void RequireWeightGradient(Rules& rules, const ConvolutionShape& shape) {
  rules.Require(shape.dtype != DType::kF32, "the data are float32; the fused gradient of weight needs a 16-bit type");
  RequireResultDtype(rules, Computation::kWeight, shape);
  const int64_t vector = FusedVector(shape.dtype), group_features = shape.features / shape.groups;
  rules.Require(group_features > 0 && group_features % vector == 0,
                "weight has " + InEach(shape.features, "output channel", shape.groups, "group") +
                    "; the fused gradient of weight needs a multiple of " + std::to_string(vector) +
                    ", which is 16 bytes of " + NameOf(shape.dtype));
  rules.Require(shape.channels > 0, "x has no channels; the fused gradient of weight needs some");
  if (rules.broken()) return;
  const int64_t of_group = shape.channels / shape.groups, of_offset_group = shape.channels / shape.offset_groups;
  rules.Require(
      std::max(of_group, of_offset_group) % std::min(of_group, of_offset_group) == 0,
      "x has " + std::to_string(of_group) + " channels in each group and " + std::to_string(of_offset_group) +
          " in each offset group; the fused gradient of weight needs one of these numbers to divide the other");
  rules.AtMost(kMaxPixels - 1, "the result has", KnownProduct({shape.rows, shape.columns}), "pixels in an image");
  rules.AtMost(kMaxPixels - 1, "the result has", KnownProduct({shape.images, shape.rows, shape.columns}),
               "pixels in all images");
  rules.AtMost(kInt32Max, "the result has", KnownProduct({shape.features / vector, FusedLimits::kVectorBytes}),
               "bytes a pixel");
}

}  // namespace

ConvolutionShape ShapeOf(const Convolution& convolution, DType y_dtype) {
  const Sizes& sizes = convolution.sizes;
  const Product& product = convolution.product;
  return {convolution.dtype, y_dtype,       sizes.images,     sizes.height, sizes.width,    sizes.channels,
          sizes.rows,        sizes.columns, product.features, sizes.taps(), product.groups, sizes.offset_groups};
}

std::string UnsupportedByFusedCuda(Computation computation, const ConvolutionShape& shape,
                                   const ProductPrecision& precision) {
  Rules rules;
  rules.Require(computation == Computation::kForward || computation == Computation::kWeight,
                "only the forward and the gradient of weight have fused CUDA kernels");
  RequireForward(rules, shape, precision);
  if (!rules.broken() && computation == Computation::kWeight) RequireWeightGradient(rules, shape);
  return rules.reason();
}

std::string UnsupportedByFusedCpu(Computation computation, const ConvolutionShape& shape,
                                  const ProductPrecision& precision) {
  Rules rules;
  rules.Require(shape.dtype != DType::kF64,
                "the data are float64; the fused kernels need float16, bfloat16 or float32");
  RequireResultDtype(rules, computation, shape);
  rules.Require(computation == Computation::kForward || !(IsSymbolic(shape) || shape.images == kSymbolic),
                "a size is symbolic; the fused gradients need it for their workspace");
  rules.Require(!precision.is_algorithm, "precision names an algorithm of XLA's products, " + precision.name);
  rules.Require(shape.channels > 0 && shape.features > 0, "x has no channels or the result has none");
  rules.AtMost(kInt32Max, "weight has", shape.taps, "taps");
  rules.AtMost(kInt32Max, "an image of x has", KnownProduct({shape.height, shape.width}), "pixels");
  rules.AtMost(kInt32Max, "x has", shape.channels, "channels");
  return rules.reason();
}

}  // namespace dcn
