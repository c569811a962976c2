// A CUDA device, as a kernel sees it: the stream to launch on.
#pragma once

#include <cuda_runtime_api.h>

namespace xla::ffi {
template <typename T>
struct PlatformStream;  // nvcc need not read XLA's headers
}

namespace dcn {

struct Device {
  using Binding = xla::ffi::PlatformStream<cudaStream_t>;
  using Context = cudaStream_t;

  explicit Device(Context stream) : stream(stream) {}

  Context stream;
};

}  // namespace dcn
