// The Python module of one backend: its handlers as a capsule per stage, the FFI version and compiler of the build, and
// the limits and thread blocks of CUDA's fused kernels. All backends export these, since CUDA programs may be lowered
// by a build without CUDA. That of the CPU also exports what Python needs to know of its fused kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>

#include "ffi/fused_limits.h"
#include "ffi/handlers.h"
#ifdef DCN_CPU
#include "deform_conv_fused.h"
#include "instruction_sets.h"
#endif

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
  limits["weight_tile"] = Limits::kWeightTile;
  limits["min_split_pixels"] = Limits::kMinSplitPixels;
  limits["slice_vectors"] = Limits::kSliceVectors;
  limits["max_vectors"] = Limits::kMaxVectors;
  limits["margin_vectors"] = Limits::kMarginVectors;
  return limits;
}

template <size_t kSize>
nb::list ListOf(const dcn::FusedBlock (&blocks)[kSize]) {
  nb::list list;
  for (const dcn::FusedBlock& block : blocks) {
    list.append(nb::make_tuple(block.tile_columns, block.warps, block.shared_bytes));
  }
  return list;
}

// By the name of the kernel: the columns of each block tile, the warps of a thread block and its shared bytes.
nb::dict FusedBlocks() {
  nb::dict blocks;
  blocks["FusedForwardKernel"] = ListOf(dcn::FusedBlocks::kForward);
  blocks["FusedInputCotangentKernel"] = ListOf(dcn::FusedBlocks::kInputCotangent);
  blocks["FusedOffsetCotangentKernel"] = ListOf(dcn::FusedBlocks::kOffsetCotangent);
  blocks["FusedWeightCotangentKernel"] = ListOf(dcn::FusedBlocks::kWeightCotangent);
  return blocks;
}

template <typename Value>
Value ByName(const std::map<std::string, Value>& values, const std::string& name, const std::string& kind) {
  const auto found = values.find(name);
  if (found == values.end()) throw std::invalid_argument("unknown " + kind + " " + name);
  return found->second;
}

std::map<std::string, dcn::DType> DTypes() {
  return {{"float16", dcn::DType::kF16},
          {"bfloat16", dcn::DType::kBF16},
          {"float32", dcn::DType::kF32},
          {"float64", dcn::DType::kF64}};
}

// The message with which the handler dcn_fused_<kernel> rejects operands of these sizes, or an empty string. Only the
// test that compares the handlers with the Python layer calls it. It reads no operands, so that the sizes may be larger
// than any memory. x: [images, height, width, channels]; output: its rows and columns.
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
  const auto fused_kernel = ByName<dcn::FusedKernel>({{"forward", dcn::FusedKernel::kForward},
                                                      {"input_cotangent", dcn::FusedKernel::kInputCotangent},
                                                      {"offset_cotangent", dcn::FusedKernel::kOffsetCotangent},
                                                      {"weight_cotangent", dcn::FusedKernel::kWeightCotangent}},
                                                     kernel, "kernel");
  const dcn::DType x_dtype = ByName(DTypes(), dtype, "dtype");
  dcn::Checks checks(kernel);
  dcn::CheckFusedKernel(checks, fused_kernel, "x", x_dtype, sizes, {features, feature_group_count});
  if (fused_kernel == dcn::FusedKernel::kInputCotangent)
    dcn::CheckScatterLists(checks, x_dtype, sizes, {features, feature_group_count}, sizes.images);
  return checks.message();
}

#ifdef DCN_CPU
// The elements of the workspace of dcn_cpu_fused_cotangents, and how many of its tasks may run at a time.
std::array<int64_t, 2> FusedCotangentsPlan(const std::string& dtype_name, std::array<int64_t, 4> x,
                                           std::array<int64_t, 2> output, int64_t taps, int64_t offset_groups,
                                           int64_t features, int64_t feature_group_count, bool x_requested,
                                           bool positions_requested, bool weight_requested) {
  const dcn::DType dtype = ByName(DTypes(), dtype_name, "dtype");
  const bool has_groups = feature_group_count > 0 && x[3] > 0 && features > 0 && x[3] % feature_group_count == 0 &&
                          features % feature_group_count == 0;
  const int64_t fewest = std::min({x[0], x[1], x[2], output[0], output[1], taps - 1, offset_groups - 1});
  if (!has_groups || fewest < 0 || taps > INT32_MAX || dtype == dcn::DType::kF64) {
    throw std::invalid_argument("fused_cotangents_plan: the fused handlers refuse such arrays");
  }
  dcn::Sizes sizes = {};
  sizes.window.kernel[0] = 1;
  sizes.window.kernel[1] = int32_t(taps);
  sizes.images = x[0];
  sizes.height = x[1];
  sizes.width = x[2];
  sizes.channels = x[3];
  sizes.rows = output[0];
  sizes.columns = output[1];
  sizes.offset_groups = offset_groups;
  const dcn::Product product = {features, feature_group_count};
  const dcn::RequestedCotangents requested = {x_requested, positions_requested, weight_requested};
  return {dcn::FusedCotangentsWorkspace(dtype, sizes, product, requested),
          dcn::FusedCotangentsTasks(dtype, sizes, product, requested)};
}
#endif

nb::capsule Capsule(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

}  // namespace

NB_MODULE(DCN_MODULE, module) {
  nb::dict handlers;
  for (const auto& operator_handlers : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : operator_handlers) {
      nb::dict stages;
      stages["execute"] = Capsule(handler.call);
      if (XLA_FFI_Handler* initialize = dcn::InitializeHandler()) stages["initialize"] = Capsule(initialize);
      handlers[handler.name] = stages;
    }
  }
  module.attr("handlers") = handlers;
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.attr("compiler") = DCN_COMPILER;
  module.attr("fused_limits") = FusedLimits();
  module.attr("fused_blocks") = FusedBlocks();
#ifdef DCN_CPU
  module.attr("fused_instructions") = dcn::FusedInstructions();
  module.attr("fused_padding") = dcn::kFeaturePadding;
  module.attr("fused_min_tasks") = dcn::kMinConcurrentTasks;
  module.attr("has_x86_kernels") = bool(DCN_HAS_X86_KERNELS);
  module.def("fused_cotangents_plan", &FusedCotangentsPlan, nb::arg("dtype"), nb::arg("x"), nb::arg("output"),
             nb::arg("taps"), nb::arg("offset_groups"), nb::arg("features"), nb::arg("feature_group_count"),
             nb::arg("x_requested"), nb::arg("positions_requested"), nb::arg("weight_requested"));
#endif
  module.def("fused_rejection", &FusedRejection, nb::arg("kernel"), nb::arg("dtype"), nb::arg("x"), nb::arg("output"),
             nb::arg("kernel_size"), nb::arg("offset_groups"), nb::arg("features"), nb::arg("feature_group_count"));
}
