// All that is compiled once for each instruction set. Before it is included, kLanes, the float32 lanes of a vector, and
// kTileRows and kTileVectors, the size of a register tile, are defined. These files include nothing, since they are in
// a namespace.
// clang-format off
#include "fused/vectors.h"
#include "fused/product.h"
#include "fused/samples.h"
#include "fused/elements.h"
#include "fused/forward.h"
#include "fused/cotangents.h"
// clang-format on

template <typename Element, typename T>
constexpr FusedKernels Kernels() {
  return {ForwardKernels<Element, T>(), CotangentKernels<Element, T>()};
}
