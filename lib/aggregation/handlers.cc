// XLA FFI handlers of the aggregation: each decodes and checks its operands and calls the backend's function. Every
// backend module compiles this file with its own Device.
#include "aggregation/aggregation.h"

#include <initializer_list>
#include <string_view>
#include <vector>

#include "device.h"
#include "dispatch.h"
#include "ffi/checks.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "ffi/optional_arrays.h"
#include "scatter/operands.h"

namespace dcn {
namespace {

struct AggregationOperands {
  AggregationSizes sizes = {};
  Taps taps = {};
  DType dtype = DType::kF32;
};

void CheckTaps(int64_t taps) {
  Require(taps <= kMaxTaps, "has ", taps, " taps for each query and head, may have at most ", kMaxTaps);
}

// The window of DCNv3 and DCNv4, and the image as the only level.
void DecodeImage(ffi::Dictionary attributes, int64_t height, int64_t width, AggregationSizes& sizes) {
  DecodeWindow(attributes, sizes.window);
  sizes.offset_scale = Attribute<double>(attributes, "offset_scale");
  sizes.remove_center = Attribute<bool>(attributes, "remove_center");
  CheckTaps(int64_t{sizes.window.kernel[0]} * sizes.window.kernel[1]);
  sizes.sampling = SamplingMethod::kWindow;
  sizes.num_levels = 1;
  sizes.taps = sizes.window.taps() - sizes.remove_center;
  sizes.levels[0] = {int32_t(height), int32_t(width), sizes.taps, 0, 0};
}

// The levels of an attention: an attribute with height, width and taps of each.
void DecodePyramid(ffi::Dictionary attributes, AggregationSizes& sizes) {
  sizes.sampling = Attribute<bool>(attributes, "discrete") ? SamplingMethod::kDiscrete : SamplingMethod::kBilinear;
  const auto levels = Attribute<ffi::Span<const int64_t>>(attributes, "levels");
  Require(levels.size() % 3 == 0 && levels.size() / 3 <= kMaxLevels,
          "attribute levels must have three values for each of at most ", kMaxLevels, " levels, has ", levels.size());
  int64_t pixels = 0, taps = 0;
  for (size_t i = 0; i < levels.size(); i += 3) {
    const int64_t height = levels[i], width = levels[i + 1], level_taps = levels[i + 2];
    CheckFitsInt32("a level's height", height);
    CheckFitsInt32("a level's width", width);
    CheckFitsInt32("the number of a level's taps", level_taps);
    sizes.levels[i / 3] = {int32_t(height), int32_t(width), int32_t(level_taps), int32_t(taps), pixels};
    pixels += height * width;
    taps += level_taps;
    CheckTaps(taps);
    CheckElementCount("the pixels of all levels", pixels);
  }
  sizes.num_levels = int32_t(levels.size() / 3);
  sizes.taps = int32_t(taps);
  Require(pixels == sizes.pixels, "value has ", sizes.pixels, " pixels, must have the ", pixels, " of all levels");
}

// `value` is value or its cotangent, `out` is the result or its cotangent, which has the type of the data. The pixels
// and the queries of a window have two dimensions, rows and columns; those of a pyramid have one.
AggregationOperands DecodeAggregation(ffi::Dictionary attributes, ffi::AnyBuffer value, ffi::AnyBuffer locations,
                                      ffi::AnyBuffer weights, ffi::AnyBuffer origin, ffi::AnyBuffer out) {
  AggregationOperands operands;
  AggregationSizes& sizes = operands.sizes;
  operands.dtype = DecodeDType(out.element_type());
  const ffi::DataType position_type = AccumulatorType(out.element_type());
  const bool is_window = Attribute<bool>(attributes, "window");
  const size_t image_dims = is_window ? 2 : 1;
  CheckRank("value", value, image_dims + 3);
  CheckRank("locations", locations, image_dims + 4);
  CheckType("locations", locations, position_type);
  CheckType("weights", weights, position_type);
  CheckType("origin", origin, ffi::S32);
  CheckShape("origin", origin, {2});

  const auto value_shape = value.dimensions(), shape = locations.dimensions();
  const int64_t height = value_shape[1], width = is_window ? value_shape[2] : 1;
  sizes.batches = value_shape[0];
  sizes.heads = value_shape[image_dims + 1];
  sizes.channels = value_shape[image_dims + 2];
  sizes.rows = shape[1];
  sizes.columns = is_window ? shape[2] : 1;
  CheckFitsInt32("the value's height", height);
  CheckFitsInt32("the value's width", width);
  CheckFitsInt32("the number of rows of queries", sizes.rows);
  CheckFitsInt32("the number of columns of queries", sizes.columns);
  sizes.pixels = height * width;
  if (is_window) {
    DecodeImage(attributes, height, width, sizes);
  } else {
    DecodePyramid(attributes, sizes);
  }
  CheckFitsInt32("the number of a head's samples", SaturatingMultiply(sizes.queries(), sizes.taps));
  const auto check_queries = [&](std::string_view name, ffi::AnyBuffer buffer, std::initializer_list<int64_t> rest) {
    std::vector<int64_t> expected = {sizes.batches, sizes.rows};
    if (is_window) expected.push_back(sizes.columns);
    expected.insert(expected.end(), rest);
    CheckShape(name, buffer, expected);
  };
  check_queries("locations", locations, {sizes.heads, sizes.taps, 2});
  check_queries("weights", weights, {sizes.heads, sizes.taps});
  check_queries("out", out, {sizes.heads, sizes.channels});
  operands.taps = {locations.untyped_data(), weights.untyped_data(),
                   static_cast<const int32_t*>(origin.untyped_data())};
  return operands;
}

const char* AggregateImpl(Device& device, ffi::AnyBuffer value, ffi::AnyBuffer locations, ffi::AnyBuffer weights,
                          ffi::AnyBuffer origin, ffi::Result<ffi::AnyBuffer> out, ffi::Dictionary attributes) {
  const AggregationOperands operands = DecodeAggregation(attributes, value, locations, weights, origin, *out);
  CheckType("value", value, out->element_type());
  return DCN_BEST(Aggregate)(device, operands.dtype, operands.sizes, operands.taps, value.untyped_data(),
                             out->untyped_data());
}

const char* ValueCotangentImpl(Device& device, ffi::AnyBuffer locations, ffi::AnyBuffer weights, ffi::AnyBuffer origin,
                               ffi::AnyBuffer d_out, ffi::Result<ffi::AnyBuffer> d_value, ffi::RemainingRets sorted,
                               ffi::Dictionary attributes) {
  const AggregationOperands operands = DecodeAggregation(attributes, *d_value, locations, weights, origin, d_out);
  const AggregationSizes& sizes = operands.sizes;
  const bool is_wide = d_value->element_type() != d_out.element_type();
  if (is_wide) CheckType("d_value", *d_value, locations.element_type());
  int64_t cells = 0;
  for (int32_t level = 0; level < sizes.num_levels; ++level) {
    cells += sizes.levels[level].cells();
    CheckElementCount("the pixels of all levels", cells);
  }
  const int64_t samples = sizes.queries() * sizes.taps;
  CheckFitsInt32("the number of a head's samples and pixels", samples + cells);
  CheckFitsInt32("the number of a query's bytes",
                 SaturatingProduct({sizes.heads, sizes.channels, BytesOf(operands.dtype)}));
  const CsrTables tables = DecodeSorted(sorted, sizes.batches * sizes.heads,
                                        {samples + cells, samples, kSampleRecordSize, locations.element_type()});
  return DCN_BEST(ValueCotangent)(device, operands.dtype, sizes, operands.taps, d_out.untyped_data(), is_wide,
                                  d_value->untyped_data(), tables);
}

const char* TapCotangentsImpl(Device& device, ffi::AnyBuffer value, ffi::AnyBuffer locations, ffi::AnyBuffer weights,
                              ffi::AnyBuffer origin, ffi::AnyBuffer d_out, ffi::RemainingRets results,
                              ffi::Dictionary attributes) {
  const AggregationOperands operands = DecodeAggregation(attributes, value, locations, weights, origin, d_out);
  CheckType("value", value, d_out.element_type());
  RequestedResults requested(attributes, results);
  void* d_locations = requested.Next("locations", locations.element_type(), DimensionsOf(locations));
  void* d_weights = requested.Next("weights", weights.element_type(), DimensionsOf(weights));
  requested.CheckEnd();
  return DCN_BEST(TapCotangents)(device, operands.dtype, operands.sizes, operands.taps, value.untyped_data(),
                                 d_out.untyped_data(), d_locations, d_weights);
}

}  // namespace

std::vector<Handler> AggregationHandlers() {
  return {DCN_HANDLER("dcn_aggregate", AggregateImpl),
          DCN_HANDLER("dcn_aggregation_value_cotangent", ValueCotangentImpl),
          DCN_HANDLER("dcn_aggregation_tap_cotangents", TapCotangentsImpl)};
}

}  // namespace dcn
