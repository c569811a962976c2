// The operands that the handlers of the convolution have in common: decoded, and checked against each other.
#pragma once

#include <limits>
#include <optional>

#include "deform_conv.h"
#include "ffi/checks.h"

namespace dcn {

// One call's operands, checked against each other as far as every handler has them.
struct Decoded {
  Sizes sizes = {};
  Positions positions = {};
};

inline Decoded Decode(Checks& checks, ffi::Dictionary attributes, ffi::AnyBuffer offset,
                      std::optional<ffi::AnyBuffer> mask) {
  Decoded decoded;
  Sizes& sizes = decoded.sizes;
  Window& window = sizes.window;
  checks.Pair(attributes, "kernel_size", 1, window.kernel);
  checks.Pair(attributes, "strides", 1, window.strides);
  checks.Pair(attributes, "padding", std::numeric_limits<int32_t>::min(), window.padding);
  checks.Pair(attributes, "kernel_dilation", 1, window.dilation);
  window.circular = checks.Attribute(attributes, "circular", false);
  sizes.offset_groups = checks.Attribute(attributes, "offset_groups", int64_t{1});
  checks.Require(sizes.offset_groups >= 1, "attribute offset_groups must be positive");
  checks.Rank("offset", offset, 4);
  checks.FitsInt32("the number of taps", int64_t{window.kernel[0]} * window.kernel[1]);
  if (!checks.ok()) return decoded;

  const auto shape = offset.dimensions();
  sizes.images = shape[0];
  sizes.rows = shape[1];
  sizes.columns = shape[2];
  const int64_t group_channels = int64_t{2} * sizes.taps();
  checks.Require(shape[3] % group_channels == 0 && shape[3] / group_channels == sizes.offset_groups,
                 "offset has shape " + ToString(shape) + ", must have two channels for each of " +
                     std::to_string(sizes.offset_groups) + " offset groups and " + std::to_string(sizes.taps()) +
                     " taps");
  decoded.positions = {offset.untyped_data(), nullptr, nullptr};
  if (mask) {
    checks.Shape("mask", *mask, {shape[0], shape[1], shape[2], shape[3] / 2});
    checks.Type("mask", *mask, offset.element_type());
    decoded.positions.mask = mask->untyped_data();
  }
  return decoded;
}

inline void DecodeImage(Checks& checks, std::string_view operand, ffi::AnyBuffer x, Sizes& sizes) {
  checks.Rank(operand, x, 4);
  if (!checks.ok()) return;
  const auto shape = x.dimensions();
  sizes.height = shape[1];
  sizes.width = shape[2];
  sizes.channels = shape[3];
  sizes.images_of_x = shape[0];
  checks.Require(shape[0] >= sizes.images, std::string(operand) + " has fewer images than offset");
  checks.Require(sizes.channels % sizes.offset_groups == 0,
                 std::string(operand) + "'s channels must be divisible by the offset groups");
  checks.FitsInt32("the image's height", sizes.height);
  checks.FitsInt32("the image's width", sizes.width);
}

// The results that a handler writes the cotangents of offset and mask to, null where they are not wanted.
inline void DecodePositionCotangents(Checks& checks, ffi::Dictionary attributes, const Sizes& sizes, ffi::DataType type,
                                     ffi::RemainingRets results, void* (&cotangents)[2]) {
  const bool wanted[] = {checks.Attribute(attributes, "offset_wanted", false),
                         checks.Attribute(attributes, "mask_wanted", false)};
  checks.Require(results.size() == size_t(wanted[0]) + wanted[1], "must have one result for each wanted cotangent");
  size_t next = 0;
  for (int i = 0; i < 2; ++i) {
    cotangents[i] = nullptr;
    if (!checks.ok() || !wanted[i]) continue;
    auto result = results.get<ffi::AnyBuffer>(next++);
    checks.Require(result.has_value(), "a result must be an array");
    if (!checks.ok()) continue;
    checks.Type("a result", **result, type);
    checks.Shape("a result", **result,
                 {sizes.images, sizes.rows, sizes.columns, sizes.offset_groups * sizes.taps() * (i == 0 ? 2 : 1)});
    cotangents[i] = (*result)->untyped_data();
  }
}

}  // namespace dcn
