// XLA FFI handlers of the convolution that only CPUs have: the fused convolution and its cotangents, and the cotangent
// of x from those of the columns.
#include "deform_conv/fused.h"

#include <string>
#include <vector>

#include "deform_conv/fused_rules.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "dispatch.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// Decodes a call of the fused kernels, which covers all images of x. `y` is y or its cotangent.
Convolution DecodeFusedConv(bool is_forward, ffi::Dictionary attributes, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                            ffi::AnyBuffer origin, ffi::RemainingArgs mask, ffi::AnyBuffer weight, ffi::AnyBuffer y) {
  Convolution convolution = DecodeSampling(attributes, offset, origin, mask, 0, true);
  Sizes& sizes = convolution.sizes;
  Product& product = convolution.product;
  convolution.dtype = DecodeDType(x.element_type());
  DecodeImage("x", x, sizes);
  Require(sizes.images_of_x == sizes.images, "x has ", sizes.images_of_x, " images, must have the ", sizes.images,
          " of offset");
  CheckType("offset", offset, ffi::F32);
  CheckRank("y", y, 4);
  product.groups = Attribute<int64_t>(attributes, "feature_group_count");
  Require(product.groups >= 1, "attribute feature_group_count must be positive, is ", product.groups);
  product.features = y.dimensions()[3];
  CheckShape("y", y, {sizes.images, sizes.rows, sizes.columns, product.features});
  Require(product.features % product.groups == 0 && sizes.channels % product.groups == 0,
          "attribute feature_group_count must divide ", sizes.channels, " channels and ", product.features,
          " features, is ", product.groups);
  const DType y_dtype = DecodeDType(y.element_type());
  const std::string unsupported = UnsupportedByFused(is_forward, ShapeOf(convolution, y_dtype));
  Require(unsupported.empty(), unsupported);
  CheckType("weight", weight, x.element_type());
  CheckShape("weight", weight, {sizes.taps(), convolution.group_channels(), product.features});
  return convolution;
}

const char* FusedConvForwardImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                 ffi::AnyBuffer weight, ffi::AnyBuffer bias, ffi::RemainingArgs mask,
                                 ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace,
                                 ffi::Dictionary attributes) {
  const Convolution convolution = DecodeFusedConv(true, attributes, x, offset, origin, mask, weight, *y);
  const bool is_y_float = y->element_type() == ffi::F32;
  CheckType("bias", bias, ffi::F32);
  CheckShape("bias", bias, {convolution.product.features});
  CheckType("workspace", *workspace, ffi::F32);
  CheckShape("workspace", *workspace, {FusedForwardWorkspace(convolution)});
  const FusedForwardArrays arrays = {x.untyped_data(), weight.untyped_data(), bias.typed_data<float>(),
                                     is_y_float,       y->untyped_data(),     workspace->typed_data<float>()};
  return FusedForward(device, convolution, arrays);
}

const char* FusedConvCotangentsImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                    ffi::AnyBuffer weight, ffi::AnyBuffer d_y, ffi::RemainingArgs mask,
                                    ffi::RemainingRets results, ffi::Dictionary attributes) {
  const Convolution convolution = DecodeFusedConv(false, attributes, x, offset, origin, mask, weight, d_y);
  const Sizes& sizes = convolution.sizes;
  RequestedResults requested(attributes, results);
  FusedCotangentArrays arrays = {};
  arrays.x = x.untyped_data();
  arrays.weight = weight.untyped_data();
  arrays.d_y = d_y.untyped_data();
  const auto next = [&](const char* name, const std::vector<int64_t>& shape) {
    return static_cast<float*>(requested.Next(name, ffi::F32, shape));
  };
  arrays.d_x = requested.Next("x", x.element_type(), {sizes.images, sizes.height, sizes.width, sizes.channels});
  arrays.d_offset = next("offset", {sizes.images, sizes.rows, sizes.columns, 2 * sizes.pixel_samples()});
  arrays.d_mask = next("mask", {sizes.images, sizes.rows, sizes.columns, sizes.pixel_samples()});
  arrays.d_weight = next("weight", {sizes.taps(), convolution.group_channels(), convolution.product.features});
  const auto is_requested = [&](const char* name) { return Attribute<bool>(attributes, name); };
  const bool offset_or_mask = is_requested("offset_requested") || is_requested("mask_requested");
  Require(!(offset_or_mask && convolution.is_on_grid), "positions on the grid have no cotangents");
  arrays.requested = {is_requested("x_requested"), offset_or_mask, is_requested("weight_requested")};
  Require(is_requested("workspace_requested"), "needs a workspace");
  const CotangentDivision division = {IntegerAttribute(attributes, "num_splits", 1, kMaxWeightSplits),
                                      IntegerAttribute(attributes, "num_planes", 1, kMaxResidentPlanes)};
  arrays.workspace = next("workspace", {FusedCotangentsWorkspace(convolution, arrays.requested, division)});
  requested.CheckEnd();
  return FusedCotangents(device, convolution, division, arrays);
}

const char* XCotangentImpl(Device& device, ffi::AnyBuffer offset, ffi::AnyBuffer origin, ffi::AnyBuffer d_columns,
                           ffi::AnyBuffer d_x_in, ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> d_x,
                           ffi::Dictionary attributes) {
  Convolution convolution = DecodeSampling(attributes, offset, origin, mask);
  Sizes& sizes = convolution.sizes;
  DecodePart("d_columns", d_columns, sizes);
  const DType dtype = DecodeDType(d_columns.element_type());
  const ffi::DataType wide = AccumulatorType(d_columns.element_type());
  CheckType("d_columns", d_columns, wide);
  CheckType("offset", offset, wide);
  DecodeImage("d_x", *d_x, sizes);
  CheckType("d_x", *d_x, wide);
  CheckInPlace("d_x", *d_x, d_x_in);
  CheckShape("d_columns", d_columns, {sizes.images, sizes.rows, sizes.columns, sizes.taps(), sizes.channels});
  return DCN_BEST(XCotangent)(device, dtype, sizes, convolution.positions, d_columns.untyped_data(),
                              d_x->untyped_data());
}

}  // namespace

std::vector<Handler> CpuDeformConvHandlers() {
  return {DCN_HANDLER("dcn_cpu_x_cotangent", XCotangentImpl),
          DCN_HANDLER("dcn_cpu_fused_forward", FusedConvForwardImpl),
          DCN_HANDLER("dcn_cpu_fused_cotangents", FusedConvCotangentsImpl)};
}

}  // namespace dcn
