// A CUDA device: the stream to launch kernels on.
#pragma once

#include <cuda_runtime_api.h>

namespace xla::ffi {
template <typename T>
struct PlatformStream;  // declared here, so that nvcc need not compile XLA's headers
}

namespace dcn {

struct Device {
  using Binding = xla::ffi::PlatformStream<cudaStream_t>;
  using Context = cudaStream_t;

  // Products and kernels pass the columns' cotangents through the L2 cache, in half of the bytes.
  static constexpr bool kRoundsColumnCotangents = true;
  // What samples scatter is sorted, so that pixels gather it: lib/scatter/.
  static constexpr bool kSorts = true;

  explicit Device(Context stream) : stream(stream) {}

  Context stream;
};

}  // namespace dcn
