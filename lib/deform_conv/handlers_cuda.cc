// XLA FFI handlers of the cotangent of x from those of the columns, for backends that sort the samples first.
#include <string>
#include <vector>

#include "deform_conv/deform_conv.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "sort_words.h"

namespace dcn {
namespace {

void CheckTables(Checks& checks, int64_t images, int64_t offset_groups, int64_t samples, int64_t height,
                 int64_t width) {
  const int64_t cells = SaturatingMultiply(height + 1, width + 1);
  checks.FitsInt32("the number of an image's pixels", cells);
  checks.FitsInt32("the number of an image's samples", samples);
  if (!checks.ok()) return;
  checks.ElementCount("samples and cells", SaturatingProduct({images, offset_groups, 9 * samples + cells}));
}

// Only the size of x counts.
ffi::Error SortSamplesImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                           ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> samples,
                           ffi::Result<ffi::AnyBuffer> cell_start, ffi::Result<ffi::AnyBuffer> workspace,
                           ffi::Dictionary attributes) {
  Checks checks("dcn_sort_samples");
  Convolution call = DecodeSampling(checks, attributes, offset, origin, mask);
  if (!checks.ok()) return checks.error();
  Sizes& sizes = call.sizes;
  checks.Rank("samples", *samples, 4);
  if (!checks.ok()) return checks.error();
  const auto of_samples = samples->dimensions();
  const int64_t row_samples = SaturatingMultiply(sizes.columns, sizes.taps());
  sizes.images = of_samples[0];
  sizes.rows = row_samples ? of_samples[2] / row_samples : sizes.rows_of_positions;
  checks.Require(sizes.images <= sizes.images_of_positions && sizes.rows <= sizes.rows_of_positions,
                 "samples has more images or rows than offset");
  checks.Require(sizes.images <= 1 || sizes.rows == sizes.rows_of_positions,
                 "samples must be those of whole images, or of rows of one");
  DecodeImage(checks, "x", x, sizes);
  const DType dtype = CheckedDType(checks, offset.element_type());
  checks.Type("offset", offset, AccumulatorType(x.element_type()));
  CheckTables(checks, sizes.images, sizes.offset_groups, sizes.samples(), sizes.height, sizes.width);
  for (const auto& [name, buffer] :
       {std::pair{"samples", *samples}, {"cell_start", *cell_start}, {"workspace", *workspace}}) {
    checks.Type(name, buffer, ffi::S32);
  }
  checks.Shape("samples", *samples,
               {sizes.images, sizes.offset_groups, sizes.samples(), SortedSampleWords(SumBytes(dtype))});
  checks.Shape("cell_start", *cell_start, {sizes.images, sizes.offset_groups, sizes.cells() + 1});
  checks.Shape("workspace", *workspace, {sizes.images, sizes.offset_groups, sizes.samples()});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(SortSamples(device, dtype, sizes, call.positions,
                             {samples->untyped_data(), cell_start->typed_data<int32_t>()},
                             workspace->typed_data<int32_t>()));
}

ffi::Error GatherSamplesImpl(Device::Context context, ffi::AnyBuffer samples, ffi::AnyBuffer cell_start,
                             ffi::AnyBuffer start, ffi::AnyBuffer d_columns, ffi::AnyBuffer d_x_in,
                             ffi::Result<ffi::AnyBuffer> d_x, ffi::Dictionary attributes) {
  Checks checks("dcn_gather_samples");
  checks.Rank("samples", samples, 4);
  checks.Type("samples", samples, ffi::S32);
  checks.Type("cell_start", cell_start, ffi::S32);
  checks.Type("start", start, ffi::S32);
  checks.Shape("start", start, {3});
  checks.Rank("d_columns", d_columns, 5);
  checks.Rank("d_x", *d_x, 4);
  GatherSizes sizes = {};
  sizes.circular = checks.Attribute(attributes, "circular", false);
  if (!checks.ok()) return checks.error();
  const auto of_samples = samples.dimensions(), of_columns = d_columns.dimensions(), of_x = d_x->dimensions();
  sizes.images_of_samples = of_samples[0];
  sizes.offset_groups = of_samples[1];
  sizes.sorted_samples = of_samples[2];
  sizes.images = of_columns[0];
  sizes.samples = SaturatingProduct({of_columns[1], of_columns[2], of_columns[3]});
  sizes.images_of_x = of_x[0];
  sizes.height = of_x[1];
  sizes.width = of_x[2];
  sizes.channels = of_x[3];
  const DType dtype = CheckedDType(checks, d_columns.element_type());
  const ffi::DataType wide = AccumulatorType(d_columns.element_type());
  const bool is_rounded = d_x->element_type() != wide;
  checks.Type("d_x", *d_x, is_rounded ? d_columns.element_type() : wide);
  checks.Require(d_x->untyped_data() == d_x_in.untyped_data(), "d_x must be added to in place");
  checks.Type("d_x so far", d_x_in, d_x->element_type());
  checks.Shape("d_x so far", d_x_in, {sizes.images_of_x, sizes.height, sizes.width, sizes.channels});
  checks.Require(sizes.offset_groups >= 1 && sizes.channels % sizes.offset_groups == 0,
                 "d_x's channels must be divisible by the offset groups of samples");
  checks.Require(sizes.images <= sizes.images_of_x && sizes.images <= sizes.images_of_samples,
                 "d_columns has more images than d_x or samples");
  checks.Require(is_rounded ? sizes.samples == sizes.sorted_samples : sizes.samples <= sizes.sorted_samples,
                 "d_columns must have the samples of an image, or some of them where d_x has the type of offset");
  checks.FitsInt32("the image's height", sizes.height);
  checks.FitsInt32("the image's width", sizes.width);
  if (!checks.ok()) return checks.error();
  CheckTables(checks, sizes.images_of_samples, sizes.offset_groups, sizes.sorted_samples, sizes.height, sizes.width);
  checks.FitsInt32("the number of a pixel's bytes", SaturatingMultiply(sizes.channels, BytesOf(dtype)));
  if (!checks.ok()) return checks.error();
  const int64_t words = SortedSampleWords(SumBytes(dtype));
  checks.Shape("samples", samples, {sizes.images_of_samples, sizes.offset_groups, sizes.sorted_samples, words});
  checks.Shape("cell_start", cell_start, {sizes.images_of_samples, sizes.offset_groups, sizes.cells() + 1});
  checks.Shape("d_columns", d_columns, {sizes.images, of_columns[1], of_columns[2], of_columns[3], sizes.channels});
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(GatherSamples(device, dtype, sizes, {samples.untyped_data(), cell_start.typed_data<int32_t>()},
                               start.typed_data<int32_t>(), d_columns.untyped_data(), is_rounded, d_x->untyped_data()));
}

}  // namespace

std::vector<Handler> SortedDeformConvHandlers() {
  return {{"dcn_sort_samples", WrappedHandler<SortSamplesImpl>},
          {"dcn_gather_samples", WrappedHandler<GatherSamplesImpl>}};
}

}  // namespace dcn
