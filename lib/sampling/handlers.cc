// XLA FFI handlers of the sampling: each decodes and checks its operands and calls the backend's function. Every
// backend module compiles this file with its own Device.
#include "sampling/sampling.h"

#include <algorithm>
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

// The locations, or the coordinates along each axis, or their cotangents, of which array(i) is number i of `count`.
template <typename T, typename Array>
Coordinates<T> DecodeLocated(std::string_view name, const SamplingSizes& sizes, ffi::DataType type, size_t count,
                             const Array& array) {
  const size_t expected = sizes.is_planar ? size_t(sizes.dims) : 1;
  Require(count == expected, "the call has ", count, " arrays of ", name, ", must have ", expected);
  std::vector<int64_t> shape = {sizes.batches, sizes.points};
  if (!sizes.is_planar) shape.push_back(sizes.dims);
  Coordinates<T> located = {};
  for (size_t i = 0; i < count; ++i) {
    const ffi::AnyBuffer buffer = array(i);
    CheckType(name, buffer, type);
    CheckShape(name, buffer, shape);
    located.array[i] = buffer.untyped_data();
  }
  if (!sizes.is_planar) std::fill_n(located.array, sizes.dims, located.array[0]);
  return located;
}

struct SamplingOperands {
  SamplingSizes sizes;
  ffi::DataType type;  // of the locations
  Coordinates<const void> locations;
};

// `x` is x or its cotangent, `out` is the result or its cotangent, which has the type of the data. `located`: the
// locations, or the coordinates along each axis.
SamplingOperands DecodeSampling(const ffi::Dictionary& attributes, DType dtype, ffi::AnyBuffer x, ffi::AnyBuffer out,
                                ffi::RemainingArgs located) {
  SamplingOperands operands = {};
  SamplingSizes& sizes = operands.sizes;
  sizes.rules = {Decode(attributes, "method", Interpolation::kCubic), Decode(attributes, "units", Units::kCorners),
                 Decode(attributes, "fold", Fold::kReflect), Decode(attributes, "outside", Outside::kReflect)};
  sizes.is_planar = Attribute<bool>(attributes, "planar");
  operands.type = AccumulatorType(out.element_type());
  const int64_t dims = int64_t(x.dimensions().size()) - 2;
  Require(1 <= dims && dims <= kMaxAxes, "x has ", dims, " axes, must have 1 to ", kMaxAxes);
  sizes.dims = int32_t(dims);
  sizes.batches = x.dimensions().front();
  sizes.channels = x.dimensions().back();
  CheckRank("out", out, 3);
  sizes.points = out.dimensions()[1];
  CheckShape("out", out, {sizes.batches, sizes.points, sizes.channels});
  operands.locations = DecodeLocated<const void>("locations", sizes, operands.type, located.size(),
                                                 [&](size_t i) { return *located.get<ffi::AnyBuffer>(i); });
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
  return operands;
}

const char* SamplingImpl(Device& device, ffi::AnyBuffer x, ffi::RemainingArgs located, ffi::Result<ffi::AnyBuffer> out,
                         ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(out->element_type());
  const auto [sizes, type, locations] = DecodeSampling(attributes, dtype, x, *out, located);
  CheckType("x", x, out->element_type());
  return DCN_BEST(Sample)(device, dtype, sizes, x.untyped_data(), locations, out->untyped_data());
}

const char* SamplingXCotangentImpl(Device& device, ffi::AnyBuffer d_out, ffi::RemainingArgs located,
                                   ffi::Result<ffi::AnyBuffer> d_x, ffi::RemainingRets sorted,
                                   ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(d_out.element_type());
  const auto [sizes, type, locations] = DecodeSampling(attributes, dtype, *d_x, d_out, located);
  const bool is_wide = d_x->element_type() != d_out.element_type();
  if (is_wide) CheckType("d_x", *d_x, type);
  const CsrTables tables =
      DecodeSorted(sorted, sizes.batches, {sizes.pixels(), sizes.sorted_entries(), kTapRecordSize, type});
  return DCN_BEST(SamplingXCotangent)(device, dtype, sizes, locations, d_out.untyped_data(), is_wide,
                                      d_x->untyped_data(), tables);
}

const char* LocationsCotangentImpl(Device& device, ffi::AnyBuffer x, ffi::AnyBuffer d_out, ffi::RemainingArgs located,
                                   ffi::RemainingRets d_located, ffi::Dictionary attributes) {
  const DType dtype = DecodeDType(d_out.element_type());
  const auto [sizes, type, locations] = DecodeSampling(attributes, dtype, x, d_out, located);
  CheckType("x", x, d_out.element_type());
  const auto d_locations = DecodeLocated<void>("d_locations", sizes, type, d_located.size(),
                                               [&](size_t i) { return **d_located.get<ffi::AnyBuffer>(i); });
  return DCN_BEST(SamplingLocationsCotangent)(device, dtype, sizes, x.untyped_data(), locations, d_out.untyped_data(),
                                              d_locations);
}

}  // namespace

std::vector<Handler> SamplingHandlers() {
  return {DCN_HANDLER("dcn_sampling", SamplingImpl), DCN_HANDLER("dcn_sampling_x_cotangent", SamplingXCotangentImpl),
          DCN_HANDLER("dcn_sampling_locations_cotangent", LocationsCotangentImpl)};
}

}  // namespace dcn
