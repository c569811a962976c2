// The handler of the initialize stage, which XLA calls before it executes a program. It loads every kernel of this
// module. Otherwise CUDA loads a kernel at its first launch. Loading may wait for an idle device, which is a
// deadlock if a running kernel waits for one that is launched later, as NCCL's kernels do.
#include <cuda_runtime_api.h>

#include <cctype>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "ffi/handler_wrapper.h"
#include "ffi/handlers.h"
#include "kernel_registry.h"

namespace dcn {
namespace {

// "12.4" for 12040: the form in which CUDA's functions return versions.
std::string VersionName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// DCN_CUDA_VERSION is the version of nvcc. The runtime, which is linked statically, may be newer.
std::string DriverIsTooOld(bool needs_minor_version) {
  constexpr int kWheelsCudaVersion = 12040;  // of the compiler of tests/wheels/cuda12.py
  const auto needed = [&](int version) { return needs_minor_version ? version : version / 1000 * 1000; };
  int driver = 0;
  cudaDriverGetVersion(&driver);
  const std::string message = "jax_dcn's CUDA kernels (" DCN_COMPILER ") need a driver that supports CUDA " +
                              VersionName(needed(DCN_CUDA_VERSION)) +
                              ", but this machine's driver supports only CUDA " + VersionName(driver) + ". ";
  if (driver < needed(kWheelsCudaVersion)) return message + "Update the driver.";
  return message + "Update the driver, or build the kernels with CUDA " + VersionName(kWheelsCudaVersion) +
         ". In a checkout of jax_dcn:\n"
         "  python -m tests.wheels.cuda12 pip install --force-reinstall --no-deps .";
}

struct ComputeCapability {
  int major = 0, minor = 0;

  explicit ComputeCapability(int device) {
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  std::string name() const { return std::to_string(major) + "." + std::to_string(minor); }
  int number() const { return 10 * major + minor; }
};

std::string DeviceIsNotSupported(int device) {
  constexpr int kOldestMajor = 8;
  const ComputeCapability capability(device);
  const std::string message = "this GPU has compute capability " + capability.name() +
                              ", for which jax_dcn's CUDA kernels (" DCN_COMPILER ") have no code. ";
  if (capability.major < kOldestMajor) {
    return message + "They need 8.0 or newer. Pass backend='reference' to run the slow jax.numpy form there.";
  }
  return message +
         "In jax_dcn's source folder, build them for it:\n  CUDAARCHS=" + std::to_string(capability.number()) +
         " JAX_DCN_CUDA=WHEELS pip install --force-reinstall --no-deps .";
}

std::string Describe(cudaError_t error, int device) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return DriverIsTooOld(false);
    // This GPU needs the PTX, which only a driver of nvcc's CUDA version, or a newer one, compiles.
    case cudaErrorUnsupportedPtxVersion:
      return DriverIsTooOld(true);
    case cudaErrorNoKernelImageForDevice:
      return DeviceIsNotSupported(device);
    default:
      return std::string("jax_dcn's CUDA kernels cannot be loaded: ") + cudaGetErrorString(error);
  }
}

// Whether the driver compiles this module's PTX for the GPU, because it has no machine code that the GPU runs: that of
// the same major version and the same or an older minor one. Jetson Orin (8.7) runs only its own. The names are those
// of CMAKE_CUDA_ARCHITECTURES, such as "80-real 90-virtual"; without a suffix, a name stands for both.
bool CompilesPtx(const ComputeCapability& gpu) {
  constexpr int kOrin = 87;
  bool has_ptx = false;
  std::istringstream names(DCN_ARCHITECTURES);
  for (std::string name; names >> name;) {
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) return false;  // "native" or "all"
    const bool is_virtual = name.find("-virtual") != std::string::npos,
               is_real = name.find("-real") != std::string::npos;
    const int code = std::stoi(name);
    if (!is_virtual && code == gpu.number()) return false;
    if (!is_virtual && code / 10 == gpu.major && code < gpu.number() && gpu.number() != kOrin) return false;
    has_ptx = has_ptx || (!is_real && code <= gpu.number());
  }
  return has_ptx;
}

void SayThatPtxIsCompiled(const ComputeCapability& gpu) {
  std::fprintf(stderr,
               "jax_dcn: the CUDA kernels have no machine code for this GPU (compute capability %s), so the driver "
               "compiles them now, which may take minutes. It keeps the result in its cache: see the environment "
               "variable CUDA_CACHE_PATH.\n",
               gpu.name().c_str());
}

cudaError_t LoadKernels() {
  for (const void* kernel : RegisteredKernels()) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Whether every later call would have the same result. A lack of memory, for example, may be temporary.
bool IsFinal(cudaError_t result) {
  return result == cudaSuccess || result == cudaErrorInsufficientDriver || result == cudaErrorUnsupportedPtxVersion ||
         result == cudaErrorNoKernelImageForDevice;
}

// Loads the kernels on the current device, unless an earlier call has found the final result.
cudaError_t LoadKernelsOnce(int device) {
  struct Loading {
    std::mutex mutex;
    std::optional<cudaError_t> result;
  };
  static std::mutex mutex;
  static std::map<int, Loading> by_device;
  Loading* loading;
  {
    std::lock_guard<std::mutex> lock(mutex);
    loading = &by_device[device];
  }
  std::lock_guard<std::mutex> lock(loading->mutex);
  if (loading->result) return *loading->result;
  const ComputeCapability capability(device);
  if (CompilesPtx(capability)) SayThatPtxIsCompiled(capability);
  const cudaError_t result = LoadKernels();
  if (IsFinal(result)) loading->result = result;
  return result;
}

ffi::Error Initialize() {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = LoadKernelsOnce(device);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition, Describe(error, device));
}

}  // namespace

XLA_FFI_Handler* InitializeHandler() {
  return [](XLA_FFI_CallFrame* frame) { return CallFunction<Initialize>("jax_dcn", frame); };
}

}  // namespace dcn
