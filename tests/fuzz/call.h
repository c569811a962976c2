// The description of a handler's call, valid or not: buffers of any shape and type, and attributes of any type.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace fuzz {

// What a handler uses a buffer for. It decides how the buffer is filled and checked.
enum class Role { kNumbers, kRois, kOrigin, kResult, kScratch, kInPlace };

struct Buffer {
  XLA_FFI_DataType dtype;
  std::vector<int64_t> dims;
  Role role = Role::kNumbers;
  int place = 0;  // of kInPlace: the operand and the result of the same place have the same memory
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
  std::map<std::string, Attribute> attributes;  // ordered by name, as XLA passes them
  bool is_valid = true;                         // if true, the handler must succeed
};

// The fuzzer's input, which is read byte by byte. Past its end, zeros are read.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  uint8_t Next() { return next_ < end_ ? *next_++ : 0; }
  int64_t Below(int64_t limit) { return Next() % limit; }
  template <typename T>
  const T& ChooseFrom(const std::vector<T>& choices) {
    return choices[Below(int64_t(choices.size()))];
  }

 private:
  const uint8_t *next_, *end_;
};

// A valid or slightly invalid call of a handler of the CPU or of CUDA.
Call ReadCall(Bytes&, bool is_cpu);

}  // namespace fuzz
