// XLA FFI handlers of the sampling operations: each decodes and checks its operands and calls the backend's function.
// Every backend module compiles this file with its own Device.
#include "deform_conv/deform_conv.h"

#include "deform_conv/operands.h"
#include "device.h"
#include "dispatch.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// The type of the columns' cotangents for data of this type.
ffi::DataType ColumnCotangentType(ffi::DataType data) {
  return Device::kRoundsColumnCotangents ? data : AccumulatorType(data);
}

// The shape of offset, with two numbers per sample, or of mask, with one.
std::vector<int64_t> PositionShape(const Sizes& sizes, int64_t numbers) {
  return {sizes.images_of_positions, sizes.rows_of_positions, sizes.columns, numbers * sizes.pixel_samples()};
}

// Decodes a call of the handlers that sample x, which has no product.
Convolution DecodeSamplingOfX(ffi::Dictionary attributes, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                              ffi::AnyBuffer origin, ffi::AnyBuffer columns, ffi::RemainingArgs rest,
                              size_t mask_index = 0) {
  Convolution convolution = DecodeSampling(attributes, offset, origin, rest, mask_index);
  DecodePart("columns", columns, convolution.sizes);
  convolution.dtype = DecodeDType(x.element_type());
  DecodeImage("x", x, convolution.sizes);
  CheckType("offset", offset, AccumulatorType(x.element_type()));
  return convolution;
}

const char* SampleImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                       ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> columns, ffi::Dictionary attributes) {
  const Convolution convolution = DecodeSamplingOfX(attributes, x, offset, origin, *columns, mask);
  const Sizes& sizes = convolution.sizes;
  CheckType("columns", *columns, x.element_type());
  CheckShape("columns", *columns, {sizes.images, sizes.rows, sizes.columns, sizes.taps(), sizes.channels});
  return DCN_BEST(SampleColumns)(device, convolution.dtype, sizes, convolution.positions, x.untyped_data(),
                                 columns->untyped_data());
}

const char* SampleTangentsImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                               ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> columns,
                               ffi::Dictionary attributes) {
  OptionalOperands operands(attributes, rest, "tangent");
  const size_t mask_index = operands.Count({"x", "offset", "mask"});
  const Convolution convolution = DecodeSamplingOfX(attributes, x, offset, origin, *columns, rest, mask_index);
  const Sizes& sizes = convolution.sizes;
  Tangents tangents = {};
  tangents.x = operands.Next("x", x.element_type(), {sizes.images_of_x, sizes.height, sizes.width, sizes.channels});
  tangents.offset = operands.Next("offset", offset.element_type(), PositionShape(sizes, 2));
  tangents.mask = operands.Next("mask", offset.element_type(), PositionShape(sizes, 1));
  Require(convolution.positions.mask || !tangents.mask, "has a tangent of mask, but no mask");
  const bool columns_requested = Attribute<bool>(attributes, "columns_requested");
  CheckType("columns", *columns, x.element_type());
  CheckShape("columns", *columns,
             {sizes.images, sizes.rows, sizes.columns, sizes.taps(), columns_requested ? 2 : 1, sizes.channels});
  return DCN_BEST(SampleTangents)(device, convolution.dtype, sizes, convolution.positions, tangents, x.untyped_data(),
                                  columns_requested, columns->untyped_data());
}

const char* OffsetCotangentImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                ffi::AnyBuffer d_columns, ffi::RemainingArgs rest, ffi::RemainingRets results,
                                ffi::Dictionary attributes) {
  OptionalOperands so_far(attributes, rest, "requested");
  const size_t mask_index = so_far.Count({"offset", "mask"});
  const Convolution convolution = DecodeSamplingOfX(attributes, x, offset, origin, d_columns, rest, mask_index);
  const Sizes& sizes = convolution.sizes;
  CheckType("d_columns", d_columns, ColumnCotangentType(x.element_type()));
  CheckShape("d_columns", d_columns, {sizes.images, sizes.rows, sizes.columns, sizes.taps(), sizes.channels});
  RequestedResults requested(attributes, results);
  const auto in_place = [&](const std::string& name, int64_t numbers) {
    void* const result = requested.Next(name, offset.element_type(), PositionShape(sizes, numbers));
    const void* const operand = so_far.Next(name, offset.element_type(), PositionShape(sizes, numbers));
    Require(result == operand, "the result for ", name, " must be written in place");
    return result;
  };
  void* const d_offset = in_place("offset", 2);
  void* const d_mask = in_place("mask", 1);
  void* columns = requested.Next("columns", x.element_type(),
                                 {sizes.images, sizes.rows, sizes.columns, sizes.taps(), sizes.channels});
  requested.CheckEnd();
  return DCN_BEST(OffsetCotangent)(device, convolution.dtype, sizes, convolution.positions, x.untyped_data(),
                                   d_columns.untyped_data(), d_offset, d_mask, columns);
}

}  // namespace

std::vector<Handler> DeformConvHandlers() {
  return {DCN_HANDLER("dcn_sample", SampleImpl), DCN_HANDLER("dcn_sample_tangents", SampleTangentsImpl),
          DCN_HANDLER("dcn_offset_cotangent", OffsetCotangentImpl)};
}

}  // namespace dcn
