// What the handlers need of XLA's foreign function interface: buffers, attributes and errors, on top of its C API.
// XLA's own C++ header, xla/ffi/api/ffi.h, has the same names. Each file that includes it takes several seconds longer
// to compile.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "xla/ffi/api/c_api.h"

namespace dcn::ffi {

using DataType = XLA_FFI_DataType;
constexpr DataType F16 = XLA_FFI_DataType_F16, BF16 = XLA_FFI_DataType_BF16, F32 = XLA_FFI_DataType_F32,
                   F64 = XLA_FFI_DataType_F64, S32 = XLA_FFI_DataType_S32;

template <typename T>
constexpr DataType DataTypeOf() {
  using Value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Value, bool>) return XLA_FFI_DataType_PRED;
  if constexpr (std::is_same_v<Value, int32_t>) return S32;
  if constexpr (std::is_same_v<Value, int64_t>) return XLA_FFI_DataType_S64;
  if constexpr (std::is_same_v<Value, float>) return F32;
  if constexpr (std::is_same_v<Value, double>) return F64;
}

struct Error {
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_OK;
  std::string message;

  static Error Success() { return {}; }
  static Error InvalidArgument(std::string message) {
    return {XLA_FFI_Error_Code_INVALID_ARGUMENT, std::move(message)};
  }
  static Error Internal(std::string message) { return {XLA_FFI_Error_Code_INTERNAL, std::move(message)}; }
};

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}

  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// An operand, or a result, of any type and shape.
class AnyBuffer {
 public:
  explicit AnyBuffer(const void* buffer) : buffer_(static_cast<const XLA_FFI_Buffer*>(buffer)) {}

  DataType element_type() const { return buffer_->dtype; }
  Span<const int64_t> dimensions() const { return {buffer_->dims, size_t(buffer_->rank)}; }
  void* untyped_data() const { return buffer_->data; }
  template <typename T>
  T* typed_data() const {
    assert(element_type() == DataTypeOf<T>() && "the type must match the buffer's");
    return static_cast<T*>(untyped_data());
  }

 private:
  const XLA_FFI_Buffer* buffer_;
};

// A result, in the signature of a handler.
template <typename T>
class Result {
 public:
  explicit Result(T buffer) : buffer_(buffer) {}

  const T& operator*() const { return buffer_; }
  const T* operator->() const { return &buffer_; }

 private:
  T buffer_;
};

// The operands, or the results, after those that the signature of a handler names.
class RemainingBuffers {
 public:
  RemainingBuffers(void** buffers, int64_t size) : buffers_(buffers), size_(size) {}

  size_t size() const { return size_t(size_); }
  std::optional<AnyBuffer> get(size_t i) const {
    return i < size() ? std::optional(AnyBuffer(buffers_[i])) : std::nullopt;
  }

 private:
  void** buffers_;
  int64_t size_;
};
struct RemainingArgs : RemainingBuffers {
  using RemainingBuffers::RemainingBuffers;
};
struct RemainingRets : RemainingBuffers {
  using RemainingBuffers::RemainingBuffers;
};

template <typename T>
struct IsSpan : std::false_type {};
template <typename T>
struct IsSpan<Span<T>> : std::true_type {
  using Element = T;
};

// The attributes of a call.
class Dictionary {
 public:
  explicit Dictionary(const XLA_FFI_Attrs* attributes) : attributes_(attributes) {}

  // The value of an attribute, or nothing if it is missing or of another type. T is a number, or a Span of numbers.
  template <typename T>
  std::optional<T> get(std::string_view name) const {
    if constexpr (IsSpan<T>::value) {
      using Element = typename IsSpan<T>::Element;
      const auto* array = static_cast<const XLA_FFI_Array*>(Find(name, XLA_FFI_AttrType_ARRAY));
      if (!array || array->dtype != DataTypeOf<Element>()) return std::nullopt;
      return T(static_cast<Element*>(array->data), array->size);
    } else {
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(Find(name, XLA_FFI_AttrType_SCALAR));
      if (!scalar || scalar->dtype != DataTypeOf<T>()) return std::nullopt;
      return *static_cast<const T*>(scalar->value);
    }
  }

 private:
  const void* Find(std::string_view name, XLA_FFI_AttrType type) const {
    for (int64_t i = 0; i < attributes_->size; ++i) {
      const XLA_FFI_ByteSpan& found = *attributes_->names[i];
      if (std::string_view(found.ptr, found.len) == name) {
        return attributes_->types[i] == type ? attributes_->attrs[i] : nullptr;
      }
    }
    return nullptr;
  }

  const XLA_FFI_Attrs* attributes_;
};

}  // namespace dcn::ffi
