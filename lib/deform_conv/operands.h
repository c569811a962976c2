// Decodes the operands that all handlers of the convolution share, and checks them against each other.
#pragma once

#include <algorithm>
#include <optional>

#include "deform_conv/fused.h"
#include "ffi/checks.h"
#include "ffi/requested_results.h"

namespace dcn {

// Decodes the sizes and positions of a call, whose part is all of offset. If `may_lie_on_grid`, the call may be an
// ordinary convolution: it has no offset groups, so that offset and mask have no elements.
inline Convolution DecodeSampling(Checks& checks, ffi::Dictionary attributes, ffi::AnyBuffer offset,
                                  ffi::AnyBuffer origin, ffi::RemainingArgs rest, size_t mask_index = 0,
                                  bool may_lie_on_grid = false) {
  Convolution call = {};
  Sizes& sizes = call.sizes;
  Window& window = sizes.window;
  DecodeWindow(checks, attributes, window);
  window.circular = checks.Attribute(attributes, "circular", false);
  sizes.offset_groups = checks.Attribute(attributes, "offset_groups", int64_t{1});
  const bool is_on_grid = may_lie_on_grid && sizes.offset_groups == 0;
  checks.Require(sizes.offset_groups >= 1 || is_on_grid, "attribute offset_groups must be positive");
  checks.Rank("offset", offset, 4);
  checks.Type("origin", origin, ffi::S32);
  checks.Shape("origin", origin, {4});
  checks.FitsInt32("the number of taps", int64_t{window.kernel[0]} * window.kernel[1]);
  if (!checks.ok()) return call;

  const auto shape = offset.dimensions();
  sizes.images = sizes.images_of_positions = shape[0];
  sizes.rows = sizes.rows_of_positions = shape[1];
  sizes.columns = shape[2];
  checks.FitsInt32("the number of the output's rows", sizes.rows);
  checks.FitsInt32("the number of the output's columns", sizes.columns);
  const int64_t group_channels = int64_t{2} * sizes.taps();
  checks.Require(shape[3] % group_channels == 0 && shape[3] / group_channels == sizes.offset_groups,
                 "offset has shape " + ToString(shape) + ", must have two channels for each of " +
                     std::to_string(sizes.offset_groups) + " offset groups and " + std::to_string(sizes.taps()) +
                     " taps");
  call.positions = {offset.untyped_data(), nullptr, static_cast<const int32_t*>(origin.untyped_data())};
  if (const auto mask = OptionalOperand(checks, "mask", rest, mask_index)) {
    checks.Shape("mask", *mask, {shape[0], shape[1], shape[2], shape[3] / 2});
    checks.Type("mask", *mask, offset.element_type());
    call.positions.mask = mask->untyped_data();
  }
  if (is_on_grid) {
    call.is_on_grid = true;
    sizes.offset_groups = 1;
  }
  return call;
}

// Decodes the part of the batch that a call covers from its columns, or from their cotangents.
inline void DecodePart(Checks& checks, std::string_view operand, ffi::AnyBuffer columns, Sizes& sizes) {
  const auto shape = columns.dimensions();
  checks.Require(shape.size() > 2,
                 std::string(operand) + " has shape " + ToString(shape) + ", must have more dimensions");
  if (!checks.ok()) return;
  sizes.images = shape[0];
  sizes.rows = shape[1];
  const bool is_in_offset = sizes.images <= sizes.images_of_positions && sizes.rows <= sizes.rows_of_positions;
  checks.Require(is_in_offset && (sizes.images <= 1 || sizes.rows == sizes.rows_of_positions),
                 std::string(operand) + " has shape " + ToString(shape) + ", must have images of offset, which has " +
                     std::to_string(sizes.images_of_positions) + " of " + std::to_string(sizes.rows_of_positions) +
                     " rows, or rows of one image");
}

// Decodes the sizes of x, or of its cotangent, whichever the handler has.
inline void DecodeImage(Checks& checks, std::string_view operand, ffi::AnyBuffer x, Sizes& sizes) {
  checks.Rank(operand, x, 4);
  if (!checks.ok()) return;
  const auto shape = x.dimensions();
  sizes.height = shape[1];
  sizes.width = shape[2];
  sizes.channels = shape[3];
  sizes.images_of_x = shape[0];
  checks.Require(shape[0] >= sizes.images, std::string(operand) + " has fewer images than the part");
  checks.Require(sizes.channels % sizes.offset_groups == 0,
                 std::string(operand) + "'s channels must be divisible by the offset groups");
  checks.FitsInt32("the image's height", sizes.height);
  checks.FitsInt32("the image's width", sizes.width);
}

// Operands of a handler that come first in the remaining operands: each that is present has an attribute
// `<name>_<what>`.
class OptionalOperands {
 public:
  OptionalOperands(Checks& checks, ffi::Dictionary attributes, ffi::RemainingArgs rest, std::string_view what)
      : checks_(checks), attributes_(attributes), rest_(rest), what_(what) {}

  size_t Count(std::initializer_list<const char*> names) const {
    return std::count_if(names.begin(), names.end(), [&](const char* name) { return IsPresent(name); });
  }

  // The data pointer of the next operand, or null if it is absent.
  const void* Next(const std::string& name, ffi::DataType type, const std::vector<int64_t>& shape) {
    if (!IsPresent(name)) return nullptr;
    const auto operand = rest_.get<ffi::AnyBuffer>(next_++);
    checks_.Require(operand.has_value(), "lacks the operand that attribute " + AttributeOf(name) + " announces");
    if (!checks_.ok()) return nullptr;
    checks_.Type("the operand for " + AttributeOf(name), *operand, type);
    checks_.Shape("the operand for " + AttributeOf(name), *operand, shape);
    return operand->untyped_data();
  }

 private:
  std::string AttributeOf(const std::string& name) const { return name + "_" + what_; }
  bool IsPresent(const std::string& name) const { return checks_.Attribute(attributes_, AttributeOf(name), false); }

  Checks& checks_;
  ffi::Dictionary attributes_;
  ffi::RemainingArgs rest_;
  std::string what_;
  size_t next_ = 0;
};

}  // namespace dcn
