// The Python module of one backend: its handlers as capsules, the FFI version and compiler of the build, and the limits
// of the fused kernels. All backends export these limits, since CUDA programs may be lowered by a build without CUDA.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>

#include "ffi/fused_limits.h"
#include "ffi/handlers.h"

namespace nb = nanobind;

namespace {

nb::dict FusedLimits() {
  using Limits = dcn::FusedLimits;
  nb::list tile_features;
  for (const int64_t features : Limits::kTileFeatures) tile_features.append(features);
  nb::dict limits;
  limits["vector_bytes"] = Limits::kVectorBytes;
  limits["max_pixels"] = dcn::kMaxPixels;
  limits["tile_pixels"] = Limits::kTilePixels;
  limits["tile_features"] = nb::tuple(tile_features);
  limits["min_channels"] = Limits::kMinChannels;
  limits["weight_tile"] = Limits::kWeightTile;
  limits["min_split_pixels"] = Limits::kMinSplitPixels;
  return limits;
}

// x: [images, height, width, channels]; output: its rows and columns.
std::string FusedRejection(const std::string& kernel, const std::string& dtype, std::array<int64_t, 4> x,
                           std::array<int64_t, 2> output, std::array<int32_t, 2> kernel_size, int64_t offset_groups,
                           int64_t features, int64_t feature_group_count) {
  dcn::Sizes sizes = {};
  sizes.window.kernel[0] = kernel_size[0];
  sizes.window.kernel[1] = kernel_size[1];
  sizes.images = x[0];
  sizes.images_of_x = x[0];
  sizes.height = x[1];
  sizes.width = x[2];
  sizes.channels = x[3];
  sizes.rows = output[0];
  sizes.columns = output[1];
  sizes.offset_groups = offset_groups;
  const dcn::DType type = dtype == "float16"    ? dcn::DType::kF16
                          : dtype == "bfloat16" ? dcn::DType::kBF16
                          : dtype == "float32"  ? dcn::DType::kF32
                                                : dcn::DType::kF64;
  return dcn::FusedRejection(kernel, type, sizes, {features, feature_group_count});
}

}  // namespace

NB_MODULE(DCN_MODULE, module) {
  nb::dict handlers;
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      handlers[handler.name] = nb::capsule(reinterpret_cast<void*>(handler.call));
    }
  }
  module.attr("handlers") = handlers;
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.attr("compiler") = DCN_COMPILER;
  module.attr("fused_limits") = FusedLimits();
  module.def("fused_rejection", &FusedRejection, nb::arg("kernel"), nb::arg("dtype"), nb::arg("x"), nb::arg("output"),
             nb::arg("kernel_size"), nb::arg("offset_groups"), nb::arg("features"), nb::arg("feature_group_count"));
}
