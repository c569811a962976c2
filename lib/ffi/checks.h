// Checks of a handler's operands, results and attributes: shapes, types and attribute values, not array contents. They
// repeat the checks of the Python layer, because a caller can call the handlers without it.
#pragma once

#include <cctype>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "saturating.h"
#include "window.h"
#include "xla/ffi/api/ffi.h"

namespace dcn {

namespace ffi = xla::ffi;

// A handler was called with wrong arguments. The wrapper of the handlers makes an FFI error of it.
struct InvalidCall : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

template <typename T>
void Print(std::ostream& message, const T& value) {
  message << value;
}
inline void Print(std::ostream& message, ffi::Span<const int64_t> values) {
  for (size_t i = 0; i < values.size(); ++i) message << (i == 0 ? "[" : ", ") << values[i];
  message << (values.size() == 0 ? "[]" : "]");
}
inline void Print(std::ostream& message, const std::vector<int64_t>& values) {
  Print(message, ffi::Span<const int64_t>(values));
}
// XLA's name in lower case, as programs have it: f32, bf16.
inline void Print(std::ostream& message, ffi::DataType type) {
  std::ostringstream name;
  name << type;
  for (const char letter : name.str()) message << char(std::tolower(letter));
}

// Throws unless the condition holds. The pieces of the message are joined only then.
template <typename... Pieces>
void Require(bool condition, const Pieces&... pieces) {
  if (condition) return;
  std::ostringstream message;
  (Print(message, pieces), ...);
  throw InvalidCall(message.str());
}

inline void CheckRank(std::string_view operand, ffi::AnyBuffer buffer, size_t rank) {
  const auto shape = buffer.dimensions();
  Require(shape.size() == rank, operand, " has shape ", shape, ", must have ", rank, " dimensions");
}

inline void CheckShape(std::string_view operand, ffi::AnyBuffer buffer, const std::vector<int64_t>& expected) {
  const auto shape = buffer.dimensions();
  Require(shape == ffi::Span<const int64_t>(expected), operand, " has shape ", shape, ", must be ", expected);
}

inline std::vector<int64_t> DimensionsOf(ffi::AnyBuffer buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().end()};
}

inline void CheckType(std::string_view operand, ffi::AnyBuffer buffer, ffi::DataType expected) {
  const ffi::DataType type = buffer.element_type();
  Require(type == expected, operand, " has element type ", type, ", must be ", expected);
}

inline void CheckFitsInt32(std::string_view what, int64_t value) {
  Require(0 <= value && value <= std::numeric_limits<int32_t>::max(), what, " is ", value, ", must fit in 32 bits");
}

// Upper bound on the element count of a buffer. Small multiples of such a count still fit in int64.
constexpr int64_t kMaxElements = int64_t{1} << 47;

inline void CheckElementCount(std::string_view what, int64_t value) {
  Require(value <= kMaxElements, what, " are ", value, ", may be at most ", kMaxElements);
}

template <typename T>
T Attribute(const ffi::Dictionary& attributes, std::string_view name) {
  const auto value = attributes.get<T>(name);
  Require(value.has_value(), "attribute ", name, " is missing or of the wrong type");
  return *value;
}

// An attribute that is an integer from `min` to `max`.
inline int64_t IntegerAttribute(const ffi::Dictionary& attributes, std::string_view name, int64_t min, int64_t max) {
  const int64_t value = Attribute<int64_t>(attributes, name);
  Require(min <= value && value <= max, "attribute ", name, " must be ", min, " to ", max, ", is ", value);
  return value;
}

// Decodes an attribute of two integers, each at least `min`.
inline void DecodePair(const ffi::Dictionary& attributes, std::string_view name, int64_t min, int32_t pair[2]) {
  const auto values = Attribute<ffi::Span<const int64_t>>(attributes, name);
  Require(values.size() == 2, "attribute ", name, " has ", values.size(), " values, must have 2");
  for (size_t i = 0; i < 2; ++i) {
    Require(min <= values[i] && values[i] <= std::numeric_limits<int32_t>::max(), "attribute ", name, " is ", values,
            ", must be at least ", min, " and fit in 32 bits");
    pair[i] = int32_t(values[i]);
  }
}

inline ffi::DataType AccumulatorType(ffi::DataType type) { return type == ffi::F64 ? ffi::F64 : ffi::F32; }

// A result that overwrites the operand `before`.
inline void CheckInPlace(std::string_view name, ffi::AnyBuffer result, ffi::AnyBuffer before) {
  const std::string so_far = std::string(name) + " so far";
  CheckType(so_far, before, result.element_type());
  CheckShape(so_far, before, DimensionsOf(result));
  Require(result.untyped_data() == before.untyped_data(), name, " must be written in place");
}

inline DType DecodeDType(ffi::DataType type) {
  switch (type) {
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    default:
      Require(type == ffi::F64, "the data have element type ", type, ", must be f16, bf16, f32 or f64");
      return DType::kF64;
  }
}

// Decodes the attributes of a window, except for circular padding.
inline void DecodeWindow(ffi::Dictionary attributes, Window& window) {
  DecodePair(attributes, "kernel_size", 1, window.kernel);
  DecodePair(attributes, "strides", 1, window.strides);
  DecodePair(attributes, "padding", std::numeric_limits<int32_t>::min(), window.padding);
  DecodePair(attributes, "kernel_dilation", 1, window.dilation);
  for (int axis = 0; axis < 2; ++axis) {
    CheckFitsInt32("the kernel's reach", (int64_t{window.kernel[axis]} - 1) * window.dilation[axis]);
  }
}

// The optional last operand, at `index` of the remaining ones, or nullopt if it is absent.
inline std::optional<ffi::AnyBuffer> OptionalOperand(std::string_view operand, ffi::RemainingArgs rest,
                                                     size_t index = 0) {
  Require(rest.size() <= index + 1, "has operands after ", operand);
  if (rest.size() != index + 1) return std::nullopt;
  const auto buffer = rest.get<ffi::AnyBuffer>(index);
  Require(buffer.has_value(), operand, " must be an array");
  return *buffer;
}

}  // namespace dcn
