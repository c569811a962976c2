// Decodes the results of handlers that compute only what is requested.
#pragma once

#include <string>
#include <vector>

#include "ffi/checks.h"

namespace dcn {

// The results of a handler that computes only some of them: each result has an attribute `<name>_requested`.
class RequestedResults {
 public:
  RequestedResults(Checks& checks, ffi::Dictionary attributes, ffi::RemainingRets results)
      : checks_(checks), attributes_(attributes), results_(results) {}

  // The data pointer of the next result, or null if it is not requested.
  void* Next(const std::string& name, ffi::DataType type, const std::vector<int64_t>& shape) {
    if (!checks_.Attribute(attributes_, name + "_requested", false)) return nullptr;
    checks_.Require(next_ < results_.size(), "has no result for " + name + ", which is requested");
    if (!checks_.ok()) return nullptr;
    auto result = results_.get<ffi::AnyBuffer>(next_++);
    checks_.Require(result.has_value(), "the result for " + name + " must be an array");
    if (!checks_.ok()) return nullptr;
    checks_.Type("the result for " + name, **result, type);
    checks_.Shape("the result for " + name, **result, shape);
    return (*result)->untyped_data();
  }

  void CheckEnd() const { checks_.Require(next_ == results_.size(), "has more results than requested"); }

 private:
  Checks& checks_;
  ffi::Dictionary attributes_;
  ffi::RemainingRets results_;
  size_t next_ = 0;
};

}  // namespace dcn
