// The kernels that the functions of this module may launch, so that all of them can be loaded before the first launch.
#pragma once

#include <vector>

namespace dcn {

inline std::vector<const void*>& RegisteredKernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

// Initialized when the module is loaded, for each kernel that an instantiation of Launch names.
template <auto kernel>
struct KernelRegistration {
  inline static const bool is_registered = [] {
    RegisteredKernels().push_back(reinterpret_cast<const void*>(kernel));
    return true;
  }();
};

}  // namespace dcn
