// The fused convolution for processors whose instruction set has no file of its own.
#include "fused/includes.h"

namespace dcn {
namespace {

constexpr int kLanes = 4, kTileRows = 5, kTileVectors = 2;
#include "fused/all.h"

template <int kCount>
DCN_INLINE FloatsOf<kCount> Load(const F16* from) {
  typedef int32_t Integers __attribute__((vector_size(4 * kCount)));
  const auto halves = *reinterpret_cast<const typename VectorsOf<kCount>::UnalignedHalves*>(from);
  FloatsOf<kCount> value;
  F16::Convert<Integers>(__builtin_convertvector(halves, WordsOf<kCount>), value);
  return value;
}
template <int kCount>
DCN_INLINE void Store(const FloatsOf<kCount>& value, F16* to) {
  for (int i = 0; i < kCount; ++i) to[i] = F16(value[i]);
}

constexpr FusedKernels kFloat = Kernels<Widened<float>, float>();
constexpr FusedKernels kBFloat16 = Kernels<Widened<BF16>, BF16>();
constexpr FusedKernels kFloat16 = Kernels<Widened<F16>, F16>();

}  // namespace

const FusedKernels& PortableKernels(DType dtype) {
  if (dtype == DType::kF16) return kFloat16;
  return dtype == DType::kF32 ? kFloat : kBFloat16;
}

}  // namespace dcn
