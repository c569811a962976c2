// The XLA FFI handler of the fused forward, for backends that have it.
#include "deform_conv_fused.h"

#include <limits>

#include "device.h"
#include "ffi/conv_operands.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

Product DecodeProduct(Checks& checks, ffi::Dictionary attributes, ffi::AnyBuffer x, ffi::AnyBuffer y) {
  Product product = {};
  product.groups = checks.Attribute(attributes, "feature_group_count", int64_t{1});
  checks.Require(product.groups >= 1, "attribute feature_group_count must be positive");
  const int64_t tile = checks.Attribute(attributes, "tile_features", int64_t{64});
  checks.Require(tile == 64 || tile == 128 || tile == 256, "attribute tile_features must be 64, 128 or 256");
  product.tile_features = int32_t(tile);
  product.wide = y.element_type() != x.element_type();
  checks.Type("y", y, product.wide ? ffi::F32 : x.element_type());
  checks.Rank("y", y, 4);
  if (checks.ok()) product.features = y.dimensions()[3];
  checks.FitsInt32("the number of features", product.features);
  return product;
}

// What the kernel does not take; Python decides by the same rule, and does not call it then.
void CheckVectors(Checks& checks, DType dtype, const Sizes& sizes, const Product& product) {
  checks.Require(dtype != DType::kF64, "x must not be float64");
  checks.FitsInt32("the number of bytes of a pixel", sizes.channels / FusedVector(dtype) * 16);
  const int64_t pixels = sizes.images_of_x * sizes.height;
  checks.FitsInt32("the number of pixels", sizes.width && pixels > std::numeric_limits<int64_t>::max() / sizes.width
                                               ? std::numeric_limits<int64_t>::max()
                                               : pixels * sizes.width);
  checks.Require(product.features % product.groups == 0 && sizes.channels % product.groups == 0,
                 "feature_group_count must divide the channels and the features");
  checks.Require(
      sizes.channels / product.groups % FusedVector(dtype) == 0 && sizes.group_channels() % FusedVector(dtype) == 0,
      "the channels of a group and of an offset group must be multiples of 16 bytes");
  checks.Require(product.group_features() % 2 == 0, "the features of a group must be even");
}

ffi::Error FusedForwardImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer weight,
                            ffi::AnyBuffer bias, ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> y,
                            ffi::Dictionary attributes) {
  Checks checks("dcn_fused_forward");
  Decoded call = Decode(checks, attributes, offset, OptionalOperand(checks, "mask", mask));
  Sizes& sizes = call.sizes;
  const DType dtype = CheckedDType(checks, x);
  DecodeImage(checks, "x", x, sizes);
  checks.Require(sizes.images_of_x == sizes.images, "x must have as many images as offset");
  checks.Type("offset", offset, ffi::F32);
  const Product product = DecodeProduct(checks, attributes, x, *y);
  if (!checks.ok()) return checks.error();
  CheckVectors(checks, dtype, sizes, product);
  checks.Type("weight", weight, x.element_type());
  checks.Shape("weight", weight, {product.features, sizes.taps(), sizes.channels / product.groups});
  checks.Type("bias", bias, ffi::F32);
  checks.Shape("bias", bias, {product.features});
  checks.Shape("y", *y, {sizes.images, sizes.rows, sizes.columns, product.features});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return Result(FusedForward(device, dtype, sizes, call.positions, product, x.untyped_data(), weight.untyped_data(),
                             bias.untyped_data(), y->untyped_data()));
}

XLA_FFI_DEFINE_HANDLER(kFusedForward, FusedForwardImpl,
                       ffi::Ffi::Bind()
                           .Ctx<Device::Binding>()
                           .Arg<ffi::AnyBuffer>()  // x
                           .Arg<ffi::AnyBuffer>()  // offset
                           .Arg<ffi::AnyBuffer>()  // weight
                           .Arg<ffi::AnyBuffer>()  // bias
                           .RemainingArgs()        // mask
                           .Ret<ffi::AnyBuffer>()  // y
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

std::vector<Handler> FusedDeformConvHandlers() { return {{"dcn_fused_forward", kFusedForward}}; }

}  // namespace dcn
