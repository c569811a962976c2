// XLA FFI handlers of the cotangent of x from those of the columns, for backends that sort the samples first.
#include <utility>
#include <vector>

#include "deform_conv/deform_conv.h"
#include "deform_conv/operands.h"
#include "device.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "sort_words.h"

namespace dcn {
namespace {

void CheckTables(int64_t images, int64_t offset_groups, int64_t samples, int64_t height, int64_t width) {
  const int64_t cells = SaturatingMultiply(height + 1, width + 1);
  CheckFitsInt32("the number of an image's pixels", cells);
  CheckFitsInt32("the number of an image's samples", samples);
  CheckElementCount("samples and cells", SaturatingProduct({images, offset_groups, 9 * samples + cells}));
}

// Only the size of x counts.
const char* SortSamplesImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer offset, ffi::AnyBuffer origin,
                            ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> samples,
                            ffi::Result<ffi::AnyBuffer> cell_start, ffi::Result<ffi::AnyBuffer> workspace,
                            ffi::Dictionary attributes) {
  Convolution convolution = DecodeSampling(attributes, offset, origin, mask);
  Sizes& sizes = convolution.sizes;
  CheckRank("samples", *samples, 4);
  const auto of_samples = samples->dimensions();
  const int64_t row_samples = SaturatingMultiply(sizes.columns, sizes.taps());
  sizes.images = of_samples[0];
  sizes.rows = row_samples ? of_samples[2] / row_samples : sizes.rows_of_positions;
  CheckPart("samples", of_samples, sizes);
  DecodeImage("x", x, sizes);
  const DType dtype = DecodeDType(offset.element_type());
  CheckType("offset", offset, AccumulatorType(x.element_type()));
  CheckTables(sizes.images, sizes.offset_groups, sizes.samples(), sizes.height, sizes.width);
  for (const auto& [name, buffer] :
       {std::pair{"samples", *samples}, {"cell_start", *cell_start}, {"workspace", *workspace}}) {
    CheckType(name, buffer, ffi::S32);
  }
  CheckShape("samples", *samples,
             {sizes.images, sizes.offset_groups, sizes.samples(), SortedSampleWords(SumBytes(dtype))});
  CheckShape("cell_start", *cell_start, {sizes.images, sizes.offset_groups, sizes.cells() + 1});
  CheckShape("workspace", *workspace, {sizes.images, sizes.offset_groups, sizes.samples()});
  return SortSamples(device, dtype, sizes, convolution.positions,
                     {samples->untyped_data(), cell_start->typed_data<int32_t>()}, workspace->typed_data<int32_t>());
}

const char* GatherSamplesImpl(Device& device, ffi::AnyBuffer samples, ffi::AnyBuffer cell_start, ffi::AnyBuffer start,
                              ffi::AnyBuffer d_columns, ffi::AnyBuffer d_x_in, ffi::Result<ffi::AnyBuffer> d_x,
                              ffi::Dictionary attributes) {
  CheckRank("samples", samples, 4);
  CheckType("samples", samples, ffi::S32);
  CheckType("cell_start", cell_start, ffi::S32);
  CheckType("start", start, ffi::S32);
  CheckShape("start", start, {3});
  CheckRank("d_columns", d_columns, 5);
  CheckRank("d_x", *d_x, 4);
  GatherSizes sizes = {};
  sizes.circular = Attribute<bool>(attributes, "circular");
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
  const DType dtype = DecodeDType(d_columns.element_type());
  const ffi::DataType wide = AccumulatorType(d_columns.element_type());
  const bool is_rounded = d_x->element_type() != wide;
  CheckType("d_x", *d_x, is_rounded ? d_columns.element_type() : wide);
  Require(d_x->untyped_data() == d_x_in.untyped_data(), "d_x must be added to in place");
  CheckType("d_x so far", d_x_in, d_x->element_type());
  CheckShape("d_x so far", d_x_in, {sizes.images_of_x, sizes.height, sizes.width, sizes.channels});
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
  CheckTables(sizes.images_of_samples, sizes.offset_groups, sizes.sorted_samples, sizes.height, sizes.width);
  CheckFitsInt32("the number of a pixel's bytes", SaturatingMultiply(sizes.channels, BytesOf(dtype)));
  const int64_t words = SortedSampleWords(SumBytes(dtype));
  CheckShape("samples", samples, {sizes.images_of_samples, sizes.offset_groups, sizes.sorted_samples, words});
  CheckShape("cell_start", cell_start, {sizes.images_of_samples, sizes.offset_groups, sizes.cells() + 1});
  CheckShape("d_columns", d_columns, {sizes.images, of_columns[1], of_columns[2], of_columns[3], sizes.channels});
  return GatherSamples(device, dtype, sizes, {samples.untyped_data(), cell_start.typed_data<int32_t>()},
                       start.typed_data<int32_t>(), d_columns.untyped_data(), is_rounded, d_x->untyped_data());
}

}  // namespace

std::vector<Handler> SortedDeformConvHandlers() {
  return {DCN_HANDLER("dcn_sort_samples", SortSamplesImpl), DCN_HANDLER("dcn_gather_samples", GatherSamplesImpl)};
}

}  // namespace dcn
