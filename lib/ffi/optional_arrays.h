// Decodes operands and results that a handler may lack.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "ffi/checks.h"

namespace dcn {

// The arrays that come first in the remaining operands or results: each that is present has an attribute
// `<name>_<what>`.
template <typename Arrays>
class OptionalArrays {
 public:
  OptionalArrays(ffi::Dictionary attributes, Arrays arrays, const std::string& what)
      : arrays_(arrays), attributes_(attributes), what_(what) {}

  size_t Count(std::initializer_list<const char*> names) const {
    return std::count_if(names.begin(), names.end(), [&](const char* name) { return IsPresent(name); });
  }

  // The data pointer of the next array, or null if it is absent.
  void* Next(const std::string& name, ffi::DataType type, const std::vector<int64_t>& shape) {
    if (!IsPresent(name)) return nullptr;
    const auto array = arrays_.template get<ffi::AnyBuffer>(next_++);
    const std::string text = "the array for attribute " + AttributeOf(name);
    Require(array.has_value(), text, " is missing");
    const ffi::AnyBuffer buffer = BufferOf(*array);
    CheckType(text, buffer, type);
    CheckShape(text, buffer, shape);
    return buffer.untyped_data();
  }

 protected:
  Arrays arrays_;
  size_t next_ = 0;

 private:
  static ffi::AnyBuffer BufferOf(ffi::AnyBuffer operand) { return operand; }
  static ffi::AnyBuffer BufferOf(ffi::Result<ffi::AnyBuffer> result) { return *result; }

  std::string AttributeOf(const std::string& name) const { return name + "_" + what_; }
  bool IsPresent(const std::string& name) const { return Attribute<bool>(attributes_, AttributeOf(name)); }

  ffi::Dictionary attributes_;
  std::string what_;
};

using OptionalOperands = OptionalArrays<ffi::RemainingArgs>;

// The results of a handler that computes only some of them: each result has an attribute `<name>_requested`.
struct RequestedResults : OptionalArrays<ffi::RemainingRets> {
  RequestedResults(ffi::Dictionary attributes, ffi::RemainingRets results)
      : OptionalArrays(attributes, results, "requested") {}

  void CheckEnd() const { Require(next_ == arrays_.size(), "has ", arrays_.size(), " results, must have ", next_); }
};

}  // namespace dcn
