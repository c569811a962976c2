// A call of a handler as XLA makes it, in parts that can be wrong: buffers, and attributes of any type.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace fuzz {

// Of a buffer, what a handler does with it, or what its numbers mean to it.
enum class Role { kNumbers, kRegions, kOrigin, kResult, kScratch, kInPlace };

struct Buffer {
  XLA_FFI_DataType dtype;
  std::vector<int64_t> dims;
  Role role = Role::kNumbers;
};

struct Attribute {
  XLA_FFI_AttrType type;
  XLA_FFI_DataType dtype;
  std::vector<char> bytes;

  template <typename T>
  static Attribute Of(XLA_FFI_AttrType type, XLA_FFI_DataType dtype, const std::vector<T>& values) {
    Attribute attribute = {type, dtype, std::vector<char>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(attribute.bytes.data(), values.data(), attribute.bytes.size());
    return attribute;
  }
  static Attribute Integer(int64_t value) {
    return Of<int64_t>(XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_S64, {value});
  }
  static Attribute Integers(const std::vector<int64_t>& values) {
    return Of(XLA_FFI_AttrType_ARRAY, XLA_FFI_DataType_S64, values);
  }
  static Attribute Number(double value) { return Of<double>(XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_F64, {value}); }
  static Attribute Boolean(bool value) { return Of<char>(XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_PRED, {value}); }
};

struct Call {
  std::string handler;
  std::vector<Buffer> arguments, results;
  std::map<std::string, Attribute> attributes;  // by name in order, as XLA has them
  bool right = true;                            // and so has to succeed
};

// What is read byte by byte, and zeros behind the end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t Next() { return at_ < end_ ? *at_++ : 0; }
  int64_t Below(int64_t limit) { return Next() % limit; }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[Below(int64_t(choices.size()))];
  }

 private:
  const uint8_t *at_, *end_;
};

// Sizes at which 32 or 64 bits, or the products of some, end.
extern const std::vector<int64_t> kOddSizes;

// A call that is right, or nearly so, for the handlers of the CPU or of CUDA.
Call ReadCall(Bytes&, bool cpu);

}  // namespace fuzz
