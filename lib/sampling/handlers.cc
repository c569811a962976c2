// XLA FFI handlers of the sampling: each decodes and checks its operands and calls the backend's function. Every
// backend module compiles this file with its own Device.
#include "sampling/sampling.h"

#include <string_view>
#include <vector>

#include "device.h"
#include "dispatch.h"
#include "ffi/checks.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "scatter/operands.h"

namespace dcn {
namespace {

// The value of an enumeration whose last value is `last`.
template <typename Enum>
Enum Decode(const ffi::Dictionary& attributes, std::string_view name, Enum last) {
  return Enum(IntegerAttribute(attributes, name, 0, int64_t(last)));
}

// `x` is x or its cotangent, `out` is the result or its cotangent, which has the type of the data.
SamplingSizes DecodeSampling(const ffi::Dictionary& attributes, DType dtype, ffi::AnyBuffer x, ffi::AnyBuffer locations,
                             ffi::AnyBuffer out) {
  SamplingSizes sizes = {};
  sizes.rules = {Decode(attributes, "method", Interpolation::kCubic), Decode(attributes, "units", Units::kCorners),
                 Decode(attributes, "fold", Fold::kReflect), Decode(attributes, "outside", Outside::kReflect)};
  sizes.is_planar = Attribute<bool>(attributes, "planar");
  CheckRank("locations", locations, 3);
  CheckType("locations", locations, AccumulatorType(out.element_type()));
  const int64_t dims = locations.dimensions()[sizes.is_planar ? 1 : 2];
  Require(1 <= dims && dims <= kMaxAxes, "locations has ", dims, " coordinates, must have 1 to ", kMaxAxes);
  CheckRank("x", x, size_t(dims) + 2);
  sizes.dims = int32_t(dims);
  sizes.batches = x.dimensions().front();
  sizes.channels = x.dimensions().back();
  sizes.points = locations.dimensions()[sizes.is_planar ? 2 : 1];
  int64_t pixels = 1;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (axis >= sizes.dims) {
      sizes.size[axis] = 1;
      continue;
    }
    const int64_t size = x.dimensions()[size_t(axis) + 1];
    Require(size < kMaxAxisSize, "x has ", size, " pixels along an axis, must have fewer than ", kMaxAxisSize);
    sizes.size[axis] = int32_t(size);
    pixels = SaturatingMultiply(pixels, size);
  }
  CheckFitsInt32("the number of an image's pixels", pixels);
  CheckFitsInt32("the number of a pixel's bytes", SaturatingMultiply(sizes.channels, BytesOf(dtype)));
  CheckFitsInt32("the number of pixels that the samples of an image read", sizes.sorted_entries());
  Require(sizes.rules.interpolation != Interpolation::kCubic || dims == 2, "cubic interpolation needs two axes, x has ",
          dims);
  Require(locations.dimensions()[0] == sizes.batches, "locations has ", locations.dimensions()[0],
          " images, must have the ", sizes.batches, " of x");
  CheckShape("out", out, {sizes.batches, sizes.points, sizes.channels});
  return sizes;
}

const char* SamplingImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer locations, ffi::Result<ffi::AnyBuffer> out,
                         ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(out->element_type());
  const SamplingSizes sizes = DecodeSampling(attributes, dtype, x, locations, *out);
  CheckType("x", x, out->element_type());
  return DCN_BEST(Sample)(device, dtype, sizes, x.untyped_data(), locations.untyped_data(), out->untyped_data());
}

const char* SamplingXCotangentImpl(Device& device, ffi::AnyBuffer locations, ffi::AnyBuffer d_out,
                                   ffi::Result<ffi::AnyBuffer> d_x, ffi::RemainingRets sorted,
                                   ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(d_out.element_type());
  const SamplingSizes sizes = DecodeSampling(attributes, dtype, *d_x, locations, d_out);
  const bool is_wide = d_x->element_type() != d_out.element_type();
  if (is_wide) CheckType("d_x", *d_x, locations.element_type());
  const CsrTables tables = DecodeSorted(
      sorted, sizes.batches, {sizes.pixels(), sizes.sorted_entries(), kTapRecordSize, locations.element_type()});
  return DCN_BEST(SamplingXCotangent)(device, dtype, sizes, locations.untyped_data(), d_out.untyped_data(), is_wide,
                                      d_x->untyped_data(), tables);
}

const char* LocationsCotangentImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer locations, ffi::AnyBuffer d_out,
                                   ffi::Result<ffi::AnyBuffer> d_locations, ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(d_out.element_type());
  const SamplingSizes sizes = DecodeSampling(attributes, dtype, x, locations, d_out);
  CheckType("x", x, d_out.element_type());
  CheckType("d_locations", *d_locations, locations.element_type());
  CheckShape("d_locations", *d_locations, DimensionsOf(locations));
  return DCN_BEST(SamplingLocationsCotangent)(device, dtype, sizes, x.untyped_data(), locations.untyped_data(),
                                              d_out.untyped_data(), d_locations->untyped_data());
}

}  // namespace

std::vector<Handler> SamplingHandlers() {
  return {DCN_HANDLER("dcn_sampling", SamplingImpl), DCN_HANDLER("dcn_sampling_x_cotangent", SamplingXCotangentImpl),
          DCN_HANDLER("dcn_sampling_locations_cotangent", LocationsCotangentImpl)};
}

}  // namespace dcn
