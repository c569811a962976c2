// A CUDA device: the stream to launch kernels on.
#pragma once

#include <cuda_runtime_api.h>

namespace dcn {

struct Device {
  using Context = cudaStream_t;

  // Products and kernels pass the columns' cotangents through the L2 cache, in half of the bytes.
  static constexpr bool kRoundsColumnCotangents = true;

  explicit Device(Context stream) : stream(stream) {}

  Context stream;
};

}  // namespace dcn
