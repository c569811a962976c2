// Decodes the operands that all handlers of the convolution share, and checks them against each other.
#pragma once

#include <string_view>

#include "deform_conv/fused.h"
#include "ffi/checks.h"
#include "ffi/optional_arrays.h"

namespace dcn {

// Decodes the sizes and positions of a call, whose part is all of offset. If `may_lie_on_grid`, the call may be an
// ordinary convolution: it has no offset groups, so that offset and mask have no elements.
inline Convolution DecodeSampling(ffi::Dictionary attributes, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                  ffi::RemainingArgs rest, size_t mask_index = 0, bool may_lie_on_grid = false) {
  Convolution convolution = {};
  Sizes& sizes = convolution.sizes;
  Window& window = sizes.window;
  DecodeWindow(attributes, window);
  window.circular = Attribute<bool>(attributes, "circular");
  sizes.offset_groups = Attribute<int64_t>(attributes, "offset_groups");
  const bool is_on_grid = may_lie_on_grid && sizes.offset_groups == 0;
  Require(sizes.offset_groups >= 1 || is_on_grid, "attribute offset_groups must be positive, is ", sizes.offset_groups);
  CheckRank("offset", offset, 4);
  CheckType("origin", origin, ffi::S32);
  CheckShape("origin", origin, {4});
  CheckFitsInt32("the number of taps", int64_t{window.kernel[0]} * window.kernel[1]);

  const auto shape = offset.dimensions();
  sizes.images = sizes.images_of_positions = shape[0];
  sizes.rows = sizes.rows_of_positions = shape[1];
  sizes.columns = shape[2];
  CheckFitsInt32("the number of the output's rows", sizes.rows);
  CheckFitsInt32("the number of the output's columns", sizes.columns);
  const int64_t group_channels = int64_t{2} * sizes.taps();
  Require(shape[3] % group_channels == 0 && shape[3] / group_channels == sizes.offset_groups, "offset has shape ",
          shape, ", must have two channels for each of ", sizes.offset_groups, " offset groups and ", sizes.taps(),
          " taps");
  convolution.positions = {offset.untyped_data(), nullptr, static_cast<const int32_t*>(origin.untyped_data())};
  if (const auto mask = OptionalOperand("mask", rest, mask_index)) {
    CheckShape("mask", *mask, {shape[0], shape[1], shape[2], shape[3] / 2});
    CheckType("mask", *mask, offset.element_type());
    convolution.positions.mask = mask->untyped_data();
  }
  if (is_on_grid) {
    convolution.is_on_grid = true;
    sizes.offset_groups = 1;
  }
  return convolution;
}

// `shape` is that of an operand with the samples of a part.
inline void CheckPart(std::string_view operand, ffi::Span<const int64_t> shape, const Sizes& sizes) {
  const bool is_in_offset = sizes.images <= sizes.images_of_positions && sizes.rows <= sizes.rows_of_positions;
  Require(is_in_offset && (sizes.images <= 1 || sizes.rows == sizes.rows_of_positions), operand, " has shape ", shape,
          ", must have images of offset, which has ", sizes.images_of_positions, " of ", sizes.rows_of_positions,
          " rows, or rows of one image");
}

// Decodes the part of the batch that a call covers from its columns, or from their cotangents.
inline void DecodePart(std::string_view operand, ffi::AnyBuffer columns, Sizes& sizes) {
  const auto shape = columns.dimensions();
  Require(shape.size() > 2, operand, " has shape ", shape, ", must have more dimensions");
  sizes.images = shape[0];
  sizes.rows = shape[1];
  CheckPart(operand, shape, sizes);
}

// Decodes the sizes of x, or of its cotangent, whichever the handler has.
inline void DecodeImage(std::string_view operand, ffi::AnyBuffer x, Sizes& sizes) {
  CheckRank(operand, x, 4);
  const auto shape = x.dimensions();
  sizes.height = shape[1];
  sizes.width = shape[2];
  sizes.channels = shape[3];
  sizes.images_of_x = shape[0];
  Require(shape[0] >= sizes.images, operand, " has ", shape[0], " images, must have at least the ", sizes.images,
          " of the part");
  Require(sizes.channels % sizes.offset_groups == 0, operand, " has ", sizes.channels,
          " channels, must have a multiple of the ", sizes.offset_groups, " offset groups");
  CheckFitsInt32("the image's height", sizes.height);
  CheckFitsInt32("the image's width", sizes.width);
}

}  // namespace dcn
