// XLA FFI handlers of the convolution that only CPUs have: the fused convolution and its cotangents, and the cotangent
// of x from those of the columns.
#include "deform_conv/fused.h"

#include <string>
#include <vector>

#include "deform_conv/fused_rules.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// Decodes a call of the fused kernels, which covers all images of x. `y` is y or its cotangent.
Convolution DecodeFusedConv(Checks& checks, bool is_forward, ffi::Dictionary attributes, ffi::AnyBuffer x,
                            ffi::AnyBuffer offset, ffi::AnyBuffer origin, ffi::RemainingArgs mask,
                            ffi::AnyBuffer weight, ffi::AnyBuffer y) {
  Convolution call = DecodeSampling(checks, attributes, offset, origin, mask, 0, true);
  Sizes& sizes = call.sizes;
  Product& product = call.product;
  call.dtype = CheckedDType(checks, x.element_type());
  DecodeImage(checks, "x", x, sizes);
  checks.Require(sizes.images_of_x == sizes.images, "x must have as many images as offset");
  checks.Type("offset", offset, ffi::F32);
  checks.Rank("y", y, 4);
  product.groups = checks.Attribute(attributes, "feature_group_count", int64_t{1});
  checks.Require(product.groups >= 1, "attribute feature_group_count must be positive");
  if (!checks.ok()) return call;
  product.features = y.dimensions()[3];
  checks.Shape("y", y, {sizes.images, sizes.rows, sizes.columns, product.features});
  checks.Require(product.features % product.groups == 0 && sizes.channels % product.groups == 0,
                 "feature_group_count must divide the channels and the features");
  const DType y_dtype = CheckedDType(checks, y.element_type());
  if (!checks.ok()) return call;
  const std::string unsupported = UnsupportedByFused(is_forward, ShapeOf(call, y_dtype));
  checks.Require(unsupported.empty(), unsupported);
  checks.Type("weight", weight, x.element_type());
  if (checks.ok()) checks.Shape("weight", weight, {sizes.taps(), call.group_channels(), product.features});
  return call;
}

ffi::Error FusedConvForwardImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                ffi::AnyBuffer weight, ffi::AnyBuffer bias, ffi::RemainingArgs mask,
                                ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace,
                                ffi::Dictionary attributes) {
  Checks checks("dcn_cpu_fused_forward");
  const Convolution call = DecodeFusedConv(checks, true, attributes, x, offset, origin, mask, weight, *y);
  const bool is_y_float = y->element_type() == ffi::F32;
  checks.Type("bias", bias, ffi::F32);
  checks.Shape("bias", bias, {call.product.features});
  checks.Type("workspace", *workspace, ffi::F32);
  if (checks.ok()) checks.Shape("workspace", *workspace, {FusedForwardWorkspace(call)});
  if (!checks.ok()) return checks.error();
  Device device(context);
  const FusedForwardArrays arrays = {x.untyped_data(), weight.untyped_data(), bias.typed_data<float>(),
                                     is_y_float,       y->untyped_data(),     workspace->typed_data<float>()};
  return ToError(FusedForward(device, call, arrays));
}

ffi::Error FusedConvCotangentsImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                                   ffi::AnyBuffer origin, ffi::AnyBuffer weight, ffi::AnyBuffer d_y,
                                   ffi::RemainingArgs mask, ffi::RemainingRets results, ffi::Dictionary attributes) {
  Checks checks("dcn_cpu_fused_cotangents");
  const Convolution call = DecodeFusedConv(checks, false, attributes, x, offset, origin, mask, weight, d_y);
  if (!checks.ok()) return checks.error();
  const Sizes& sizes = call.sizes;
  RequestedResults requested(checks, attributes, results);
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
  arrays.d_weight = next("weight", {sizes.taps(), call.group_channels(), call.product.features});
  const auto is_requested = [&](const char* name) { return checks.Attribute(attributes, name, false); };
  const bool offset_or_mask = is_requested("offset_requested") || is_requested("mask_requested");
  checks.Require(!(offset_or_mask && call.is_on_grid), "positions on the grid have no cotangents");
  arrays.requested = {is_requested("x_requested"), offset_or_mask, is_requested("weight_requested")};
  checks.Require(is_requested("workspace_requested"), "needs a workspace");
  const CotangentDivision division = {checks.Attribute(attributes, "num_splits", int64_t{1}),
                                      checks.Attribute(attributes, "num_planes", int64_t{1})};
  checks.Require(1 <= division.num_splits && division.num_splits <= kMaxWeightSplits,
                 "attribute num_splits must be a number of partial sums");
  checks.Require(1 <= division.num_planes && division.num_planes <= kMaxResidentPlanes,
                 "attribute num_planes must be a number of planes");
  if (!checks.ok()) return checks.error();
  arrays.workspace = next("workspace", {FusedCotangentsWorkspace(call, arrays.requested, division)});
  requested.CheckEnd();
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedCotangents(device, call, division, arrays));
}

ffi::Error XCotangentImpl(Device::Context context, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                          ffi::AnyBuffer d_columns, ffi::AnyBuffer d_x_in, ffi::RemainingArgs mask,
                          ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  Checks checks("dcn_cpu_x_cotangent");
  Convolution call = DecodeSampling(checks, attributes, offset, origin, mask);
  if (!checks.ok()) return checks.error();
  Sizes& sizes = call.sizes;
  DecodePart(checks, "d_columns", d_columns, sizes);
  if (!checks.ok()) return checks.error();
  const DType dtype = CheckedDType(checks, d_columns.element_type());
  const ffi::DataType wide = AccumulatorType(d_columns.element_type());
  checks.Type("d_columns", d_columns, wide);
  checks.Type("offset", offset, wide);
  DecodeImage(checks, "d_x", *d_x, sizes);
  checks.Type("d_x", *d_x, wide);
  checks.Require(d_x->untyped_data() == d_x_in.untyped_data(), "d_x must be added to in place");
  checks.Type("d_x so far", d_x_in, wide);
  checks.Shape("d_x so far", d_x_in, {sizes.images_of_x, sizes.height, sizes.width, sizes.channels});
  checks.Shape("d_columns", d_columns, {sizes.images, sizes.rows, sizes.columns, sizes.taps(), sizes.channels});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(XCotangent(device, dtype, sizes, call.positions, d_columns.untyped_data(), d_x->untyped_data()));
}

}  // namespace

std::vector<Handler> CpuDeformConvHandlers() {
  return {{"dcn_cpu_x_cotangent", WrappedHandler<XCotangentImpl>},
          {"dcn_cpu_fused_forward", WrappedHandler<FusedConvForwardImpl>},
          {"dcn_cpu_fused_cotangents", WrappedHandler<FusedConvCotangentsImpl>}};
}

}  // namespace dcn
