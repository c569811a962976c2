// XLA FFI handlers of the fused convolution and its cotangents, for backends that implement them.
#include "deform_conv_fused.h"

#include <algorithm>
#include <iterator>

#include "device.h"
#include "ffi/conv_operands.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "fused_rules.h"

namespace dcn {
namespace {

// The call for some of the images.
Convolution Images(Convolution call, int64_t first, int64_t count) {
  call.sizes.images = call.sizes.images_of_x = call.sizes.images_of_positions = count;
  const int64_t first_sample = first * call.sizes.offset_groups * call.sizes.samples();
  Positions& positions = call.positions;
  positions.offset = static_cast<const float*>(positions.offset) + 2 * first_sample;
  if (positions.mask) positions.mask = static_cast<const float*>(positions.mask) + first_sample;
  return call;
}

// The address of an image of a buffer of four dimensions.
void* ImageData(ffi::AnyBuffer buffer, DType dtype, int64_t image) {
  const auto shape = buffer.dimensions();
  return static_cast<char*>(buffer.untyped_data()) + image * shape[1] * shape[2] * shape[3] * BytesOf(dtype);
}

// `x` is x or its cotangent, which messages call `name`; `y` is y or its cotangent.
Convolution DecodeFused(Checks& checks, Computation computation, ffi::Dictionary attributes, std::string_view name,
                        ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin, ffi::RemainingArgs mask,
                        ffi::AnyBuffer y) {
  const Convolution call = DecodeConvolution(checks, attributes, name, x, offset, origin, mask, y);
  const DType y_dtype = CheckedDType(checks, y.element_type());
  if (!checks.ok()) return call;
  const std::string unsupported = UnsupportedByFusedCuda(computation, ShapeOf(call, y_dtype));
  checks.Require(unsupported.empty(), unsupported);
  return call;
}

// The input cotangent computes `images` at a time.
void CheckScatterLists(Checks& checks, const Convolution& call, int64_t images) {
  const Sizes& sizes = call.sizes;
  const int64_t lists = SaturatingProduct({images, sizes.offset_groups, sizes.taps()});
  const int64_t outputs = SaturatingMultiply(sizes.rows, sizes.columns);
  checks.FitsInt32("the number of contributions", SaturatingProduct({4, lists, outputs}));
  checks.FitsInt32("the number of their lists",
                   SaturatingMultiply(lists, SaturatingMultiply(sizes.height, sizes.width) + 1));
  const int64_t vectors = SaturatingProduct({images, outputs, call.product.features / FusedVector(call.dtype)});
  checks.Require(vectors <= FusedLimits::kMaxVectors, "the images of row_start have " + std::to_string(vectors) +
                                                          " vectors of 16 bytes of d_y, must be at most " +
                                                          std::to_string(FusedLimits::kMaxVectors));
}

void CheckWeightByChannel(Checks& checks, const Convolution& call, ffi::AnyBuffer weight, ffi::AnyBuffer x) {
  checks.Type("weight", weight, x.element_type());
  checks.Shape("weight", weight, {call.sizes.channels, call.sizes.taps(), call.product.group_features()});
}

ffi::Error FusedForwardImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                            ffi::AnyBuffer weight, ffi::AnyBuffer bias, ffi::RemainingArgs mask,
                            ffi::Result<ffi::AnyBuffer> y, ffi::Dictionary attributes) {
  Checks checks("dcn_fused_forward");
  const Convolution call = DecodeFused(checks, Computation::kForward, attributes, "x", x, offset, origin, mask, *y);
  const int64_t tile = checks.Attribute(attributes, "tile_features", int64_t{64});
  const auto& tiles = FusedLimits::kTileFeatures;
  checks.Require(std::find(std::begin(tiles), std::end(tiles), tile) != std::end(tiles),
                 "attribute tile_features must be 64, 128 or 256");
  if (!checks.ok()) return checks.error();
  const bool is_y_float = y->element_type() != x.element_type();
  checks.Type("weight", weight, x.element_type());
  checks.Shape("weight", weight, {call.product.features, call.sizes.taps(), call.group_channels()});
  checks.Type("bias", bias, ffi::F32);
  checks.Shape("bias", bias, {call.product.features});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedForward(device, call, int32_t(tile), is_y_float, x.untyped_data(), weight.untyped_data(),
                              bias.untyped_data(), y->untyped_data()));
}

ffi::Error FusedInputCotangentImpl(Device::Context context, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                                   ffi::AnyBuffer weight, ffi::AnyBuffer d_y, ffi::RemainingArgs mask,
                                   ffi::Result<ffi::AnyBuffer> d_x, ffi::Result<ffi::AnyBuffer> row_start,
                                   ffi::Result<ffi::AnyBuffer> contributions, ffi::Result<ffi::AnyBuffer> workspace,
                                   ffi::Dictionary attributes) {
  Checks checks("dcn_fused_input_cotangent");
  const Convolution call = DecodeFused(checks, Computation::kX, attributes, "d_x", *d_x, offset, origin, mask, d_y);
  if (!checks.ok()) return checks.error();
  CheckWeightByChannel(checks, call, weight, *d_x);
  checks.Rank("row_start", *row_start, 4);
  if (!checks.ok()) return checks.error();
  const Sizes& sizes = call.sizes;
  const int64_t images = row_start->dimensions()[0];  // at a time
  checks.Require(images > 0 || sizes.images == 0, "row_start has no images");
  CheckScatterLists(checks, call, images);
  const int64_t outputs = sizes.rows * sizes.columns, taps = sizes.taps();
  checks.Type("row_start", *row_start, ffi::S32);
  checks.Shape("row_start", *row_start, {images, sizes.offset_groups, taps, sizes.height * sizes.width + 1});
  checks.Type("contributions", *contributions, ffi::S32);
  checks.Shape("contributions", *contributions, {images, sizes.offset_groups, taps, 4 * outputs, 2});
  checks.Type("workspace", *workspace, ffi::S32);
  checks.Shape("workspace", *workspace, {images, sizes.offset_groups, taps, 4 * outputs});
  if (!checks.ok()) return checks.error();
  Device device(context);
  const ScatterLists lists = {row_start->typed_data<int32_t>(),
                              static_cast<Contribution*>(contributions->untyped_data()),
                              workspace->typed_data<int32_t>()};
  int64_t first = 0;
  do {  // also without images, because a captured graph needs a node
    const char* failure = FusedInputCotangent(device, Images(call, first, std::min(images, sizes.images - first)),
                                              lists, weight.untyped_data(), ImageData(d_y, call.dtype, first),
                                              ImageData(*d_x, call.dtype, first));
    if (failure) return ToError(failure);
    first += images;
  } while (first < sizes.images);
  return ffi::Error::Success();
}

ffi::Error FusedOffsetCotangentImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                                    ffi::AnyBuffer origin, ffi::AnyBuffer weight, ffi::AnyBuffer d_y,
                                    ffi::RemainingArgs mask, ffi::RemainingRets results, ffi::Dictionary attributes) {
  Checks checks("dcn_fused_offset_cotangent");
  const Convolution call = DecodeFused(checks, Computation::kOffset, attributes, "x", x, offset, origin, mask, d_y);
  if (!checks.ok()) return checks.error();
  CheckWeightByChannel(checks, call, weight, x);
  const int64_t block_taps = checks.Attribute(attributes, "block_taps", int64_t{1});
  checks.Require(1 <= block_taps && block_taps <= call.sizes.taps(), "attribute block_taps must be a number of taps");
  const Sizes& sizes = call.sizes;
  RequestedResults requested(checks, attributes, results);
  void* d_offset =
      requested.Next("offset", ffi::F32, {sizes.images, sizes.rows, sizes.columns, 2 * sizes.pixel_samples()});
  void* d_mask = requested.Next("mask", ffi::F32, {sizes.images, sizes.rows, sizes.columns, sizes.pixel_samples()});
  requested.CheckEnd();
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedOffsetCotangent(device, call, int32_t(block_taps), x.untyped_data(), weight.untyped_data(),
                                      d_y.untyped_data(), static_cast<float*>(d_offset), static_cast<float*>(d_mask)));
}

ffi::Error FusedWeightCotangentImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset,
                                    ffi::AnyBuffer origin, ffi::AnyBuffer d_y, ffi::RemainingArgs mask,
                                    ffi::Result<ffi::AnyBuffer> partial_sums, ffi::Dictionary attributes) {
  Checks checks("dcn_fused_weight_cotangent");
  const Convolution call = DecodeFused(checks, Computation::kWeight, attributes, "x", x, offset, origin, mask, d_y);
  checks.Rank("partial_sums", *partial_sums, 4);
  if (!checks.ok()) return checks.error();
  const int64_t num_splits = partial_sums->dimensions()[0];
  checks.Require(1 <= num_splits && num_splits <= std::max<int64_t>(call.sizes.pixels(), 1),
                 "partial_sums must be at most as many as there are pixels");
  checks.Type("partial_sums", *partial_sums, ffi::F32);
  checks.Shape("partial_sums", *partial_sums,
               {num_splits, call.sizes.taps(), call.group_channels(), call.product.features});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(FusedWeightCotangent(device, call, num_splits, x.untyped_data(), d_y.untyped_data(),
                                      partial_sums->typed_data<float>()));
}

}  // namespace

std::vector<Handler> FusedDeformConvHandlers() {
  return {{"dcn_fused_forward", WrappedHandler<FusedForwardImpl>},
          {"dcn_fused_input_cotangent", WrappedHandler<FusedInputCotangentImpl>},
          {"dcn_fused_offset_cotangent", WrappedHandler<FusedOffsetCotangentImpl>},
          {"dcn_fused_weight_cotangent", WrappedHandler<FusedWeightCotangentImpl>}};
}

}  // namespace dcn
