// XLA FFI handlers of the fused convolution on CPUs and of its cotangents.
#include "fused_convolution.h"

#include "device.h"
#include "ffi/conv_operands.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// The decoded operands of one call, except for the weight and the results.
struct FusedConvCall : ConvCall {
  Product product = {};
  DType dtype = DType::kF32;

  int64_t group_channels() const { return sizes.channels / product.groups; }
};

// `y` is y or its cotangent.
FusedConvCall DecodeFusedConv(Checks& checks, ffi::Dictionary attributes, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                              ffi::AnyBuffer origin, ffi::RemainingArgs mask, ffi::AnyBuffer weight, ffi::AnyBuffer y) {
  FusedConvCall call = {DecodeConvCall(checks, attributes, offset, origin, mask)};
  Sizes& sizes = call.sizes;
  Product& product = call.product;
  call.dtype = CheckedDType(checks, x.element_type());
  checks.Require(call.dtype == DType::kF32 || call.dtype == DType::kBF16, "x must be float32 or bfloat16");
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
  checks.Require(sizes.channels > 0 && product.features > 0, "there must be channels and features");
  checks.FitsInt32("the number of an image's pixels", SaturatingMultiply(sizes.height, sizes.width));
  checks.Type("weight", weight, x.element_type());
  if (checks.ok()) checks.Shape("weight", weight, {sizes.taps(), call.group_channels(), product.features});
  return call;
}

ffi::Error FusedConvForwardImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                ffi::AnyBuffer weight, ffi::AnyBuffer bias, ffi::RemainingArgs mask,
                                ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace,
                                ffi::Dictionary attributes) {
  Checks checks("dcn_cpu_fused_forward");
  const FusedConvCall call = DecodeFusedConv(checks, attributes, x, offset, origin, mask, weight, *y);
  const bool is_y_float = y->element_type() == ffi::F32;
  checks.Type("y", *y, is_y_float ? ffi::F32 : x.element_type());
  checks.Type("bias", bias, ffi::F32);
  checks.Shape("bias", bias, {call.product.features});
  checks.Type("workspace", *workspace, ffi::F32);
  if (checks.ok()) checks.Shape("workspace", *workspace, {FusedForwardWorkspace(call.sizes, call.product)});
  if (!checks.ok()) return checks.error();
  Device device(context);
  const FusedForwardArrays arrays = {x.untyped_data(), weight.untyped_data(), bias.typed_data<float>(),
                                     is_y_float,       y->untyped_data(),     workspace->typed_data<float>()};
  return ToError(FusedForward(device, call.dtype, call.sizes, call.positions, call.product, arrays));
}

XLA_FFI_DEFINE_HANDLER(kFusedConvForward, FusedConvForwardImpl,
                       ffi::Ffi::Bind()
                           .Ctx<Device::Binding>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Arg<ffi::AnyBuffer>()  // offset
                           .Arg<ffi::AnyBuffer>()  // origin
                           .Arg<ffi::AnyBuffer>()  // weight
                           .Arg<ffi::AnyBuffer>()  // bias
                           .RemainingArgs()        // mask
                           .Ret<ffi::AnyBuffer>()  // y
                           .Ret<ffi::AnyBuffer>()  // workspace
                           .Attrs());

}  // namespace

std::vector<Handler> FusedConvolutionHandlers() {
  return {{"dcn_cpu_fused_forward", WrappedHandler<kFusedConvForward>}};
}

}  // namespace dcn
