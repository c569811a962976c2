// XLA FFI handlers of the fused convolution and its weight's cotangent on CUDA.
#include "deform_conv/fused.h"

#include <algorithm>

#include "deform_conv/fused_rules.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// `y` is y or its cotangent.
Convolution DecodeFused(Checks& checks, Computation computation, ffi::Dictionary attributes, ffi::AnyBuffer x,
                        ffi::AnyBuffer offset, ffi::AnyBuffer origin, ffi::RemainingArgs mask, ffi::AnyBuffer y) {
  const Convolution call = DecodeConvolution(checks, attributes, x, offset, origin, mask, y);
  const DType y_dtype = CheckedDType(checks, y.element_type());
  if (!checks.ok()) return call;
  const std::string unsupported = UnsupportedByFusedCuda(computation, ShapeOf(call, y_dtype));
  checks.Require(unsupported.empty(), unsupported);
  return call;
}

FusedTile DecodeBlockTile(Checks& checks, ffi::Dictionary attributes, bool is_tile(FusedTile)) {
  const int64_t features = checks.Attribute(attributes, "tile_features", int64_t{64});
  const int64_t warps = checks.Attribute(attributes, "warps", int64_t{8});
  const bool fits = 0 < features && features <= 256 && 0 < warps && warps <= 8;
  const FusedTile tile = fits ? FusedTile{int32_t(features), int32_t(warps)} : FusedTile{};
  checks.Require(is_tile(tile), "there is no tile of " + std::to_string(features) + " features with " +
                                    std::to_string(warps) + " warps");
  return tile;
}

ffi::Error FusedForwardImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                            ffi::AnyBuffer weight, ffi::AnyBuffer bias, ffi::RemainingArgs mask,
                            ffi::Result<ffi::AnyBuffer> y, ffi::Dictionary attributes) {
  Checks checks("dcn_fused_forward");
  const Convolution call = DecodeFused(checks, Computation::kForward, attributes, x, offset, origin, mask, *y);
  const FusedTile tile = DecodeBlockTile(checks, attributes, IsForwardTile);
  if (!checks.ok()) return checks.error();
  const bool is_y_float = y->element_type() != x.element_type();
  checks.Type("weight", weight, x.element_type());
  checks.Shape("weight", weight, {call.product.features, call.sizes.taps(), call.group_channels()});
  checks.Type("bias", bias, ffi::F32);
  checks.Shape("bias", bias, {call.product.features});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedForward(device, call, tile, is_y_float, x.untyped_data(), weight.untyped_data(),
                              bias.untyped_data(), y->untyped_data()));
}

ffi::Error FusedWeightCotangentImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                                    ffi::AnyBuffer origin, ffi::AnyBuffer d_y, ffi::RemainingArgs mask,
                                    ffi::Result<ffi::AnyBuffer> partial_sums, ffi::Dictionary attributes) {
  Checks checks("dcn_fused_weight_cotangent");
  const Convolution call = DecodeFused(checks, Computation::kWeight, attributes, x, offset, origin, mask, d_y);
  const FusedTile tile = DecodeBlockTile(checks, attributes, IsWeightTile);
  const bool has_one_sample = checks.Attribute(attributes, "has_one_sample", false);
  checks.Rank("partial_sums", *partial_sums, 4);
  if (!checks.ok()) return checks.error();
  const int64_t num_splits = partial_sums->dimensions()[0];
  checks.Require(1 <= num_splits && num_splits <= std::max<int64_t>(call.sizes.pixels(), 1),
                 "partial_sums must be at most as many as there are pixels");
  checks.Require(!has_one_sample || SegmentChannels(call) % FusedLimits::kWeightTile == 0,
                 "attribute has_one_sample needs channel segments of whole tiles");
  checks.Type("partial_sums", *partial_sums, ffi::F32);
  checks.Shape("partial_sums", *partial_sums,
               {num_splits, call.sizes.taps(), call.group_channels(), call.product.features});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedWeightCotangent(device, call, tile, has_one_sample, num_splits, x.untyped_data(),
                                      d_y.untyped_data(), partial_sums->typed_data<float>()));
}

}  // namespace

std::vector<Handler> FusedDeformConvHandlers() {
  return {{"dcn_fused_forward", WrappedHandler<FusedForwardImpl>},
          {"dcn_fused_weight_cotangent", WrappedHandler<FusedWeightCotangentImpl>}};
}

}  // namespace dcn
