// XLA FFI handlers of the sampling: each decodes and checks its operands and calls the backend's function. Every
// backend module compiles this file with its own Device.
#include "sampling/sampling.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "device.h"
#include "ffi/checks.h"
#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"

namespace dcn {
namespace {

// The value of an enumeration whose last value is `last`.
template <typename Enum>
Enum Decode(Checks& checks, const ffi::Dictionary& attributes, std::string_view name, Enum last) {
  const int64_t value = checks.Attribute(attributes, name, int64_t{0});
  checks.Require(0 <= value && value <= int64_t(last), "attribute " + std::string(name) + " is " +
                                                           std::to_string(value) + ", must be from 0 to " +
                                                           std::to_string(int64_t(last)));
  return checks.ok() ? Enum(value) : Enum(0);
}

// `x` is x or its cotangent, `out` is the result or its cotangent, which has the type of the data.
SamplingSizes DecodeSampling(Checks& checks, const ffi::Dictionary& attributes, DType dtype, ffi::AnyBuffer x,
                             ffi::AnyBuffer locations, ffi::AnyBuffer out) {
  SamplingSizes sizes = {};
  sizes.rules = {
      Decode(checks, attributes, "method", Interpolation::kCubic), Decode(checks, attributes, "units", Units::kCorners),
      Decode(checks, attributes, "fold", Fold::kReflect), Decode(checks, attributes, "outside", Outside::kReflect)};
  sizes.is_planar = checks.Attribute(attributes, "planar", false);
  checks.Rank("locations", locations, 3);
  checks.Type("locations", locations, AccumulatorType(out.element_type()));
  if (!checks.ok()) return sizes;
  const int64_t dims = locations.dimensions()[sizes.is_planar ? 1 : 2];
  checks.Require(1 <= dims && dims <= kMaxAxes,
                 "locations has " + std::to_string(dims) + " coordinates, must have 1 to 3");
  if (!checks.ok()) return sizes;
  checks.Rank("x", x, size_t(dims) + 2);
  if (!checks.ok()) return sizes;
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
    checks.Require(size < kMaxAxisSize, "x has " + std::to_string(size) + " pixels along an axis, which are too many");
    if (!checks.ok()) return sizes;
    sizes.size[axis] = int32_t(size);
    pixels = SaturatingMultiply(pixels, size);
  }
  checks.FitsInt32("the number of an image's pixels", pixels);
  checks.FitsInt32("the number of a pixel's bytes", SaturatingMultiply(sizes.channels, BytesOf(dtype)));
  checks.FitsInt32("the number of pixels that the samples of an image read",
                   SaturatingMultiply(sizes.points, std::max(sizes.taps(), sizes.dims == 3 ? 8 : 4)));
  checks.Require(sizes.rules.interpolation != Interpolation::kCubic || dims == 2, "cubic interpolation needs two axes");
  if (sizes.is_planar) {
    checks.Shape("locations", locations, {sizes.batches, dims, sizes.points});
  } else {
    checks.Shape("locations", locations, {sizes.batches, sizes.points, dims});
  }
  checks.Shape("out", out, {sizes.batches, sizes.points, sizes.channels});
  return sizes;
}

ffi::Error SamplingImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer locations,
                        ffi::Result<ffi::AnyBuffer> out, ffi::Dictionary attributes) {
  Checks checks("dcn_sampling");
  const DType dtype = CheckedDType(checks, out->element_type());
  const SamplingSizes sizes = DecodeSampling(checks, attributes, dtype, x, locations, *out);
  checks.Type("x", x, out->element_type());
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(Sample(device, dtype, sizes, x.untyped_data(), locations.untyped_data(), out->untyped_data()));
}

ffi::Error SamplingXCotangentImpl(Device::Context context, ffi::AnyBuffer locations, ffi::AnyBuffer d_out,
                                  ffi::Result<ffi::AnyBuffer> d_x, ffi::Result<ffi::AnyBuffer> workspace,
                                  ffi::Dictionary attributes) {
  Checks checks("dcn_sampling_x_cotangent");
  const DType dtype = CheckedDType(checks, d_out.element_type());
  const SamplingSizes sizes = DecodeSampling(checks, attributes, dtype, *d_x, locations, d_out);
  const bool is_wide = d_x->element_type() != d_out.element_type();
  if (is_wide) checks.Type("d_x", *d_x, locations.element_type());
  checks.Type("workspace", *workspace, ffi::S32);
  checks.Rank("workspace", *workspace, 1);
  if (!checks.ok()) return checks.error();
  const int64_t workspace_size = workspace->dimensions()[0], min_size = MinWorkspaceSize(dtype, sizes);
  checks.Require(workspace_size >= min_size, "workspace has " + std::to_string(workspace_size) +
                                                 " elements, must have at least " + std::to_string(min_size));
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(SamplingXCotangent(device, dtype, sizes, locations.untyped_data(), d_out.untyped_data(), is_wide,
                                    d_x->untyped_data(), workspace->typed_data<int32_t>(), workspace_size));
}

ffi::Error LocationsCotangentImpl(Device::Context context, ffi::AnyBuffer x, ffi::AnyBuffer locations,
                                  ffi::AnyBuffer d_out, ffi::Result<ffi::AnyBuffer> d_locations,
                                  ffi::Dictionary attributes) {
  Checks checks("dcn_sampling_locations_cotangent");
  const DType dtype = CheckedDType(checks, d_out.element_type());
  const SamplingSizes sizes = DecodeSampling(checks, attributes, dtype, x, locations, d_out);
  checks.Type("x", x, d_out.element_type());
  checks.Type("d_locations", *d_locations, locations.element_type());
  const auto shape = locations.dimensions();
  checks.Shape("d_locations", *d_locations, std::vector<int64_t>(shape.begin(), shape.end()));
  if (!checks.ok()) return checks.error();
  Device device(context);
  return ToError(SamplingLocationsCotangent(device, dtype, sizes, x.untyped_data(), locations.untyped_data(),
                                            d_out.untyped_data(), d_locations->untyped_data()));
}

}  // namespace

std::vector<Handler> SamplingHandlers() {
  return {{"dcn_sampling", WrappedHandler<SamplingImpl>},
          {"dcn_sampling_x_cotangent", WrappedHandler<SamplingXCotangentImpl>},
          {"dcn_sampling_locations_cotangent", WrappedHandler<LocationsCotangentImpl>}};
}

}  // namespace dcn
