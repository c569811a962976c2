// XLA FFI handlers of the cotangent of x from those of the columns, for backends that sort the samples first.
#include <optional>
#include <vector>

#include "deform_conv/deform_conv.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "scatter/operands.h"

namespace dcn {
namespace {

// Only the size of x counts.
const char* SortSamplesImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                            ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> values,
                            ffi::Result<ffi::AnyBuffer> row_start, ffi::Result<ffi::AnyBuffer> workspace,
                            ffi::Dictionary attributes) {
  Convolution convolution = DecodeSampling(attributes, offset, origin, mask);
  Sizes& sizes = convolution.sizes;
  CheckRank("values", *values, 4);
  const auto shape = values->dimensions();
  const int64_t row_samples = SaturatingMultiply(sizes.columns, sizes.taps());
  sizes.images = shape[0];
  sizes.rows = row_samples ? shape[2] / row_samples : sizes.rows_of_positions;
  CheckPart("values", shape, sizes);
  DecodeImage("x", x, sizes);
  CheckType("offset", offset, AccumulatorType(x.element_type()));
  const CsrTables tables = DecodeTables({sizes.images, sizes.offset_groups},
                                        {sizes.cells(), sizes.samples(), kSampleRecordSize, offset.element_type()},
                                        *values, *row_start, *workspace);
  return SortSamples(device, DecodeDType(offset.element_type()), sizes, convolution.positions, tables);
}

const char* GatherSamplesImpl(Device& device, ffi::AnyBuffer values, ffi::AnyBuffer row_start, ffi::AnyBuffer start,
                              ffi::AnyBuffer d_columns, ffi::AnyBuffer d_x_in, ffi::Result<ffi::AnyBuffer> d_x,
                              ffi::Dictionary attributes) {
  CheckRank("values", values, 4);
  CheckType("start", start, ffi::S32);
  CheckShape("start", start, {3});
  CheckRank("d_columns", d_columns, 5);
  CheckRank("d_x", *d_x, 4);
  GatherSizes sizes = {};
  sizes.circular = Attribute<bool>(attributes, "circular");
  const auto of_values = values.dimensions(), of_columns = d_columns.dimensions(), of_x = d_x->dimensions();
  sizes.images_of_samples = of_values[0];
  sizes.offset_groups = of_values[1];
  sizes.sorted_samples = of_values[2];
  sizes.images = of_columns[0];
  sizes.samples = SaturatingProduct({of_columns[1], of_columns[2], of_columns[3]});
  sizes.images_of_x = of_x[0];
  sizes.height = of_x[1];
  sizes.width = of_x[2];
  sizes.channels = of_x[3];
  const DType dtype = DecodeDType(d_columns.element_type());
  const ffi::DataType wide = AccumulatorType(d_columns.element_type());
  const bool is_rounded = d_x->element_type() != wide;
  CheckType("d_x", *d_x, is_rounded ? d_columns.element_type() : wide);
  CheckInPlace("d_x", *d_x, d_x_in);
  Require(sizes.offset_groups >= 1 && sizes.channels % sizes.offset_groups == 0, "d_x has ", sizes.channels,
          " channels, must have a multiple of the ", sizes.offset_groups, " offset groups of samples");
  Require(sizes.images <= sizes.images_of_x && sizes.images <= sizes.images_of_samples, "d_columns has ", sizes.images,
          " images, must have at most the ", sizes.images_of_x, " of d_x and the ", sizes.images_of_samples,
          " of samples");
  Require(is_rounded ? sizes.samples == sizes.sorted_samples : sizes.samples <= sizes.sorted_samples, "d_columns has ",
          sizes.samples, " samples of an image, must have ", is_rounded ? "" : "at most ", "the ", sizes.sorted_samples,
          " of samples");
  CheckFitsInt32("the image's height", sizes.height);
  CheckFitsInt32("the image's width", sizes.width);
  CheckFitsInt32("the number of a pixel's bytes", SaturatingMultiply(sizes.channels, BytesOf(dtype)));
  const CsrTables tables =
      DecodeTables({sizes.images_of_samples, sizes.offset_groups},
                   {sizes.cells(), sizes.sorted_samples, kSampleRecordSize, wide}, values, row_start, std::nullopt);
  CheckShape("d_columns", d_columns, {sizes.images, of_columns[1], of_columns[2], of_columns[3], sizes.channels});
  return GatherSamples(device, dtype, sizes, tables, start.typed_data<int32_t>(), d_columns.untyped_data(), is_rounded,
                       d_x->untyped_data());
}

}  // namespace

std::vector<Handler> SortedDeformConvHandlers() {
  return {DCN_HANDLER("dcn_sort_samples", SortSamplesImpl), DCN_HANDLER("dcn_gather_samples", GatherSamplesImpl)};
}

}  // namespace dcn
