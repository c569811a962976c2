// XLA FFI handlers of the pooling: each decodes and checks its operands and calls the backend's function. Every backend
// module compiles this file with its own Device.
#include "roi_pool/roi_pool.h"

#include <optional>

#include "device.h"
#include "ffi/checks.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

struct PoolOperands {
  PoolSizes sizes = {};
  Rois rois = {};
  DType dtype = DType::kF32;
};

// `x` is x or its cotangent.
PoolOperands DecodePooling(Checks& checks, ffi::Dictionary attributes, ffi::DataType data_type, ffi::AnyBuffer x,
                           ffi::AnyBuffer rois, std::optional<ffi::AnyBuffer> offset) {
  PoolOperands operands;
  PoolSizes& sizes = operands.sizes;
  checks.Pair(attributes, "output_size", 1, sizes.output);
  checks.Pair(attributes, "group_size", 1, sizes.group);
  checks.Pair(attributes, "part_size", 1, sizes.part);
  const int64_t convention = checks.Attribute(attributes, "convention", int64_t{0});
  checks.Require(0 <= convention && convention <= int64_t(RoiConvention::kUnaligned),
                 "attribute convention is " + std::to_string(convention) + ", must be 0, 1 or 2");
  if (!checks.ok()) return operands;
  sizes.convention = RoiConvention(convention);
  checks.Pair(attributes, "points", sizes.is_rounded() ? 1 : 0, sizes.points);
  sizes.spatial_scale = checks.Attribute(attributes, "spatial_scale", 1.0);
  sizes.trans_std = checks.Attribute(attributes, "trans_std", 0.0);
  operands.dtype = CheckedDType(checks, data_type);
  checks.Rank("x", x, 5);
  checks.Rank("rois", rois, 3);
  checks.Type("rois", rois, AccumulatorType(data_type));
  checks.FitsInt32("the number of bins", int64_t{sizes.output[0]} * sizes.output[1]);
  if (!checks.ok()) return operands;

  const auto shape = x.dimensions();
  sizes.batches = shape[0];
  sizes.images = shape[1];
  sizes.height = shape[2];
  sizes.width = shape[3];
  sizes.channels = shape[4];
  sizes.rois = rois.dimensions()[1];
  sizes.classes = 1;
  checks.FitsInt32("the image's height", sizes.height);
  checks.FitsInt32("the image's width", sizes.width);
  for (int axis = 0; axis < 2; ++axis) {
    checks.FitsInt32("the number of points along an axis", BinPoints<double>::MostVisited(sizes, axis));
  }
  checks.Require(sizes.channels % sizes.groups() == 0, "x's channels must be divisible by the cells of group_size");
  checks.Shape("rois", rois, {sizes.batches, sizes.rois, 5});
  operands.rois = {rois.untyped_data(), nullptr};
  if (offset) {
    checks.Rank("offset", *offset, 5);
    checks.Type("offset", *offset, rois.element_type());
    if (!checks.ok()) return operands;
    const int64_t channels = offset->dimensions()[4];
    sizes.classes = channels / 2;
    checks.Require(channels % 2 == 0 && channels > 0 && sizes.features() % sizes.classes == 0,
                   "offset must have two channels for each of a number of classes that divides the features");
    checks.Shape("offset", *offset, {sizes.batches, sizes.rois, sizes.part[0], sizes.part[1], channels});
    operands.rois.offset = offset->untyped_data();
  } else {
    // Without an offset part_size has no effect, and no operand's shape bounds it, so products of it could overflow.
    sizes.part[0] = sizes.part[1] = 1;
  }
  return operands;
}

// `pooled` is the result or its cotangent.
void CheckPooled(Checks& checks, const PoolSizes& sizes, ffi::AnyBuffer pooled) {
  if (!checks.ok()) return;
  checks.Shape("pooled", pooled, {sizes.batches, sizes.rois, sizes.output[0], sizes.output[1], sizes.features()});
}

// Runs Pool or MaxPool.
ffi::Error RunPooling(Checks& checks, Device::Context context, const PoolOperands& operands, ffi::AnyBuffer x,
                      ffi::AnyBuffer pooled, decltype(Pool)* pool) {
  CheckPooled(checks, operands.sizes, pooled);
  checks.Type("x", x, pooled.element_type());
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(pool(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(), pooled.untyped_data()));
}

ffi::Error PoolImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer rois, ffi::RemainingArgs offset,
                    ffi::Result<ffi::AnyBuffer> pooled, ffi::Dictionary attributes) {
  Checks checks("dcn_roi_pool");
  const PoolOperands operands =
      DecodePooling(checks, attributes, pooled->element_type(), x, rois, OptionalOperand(checks, "offset", offset));
  return RunPooling(checks, context, operands, x, *pooled, Pool);
}

ffi::Error PoolXCotangentImpl(Device::Context context, ffi::AnyBuffer rois, ffi::AnyBuffer d_pooled,
                              ffi::RemainingArgs offset, ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  Checks checks("dcn_roi_pool_x_cotangent");
  const PoolOperands operands =
      DecodePooling(checks, attributes, d_pooled.element_type(), *d_x, rois, OptionalOperand(checks, "offset", offset));
  CheckPooled(checks, operands.sizes, d_pooled);
  checks.Type("d_x", *d_x, rois.element_type());
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(PoolXCotangent(device, operands.dtype, operands.sizes, operands.rois, d_pooled.untyped_data(),
                                d_x->untyped_data()));
}

ffi::Error PoolOffsetCotangentImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer rois,
                                   ffi::AnyBuffer d_pooled, ffi::AnyBuffer offset, ffi::Result<ffi::AnyBuffer> d_offset,
                                   ffi::Dictionary attributes) {
  Checks checks("dcn_roi_pool_offset_cotangent");
  const PoolOperands operands = DecodePooling(checks, attributes, d_pooled.element_type(), x, rois, offset);
  CheckPooled(checks, operands.sizes, d_pooled);
  checks.Type("x", x, d_pooled.element_type());
  const auto shape = offset.dimensions();
  checks.Type("d_offset", *d_offset, offset.element_type());
  if (checks.ok()) checks.Shape("d_offset", *d_offset, {shape[0], shape[1], shape[2], shape[3], shape[4]});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(PoolOffsetCotangent(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(),
                                     d_pooled.untyped_data(), d_offset->untyped_data()));
}

// The checks of a max pooling, which has no offset, and reads every channel in each bin.
PoolOperands DecodeMaxPooling(Checks& checks, ffi::Dictionary attributes, ffi::DataType data_type, ffi::AnyBuffer x,
                              ffi::AnyBuffer rois) {
  const PoolOperands operands = DecodePooling(checks, attributes, data_type, x, rois, std::nullopt);
  checks.Require(operands.sizes.groups() == 1 && operands.sizes.classes == 1, "group_size must be 1");
  return operands;
}

void CheckArgmax(Checks& checks, const PoolSizes& sizes, ffi::AnyBuffer argmax) {
  if (!checks.ok()) return;
  checks.Type("argmax", argmax, ffi::S32);
  checks.Shape("argmax", argmax, {2, sizes.batches, sizes.rois, sizes.output[0], sizes.output[1], sizes.channels});
}

ffi::Error MaxPoolImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer rois,
                       ffi::Result<ffi::AnyBuffer> pooled, ffi::Dictionary attributes) {
  Checks checks("dcn_roi_max_pool");
  const PoolOperands operands = DecodeMaxPooling(checks, attributes, pooled->element_type(), x, rois);
  return RunPooling(checks, context, operands, x, *pooled, MaxPool);
}

ffi::Error MaxPoolArgmaxImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer rois,
                             ffi::Result<ffi::AnyBuffer> argmax, ffi::Dictionary attributes) {
  Checks checks("dcn_roi_max_pool_argmax");
  const PoolOperands operands = DecodeMaxPooling(checks, attributes, x.element_type(), x, rois);
  CheckArgmax(checks, operands.sizes, *argmax);
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(MaxPoolArgmax(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(),
                               static_cast<int32_t*>(argmax->untyped_data())));
}

ffi::Error MaxPoolXCotangentImpl(Device::Context context, ffi::AnyBuffer rois, ffi::AnyBuffer d_pooled,
                                 ffi::AnyBuffer argmax, ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  Checks checks("dcn_roi_max_pool_x_cotangent");
  const PoolOperands operands = DecodeMaxPooling(checks, attributes, d_pooled.element_type(), *d_x, rois);
  CheckPooled(checks, operands.sizes, d_pooled);
  checks.Type("d_x", *d_x, rois.element_type());
  CheckArgmax(checks, operands.sizes, argmax);
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(MaxPoolXCotangent(device, operands.dtype, operands.sizes, operands.rois, d_pooled.untyped_data(),
                                   static_cast<const int32_t*>(argmax.untyped_data()), d_x->untyped_data()));
}

}  // namespace

std::vector<Handler> RoiPoolHandlers() {
  return {{"dcn_roi_pool", WrappedHandler<PoolImpl>},
          {"dcn_roi_pool_x_cotangent", WrappedHandler<PoolXCotangentImpl>},
          {"dcn_roi_pool_offset_cotangent", WrappedHandler<PoolOffsetCotangentImpl>},
          {"dcn_roi_max_pool", WrappedHandler<MaxPoolImpl>},
          {"dcn_roi_max_pool_argmax", WrappedHandler<MaxPoolArgmaxImpl>},
          {"dcn_roi_max_pool_x_cotangent", WrappedHandler<MaxPoolXCotangentImpl>}};
}

}  // namespace dcn
