// Checks of a handler's operands, results and attributes: shapes, types and attribute values, not array contents. They
// repeat the checks of the Python layer, because a caller can call the handlers without it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "saturating.h"
#include "window.h"
#include "xla/ffi/api/ffi.h"

namespace dcn {

namespace ffi = xla::ffi;

template <typename Range>
std::string ToString(const Range& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

// Upper bound on the element count of a buffer. Small multiples of such a count still fit in int64.
constexpr int64_t kMaxElements = int64_t{1} << 47;

// Records the first failed check of one handler call.
class Checks {
 public:
  explicit Checks(std::string_view handler) : handler_(handler) {}

  bool ok() const { return message_.empty(); }
  const std::string& message() const { return message_; }
  ffi::Error error() const { return ok() ? ffi::Error::Success() : ffi::Error::InvalidArgument(message_); }

  void Require(bool condition, std::string_view message) {
    if (ok() && !condition) message_ = std::string(handler_) + ": " + std::string(message);
  }

  void Rank(std::string_view operand, ffi::AnyBuffer buffer, size_t rank) {
    Require(buffer.dimensions().size() == rank, std::string(operand) + " has shape " + ToString(buffer.dimensions()) +
                                                    ", must have " + std::to_string(rank) + " dimensions");
  }

  void Shape(std::string_view operand, ffi::AnyBuffer buffer, const std::vector<int64_t>& shape) {
    const auto dimensions = buffer.dimensions();
    Require(std::equal(dimensions.begin(), dimensions.end(), shape.begin(), shape.end()),
            std::string(operand) + " has shape " + ToString(dimensions) + ", must be " + ToString(shape));
  }

  void Type(std::string_view operand, ffi::AnyBuffer buffer, ffi::DataType type) {
    Require(buffer.element_type() == type, std::string(operand) + " has element type " +
                                               std::to_string(int(buffer.element_type())) + ", must be " +
                                               std::to_string(int(type)));
  }

  void FitsInt32(std::string_view what, int64_t value) {
    Require(0 <= value && value <= std::numeric_limits<int32_t>::max(),
            std::string(what) + " is " + std::to_string(value) + ", must fit in 32 bits");
  }

  void ElementCount(std::string_view what, int64_t value) {
    Require(value <= kMaxElements, std::string(what) + " are too many");
  }

  // The value of an attribute, or `fallback` if the attribute is missing or of another type, which fails the check.
  template <typename T>
  T Attribute(const ffi::Dictionary& attributes, std::string_view name, T fallback) {
    const auto value = attributes.get<T>(name);
    Require(value.has_value(), "attribute " + std::string(name) + " is missing or of the wrong type");
    return value.has_value() ? *value : fallback;
  }

  // Decodes an attribute of two integers, each at least `min`.
  void Pair(const ffi::Dictionary& attributes, std::string_view name, int64_t min, int32_t pair[2]) {
    const auto values = Attribute(attributes, name, ffi::Span<const int64_t>());
    Require(values.size() == 2, "attribute " + std::string(name) + " must have two values");
    for (size_t i = 0; ok() && i < 2; ++i) {
      const int64_t value = values[i];
      Require(min <= value && value <= std::numeric_limits<int32_t>::max(),
              "attribute " + std::string(name) + " is " + ToString(values) + ", must be at least " +
                  std::to_string(min) + " and fit in 32 bits");
      pair[i] = int32_t(value);
    }
  }

 private:
  std::string_view handler_;
  std::string message_;
};

inline ffi::DataType AccumulatorType(ffi::DataType type) { return type == ffi::F64 ? ffi::F64 : ffi::F32; }

inline DType CheckedDType(Checks& checks, ffi::DataType type) {
  switch (type) {
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    case ffi::F64:
      return DType::kF64;
    default:
      checks.Require(false, "the element type must be float16, bfloat16, float32 or float64");
      return DType::kF32;
  }
}

// Decodes the attributes of a window, except for circular padding.
inline void DecodeWindow(Checks& checks, ffi::Dictionary attributes, Window& window) {
  checks.Pair(attributes, "kernel_size", 1, window.kernel);
  checks.Pair(attributes, "strides", 1, window.strides);
  checks.Pair(attributes, "padding", std::numeric_limits<int32_t>::min(), window.padding);
  checks.Pair(attributes, "kernel_dilation", 1, window.dilation);
  for (int axis = 0; axis < 2; ++axis) {
    checks.FitsInt32("the kernel's reach", (int64_t{window.kernel[axis]} - 1) * window.dilation[axis]);
  }
}

// The optional last operand, at `index` of the remaining ones, or nullopt if it is absent.
inline std::optional<ffi::AnyBuffer> OptionalOperand(Checks& checks, std::string_view operand, ffi::RemainingArgs rest,
                                                     size_t index = 0) {
  checks.Require(rest.size() <= index + 1, "has operands after " + std::string(operand));
  if (rest.size() != index + 1) return std::nullopt;
  const auto buffer = rest.get<ffi::AnyBuffer>(index);
  checks.Require(buffer.has_value(), std::string(operand) + " must be an array");
  return buffer.has_value() ? std::optional(*buffer) : std::nullopt;
}

// The error that a handler returns for the result of a backend's function: nullptr, or a message.
inline ffi::Error ToError(const char* failure) {
  return failure ? ffi::Error::Internal(failure) : ffi::Error::Success();
}

}  // namespace dcn
