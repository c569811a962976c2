// A stand-in for the CUDA runtime, which runs kernels on the interpreter from the PTX that nvcc embedded in the
// program. Kernels may access only memory from cudaMalloc, and what is added as an allocation. Streams run at once.
#include "runtime.h"

#include <cuda_runtime_api.h>

#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "interpreter.h"

namespace ptx {
namespace {

struct Function {
  Module* module;
  std::string name;
  std::set<uint64_t> loaded_on = {};  // devices
};

std::unordered_map<const void*, Function> functions;
std::vector<std::unique_ptr<Module>> modules;
std::string failure;  // the last fault
Options options;
int64_t nodes = 0;
uint64_t launches = 0;

// The layout of a fat binary, as nvcc writes it: a header, then parts with headers of their own.
struct FatBinaryHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct PartHeader {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
};
struct FatBinaryWrapper {
  uint32_t magic, version;
  const uint8_t* data;
};
constexpr uint16_t kPtxPart = 1;

[[noreturn]] void Exit(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

Module* ReadModule(const void* wrapper) {
  const uint8_t* data = static_cast<const FatBinaryWrapper*>(wrapper)->data;
  FatBinaryHeader header;
  std::memcpy(&header, data, sizeof header);
  const uint8_t* end = data + header.header_bytes + header.bytes;
  data += header.header_bytes;
  while (data < end) {
    PartHeader part;
    std::memcpy(&part, data, sizeof part);
    const std::string_view text(reinterpret_cast<const char*>(data) + part.header_bytes, part.bytes);
    if (part.kind == kPtxPart && text.find(".version") != std::string_view::npos) {
      modules.push_back(std::make_unique<Module>(text.substr(0, text.find('\0'))));
      return modules.back().get();
    }
    data += part.header_bytes + part.bytes;
  }
  Exit("the program has no PTX, or it is compressed");
}

// The default floating-point environment, while it lives. XLA's threads flush subnormal numbers to zero.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

cudaError_t Run(const void* address, const dim3& grid, const dim3& block, void** arguments) {
  ++nodes;
  const auto found = functions.find(address);
  if (found == functions.end()) return cudaErrorInvalidDeviceFunction;
  Function& function = found->second;
  if (options.requires_loading && !function.loaded_on.count(options.device)) return cudaErrorDeviceUninitialized;
  try {
    const Kernel& kernel = function.module->Find(function.name);
    const bool fits = block.x > 0 && block.x <= kernel.max_threads && block.y == 1 && block.z == 1 && grid.x > 0 &&
                      grid.y > 0 && grid.z > 0;
    if (!fits) return cudaErrorInvalidConfiguration;
    const uint32_t blocks = uint32_t(std::min<uint64_t>(grid.x, options.max_grid_blocks));
    Options own = options;
    own.seed += launches++;
    const DefaultFloatingPoint floating_point;
    Launch launch(*function.module, kernel, {{blocks, grid.y, grid.z}, block.x}, arguments, own);
    launch.Run();
  } catch (const std::runtime_error& error) {
    failure = error.what();
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace

uint64_t* FindOption(const std::string& name) {
  static const std::map<std::string, uint64_t*> by_name = {{"seed", &options.seed},
                                                           {"max_grid_blocks", &options.max_grid_blocks},
                                                           {"only_last_block", &options.only_last_block},
                                                           {"sms", &options.sms},
                                                           {"requires_loading", &options.requires_loading},
                                                           {"driver_version", &options.driver_version},
                                                           {"device", &options.device},
                                                           {"compute_capability", &options.compute_capability},
                                                           {"has_machine_code", &options.has_machine_code},
                                                           {"has_ptx", &options.has_ptx},
                                                           {"has_memory", &options.has_memory}};
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

int64_t NumNodes() { return nodes; }

}  // namespace ptx

using ptx::functions, ptx::options;

extern "C" {

// Called by the code that nvcc generates.

void** __cudaRegisterFatBinary(void* wrapper) { return reinterpret_cast<void**>(ptx::ReadModule(wrapper)); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }

void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  functions[host] = {reinterpret_cast<ptx::Module*>(module), name};
  if (!functions[host].module->has(name)) ptx::Exit(std::string("the PTX has no kernel ") + name);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

// For kernel<<<...>>>(...), which the package does not use: it starts kernels by cudaLaunchKernelEx. The code that nvcc
// 12 generates calls cudaLaunchKernel.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }

// The runtime's functions.

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return ptx::Run(function, config->gridDim, config->blockDim, arguments);
}

// Parses the kernel, as a GPU loads it.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const auto found = functions.find(function);
  if (found == functions.end()) return cudaErrorInvalidDeviceFunction;
  if (!options.has_memory) return cudaErrorMemoryAllocation;
  if (!options.has_machine_code) {
    if (!options.has_ptx) return cudaErrorNoKernelImageForDevice;
    if (options.driver_version < ptx::kCudaVersion) return cudaErrorUnsupportedPtxVersion;
  }
  found->second.loaded_on.insert(options.device);
  const ptx::Kernel& kernel = found->second.module->Find(found->second.name);
  *attributes = {};
  attributes->sharedSizeBytes = kernel.shared_bytes;
  attributes->maxThreadsPerBlock = int(kernel.max_threads);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = int(options.device);
  return options.driver_version / 1000 < ptx::kCudaVersion / 1000 ? cudaErrorInsufficientDriver : cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = int(options.compute_capability / 10);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = int(options.compute_capability % 10);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = int(options.sms);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = int(options.driver_version);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  constexpr size_t kAlignment = 256;
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(address, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  ptx::AddAllocation(*address, bytes, false);
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address && !ptx::RemoveAllocation(address)) return cudaErrorInvalidValue;
  std::free(address);
  return cudaSuccess;
}

// Memory that is filled with ones counts as not written.
cudaError_t cudaMemset(void* address, int byte, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  std::memset(address, byte, bytes);
  ptx::RecordHostWrite(address, bytes, byte != 0xff);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes == 0) return cudaSuccess;
  std::memcpy(to, from, bytes);
  ptx::RecordHostWrite(to, bytes, true);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorLaunchFailure:
      return ptx::failure.c_str();
    case cudaErrorDeviceUninitialized:
      return "the kernel was not loaded before its launch";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an error of the CUDA runtime";
  }
}

}  // extern "C"
