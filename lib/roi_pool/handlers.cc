// XLA FFI handlers of the pooling: each decodes and checks its operands and calls the backend's function. Every backend
// module compiles this file with its own Device.
#include "roi_pool/roi_pool.h"

#include <optional>

#include "device.h"
#include "dispatch.h"
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
PoolOperands DecodePooling(ffi::Dictionary attributes, ffi::DataType data_type, ffi::AnyBuffer x, ffi::AnyBuffer rois,
                           std::optional<ffi::AnyBuffer> offset) {
  PoolOperands operands;
  PoolSizes& sizes = operands.sizes;
  DecodePair(attributes, "output_size", 1, sizes.output);
  DecodePair(attributes, "group_size", 1, sizes.group);
  DecodePair(attributes, "part_size", 1, sizes.part);
  sizes.convention = RoiConvention(IntegerAttribute(attributes, "convention", 0, int64_t(RoiConvention::kUnaligned)));
  DecodePair(attributes, "points", sizes.is_rounded() ? 1 : 0, sizes.points);
  sizes.spatial_scale = Attribute<double>(attributes, "spatial_scale");
  sizes.trans_std = Attribute<double>(attributes, "trans_std");
  operands.dtype = DecodeDType(data_type);
  CheckRank("x", x, 5);
  CheckRank("rois", rois, 3);
  CheckType("rois", rois, AccumulatorType(data_type));
  CheckFitsInt32("the number of bins", int64_t{sizes.output[0]} * sizes.output[1]);

  const auto shape = x.dimensions();
  sizes.batches = shape[0];
  sizes.images = shape[1];
  sizes.height = shape[2];
  sizes.width = shape[3];
  sizes.channels = shape[4];
  sizes.rois = rois.dimensions()[1];
  sizes.classes = 1;
  CheckFitsInt32("the image's height", sizes.height);
  CheckFitsInt32("the image's width", sizes.width);
  for (int axis = 0; axis < 2; ++axis) {
    CheckFitsInt32("the number of points along an axis", BinPoints<double>::MostVisited(sizes, axis));
  }
  Require(sizes.channels % sizes.groups() == 0, "x has ", sizes.channels, " channels, must have a multiple of the ",
          sizes.groups(), " cells of group_size");
  CheckShape("rois", rois, {sizes.batches, sizes.rois, 5});
  operands.rois = {rois.untyped_data(), nullptr};
  if (offset) {
    CheckRank("offset", *offset, 5);
    CheckType("offset", *offset, rois.element_type());
    const int64_t channels = offset->dimensions()[4];
    sizes.classes = channels / 2;
    Require(channels % 2 == 0 && channels > 0 && sizes.features() % sizes.classes == 0, "offset has ", channels,
            " channels, must have two for each of a number of classes that divides the ", sizes.features(),
            " features");
    CheckShape("offset", *offset, {sizes.batches, sizes.rois, sizes.part[0], sizes.part[1], channels});
    operands.rois.offset = offset->untyped_data();
  } else {
    // Without an offset part_size has no effect, and no operand's shape bounds it, so products of it could overflow.
    sizes.part[0] = sizes.part[1] = 1;
  }
  return operands;
}

// `pooled` is the result or its cotangent.
void CheckPooled(const PoolSizes& sizes, ffi::AnyBuffer pooled) {
  CheckShape("pooled", pooled, {sizes.batches, sizes.rois, sizes.output[0], sizes.output[1], sizes.features()});
}

// Runs Pool or MaxPool.
const char* RunPooling(Device& device, const PoolOperands& operands, ffi::AnyBuffer x, ffi::AnyBuffer pooled,
                       decltype(Pool)* pool) {
  CheckPooled(operands.sizes, pooled);
  CheckType("x", x, pooled.element_type());
  return pool(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(), pooled.untyped_data());
}

const char* PoolImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer rois, ffi::RemainingArgs offset,
                     ffi::Result<ffi::AnyBuffer> pooled, ffi::Dictionary attributes) {
  const PoolOperands operands =
      DecodePooling(attributes, pooled->element_type(), x, rois, OptionalOperand("offset", offset));
  return RunPooling(device, operands, x, *pooled, DCN_BEST(Pool));
}

const char* PoolXCotangentImpl(Device& device, ffi::AnyBuffer rois, ffi::AnyBuffer d_pooled, ffi::RemainingArgs offset,
                               ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  const PoolOperands operands =
      DecodePooling(attributes, d_pooled.element_type(), *d_x, rois, OptionalOperand("offset", offset));
  CheckPooled(operands.sizes, d_pooled);
  CheckType("d_x", *d_x, rois.element_type());
  return DCN_BEST(PoolXCotangent)(device, operands.dtype, operands.sizes, operands.rois, d_pooled.untyped_data(),
                                  d_x->untyped_data());
}

const char* PoolOffsetCotangentImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer rois, ffi::AnyBuffer d_pooled,
                                    ffi::AnyBuffer offset, ffi::Result<ffi::AnyBuffer> d_offset,
                                    ffi::Dictionary attributes) {
  const PoolOperands operands = DecodePooling(attributes, d_pooled.element_type(), x, rois, offset);
  CheckPooled(operands.sizes, d_pooled);
  CheckType("x", x, d_pooled.element_type());
  CheckType("d_offset", *d_offset, offset.element_type());
  CheckShape("d_offset", *d_offset, DimensionsOf(offset));
  return DCN_BEST(PoolOffsetCotangent)(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(),
                                       d_pooled.untyped_data(), d_offset->untyped_data());
}

// The checks of a max pooling, which has no offset, and reads every channel in each bin.
PoolOperands DecodeMaxPooling(ffi::Dictionary attributes, ffi::DataType data_type, ffi::AnyBuffer x,
                              ffi::AnyBuffer rois) {
  const PoolOperands operands = DecodePooling(attributes, data_type, x, rois, std::nullopt);
  Require(operands.sizes.groups() == 1 && operands.sizes.classes == 1, "attribute group_size must be 1");
  return operands;
}

void CheckArgmax(const PoolSizes& sizes, ffi::AnyBuffer argmax) {
  CheckType("argmax", argmax, ffi::S32);
  CheckShape("argmax", argmax, {2, sizes.batches, sizes.rois, sizes.output[0], sizes.output[1], sizes.channels});
}

const char* MaxPoolImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer rois, ffi::Result<ffi::AnyBuffer> pooled,
                        ffi::Dictionary attributes) {
  const PoolOperands operands = DecodeMaxPooling(attributes, pooled->element_type(), x, rois);
  return RunPooling(device, operands, x, *pooled, DCN_BEST(MaxPool));
}

const char* MaxPoolArgmaxImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer rois, ffi::Result<ffi::AnyBuffer> argmax,
                              ffi::Dictionary attributes) {
  const PoolOperands operands = DecodeMaxPooling(attributes, x.element_type(), x, rois);
  CheckArgmax(operands.sizes, *argmax);
  return DCN_BEST(MaxPoolArgmax)(device, operands.dtype, operands.sizes, operands.rois, x.untyped_data(),
                                 static_cast<int32_t*>(argmax->untyped_data()));
}

const char* MaxPoolXCotangentImpl(Device& device, ffi::AnyBuffer rois, ffi::AnyBuffer d_pooled, ffi::AnyBuffer argmax,
                                  ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  const PoolOperands operands = DecodeMaxPooling(attributes, d_pooled.element_type(), *d_x, rois);
  CheckPooled(operands.sizes, d_pooled);
  CheckType("d_x", *d_x, rois.element_type());
  CheckArgmax(operands.sizes, argmax);
  return DCN_BEST(MaxPoolXCotangent)(device, operands.dtype, operands.sizes, operands.rois, d_pooled.untyped_data(),
                                     static_cast<const int32_t*>(argmax.untyped_data()), d_x->untyped_data());
}

}  // namespace

std::vector<Handler> RoiPoolHandlers() {
  return {DCN_HANDLER("dcn_roi_pool", PoolImpl),
          DCN_HANDLER("dcn_roi_pool_x_cotangent", PoolXCotangentImpl),
          DCN_HANDLER("dcn_roi_pool_offset_cotangent", PoolOffsetCotangentImpl),
          DCN_HANDLER("dcn_roi_max_pool", MaxPoolImpl),
          DCN_HANDLER("dcn_roi_max_pool_argmax", MaxPoolArgmaxImpl),
          DCN_HANDLER("dcn_roi_max_pool_x_cotangent", MaxPoolXCotangentImpl)};
}

}  // namespace dcn
