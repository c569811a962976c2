// The Python module of one backend: its handlers as a capsule per stage, and the FFI version and compiler of the build.
// That of the CPU also exports what Python needs to know of its fused kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>

#include "ffi/handlers.h"
#ifdef DCN_CPU
#include "deform_conv/fused_rules.h"
#include "instruction_sets.h"
#endif

namespace nb = nanobind;

namespace {

#ifdef DCN_CPU
dcn::DType DTypeOf(const std::string& name) {
  static const std::map<std::string, dcn::DType> dtypes = {{"float16", dcn::DType::kF16},
                                                           {"bfloat16", dcn::DType::kBF16},
                                                           {"float32", dcn::DType::kF32},
                                                           {"float64", dcn::DType::kF64}};
  const auto found = dtypes.find(name);
  if (found == dtypes.end()) throw std::invalid_argument("unknown dtype " + name);
  return found->second;
}

// Why the fused kernels cannot do a computation of these shapes; empty if they can. x: [images, height, width,
// channels]; y: its rows, columns and features.
std::string FusedUnsupported(bool is_forward, const std::string& dtype, const std::string& y_dtype,
                             std::array<int64_t, 4> x, std::array<int64_t, 3> y, int64_t taps,
                             const std::string& algorithm) {
  const dcn::ConvolutionShape shape = {
      DTypeOf(dtype), DTypeOf(y_dtype), x[0], x[1], x[2], x[3], y[0], y[1], y[2], taps};
  return dcn::UnsupportedByFused(is_forward, shape, algorithm);
}

// A convolution of which only what the plans of the fused kernels depend on is set.
dcn::Convolution PlannedConvolution(const std::string& dtype, int64_t channels, int64_t features, int64_t taps,
                                    int64_t groups) {
  dcn::Convolution convolution = {};
  convolution.dtype = DTypeOf(dtype);
  convolution.sizes.window.kernel[0] = 1;
  convolution.sizes.window.kernel[1] = int32_t(taps);
  convolution.sizes.channels = channels;
  convolution.product = {features, groups};
  return convolution;
}

// The elements of the workspace of dcn_cpu_fused_forward.
int64_t FusedForwardWorkspace(const std::string& dtype, int64_t channels, int64_t features, int64_t taps,
                              int64_t groups) {
  if (std::min({channels, features, groups, taps + 1}) < 1 || taps > INT32_MAX) {
    throw std::invalid_argument("fused_forward_workspace: the fused handlers refuse such arrays");
  }
  return dcn::FusedForwardWorkspace(PlannedConvolution(dtype, channels, features, taps, groups));
}

// How dcn_cpu_fused_cotangents is to be divided, by the names of Fused in jax_dcn/_operators/deform_conv/fused_plan.py.
nb::dict FusedCotangentsPlan(const std::string& dtype, std::array<int64_t, 4> x, std::array<int64_t, 3> y, int64_t taps,
                             int64_t groups, int64_t offset_groups, bool is_x_requested, bool are_positions_requested,
                             bool is_weight_requested) {
  const int64_t channels = x[3], features = y[2];
  const bool has_groups =
      groups > 0 && channels > 0 && features > 0 && channels % groups == 0 && features % groups == 0;
  const int64_t fewest = std::min({x[0], x[1], x[2], y[0], y[1], taps - 1, offset_groups - 1});
  const int64_t longest = std::max({channels, y[0], y[1], taps});
  if (!has_groups || fewest < 0 || longest > INT32_MAX || DTypeOf(dtype) == dcn::DType::kF64) {
    throw std::invalid_argument("fused_cotangents_plan: the fused handlers refuse such arrays");
  }
  dcn::Convolution convolution = PlannedConvolution(dtype, channels, features, taps, groups);
  dcn::Sizes& sizes = convolution.sizes;
  sizes.images = x[0];
  sizes.height = x[1];
  sizes.width = x[2];
  sizes.rows = y[0];
  sizes.columns = y[1];
  sizes.offset_groups = offset_groups;
  const dcn::RequestedCotangents requested = {is_x_requested, are_positions_requested, is_weight_requested};
  const dcn::CotangentDivision division = dcn::ChooseCotangentDivision(convolution, requested);
  nb::dict plan;
  plan["workspace_size"] = dcn::FusedCotangentsWorkspace(convolution, requested, division);
  plan["num_splits"] = division.num_splits;
  plan["num_planes"] = division.num_planes;
  plan["tasks"] = dcn::CotangentTasks(convolution);
  return plan;
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
#ifdef DCN_CPU
  module.attr("fused_instructions") = dcn::FusedInstructions();
  module.attr("has_x86_kernels") = bool(DCN_HAS_X86_KERNELS);
  module.def("fused_forward_workspace", &FusedForwardWorkspace, nb::arg("dtype"), nb::arg("channels"),
             nb::arg("features"), nb::arg("taps"), nb::arg("groups"));
  module.def("fused_cotangents_plan", &FusedCotangentsPlan, nb::arg("dtype"), nb::arg("x"), nb::arg("y"),
             nb::arg("taps"), nb::arg("groups"), nb::arg("offset_groups"), nb::arg("is_x_requested"),
             nb::arg("are_positions_requested"), nb::arg("is_weight_requested"));
  module.def("fused_unsupported", &FusedUnsupported, nb::arg("is_forward"), nb::arg("dtype"), nb::arg("y_dtype"),
             nb::arg("x"), nb::arg("y"), nb::arg("taps"), nb::arg("algorithm"));
#endif
}
