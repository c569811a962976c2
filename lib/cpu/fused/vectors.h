// Vectors of float32 lanes, as wide as those of the instruction set.

struct Vectors {
  typedef float Floats __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  typedef float UnalignedFloats __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
  typedef uint32_t UnalignedWords __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
  typedef uint16_t UnalignedHalves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
};

using Floats = Vectors::Floats;
using Words = Vectors::Words;
using Halves = Vectors::Halves;

DCN_INLINE Floats Load(const float* from) { return *reinterpret_cast<const Vectors::UnalignedFloats*>(from); }
DCN_INLINE void Store(Floats value, float* to) { *reinterpret_cast<Vectors::UnalignedFloats*>(to) = value; }

DCN_INLINE Floats Load(const BF16* from) {
  const Halves halves = *reinterpret_cast<const Vectors::UnalignedHalves*>(from);
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}
// In the low halves of words; rounds to nearest, ties to even, as BF16 does.
DCN_INLINE Words RoundedBits(Floats value) {
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet_nan = (bits >> 16) | 0x40;
  return (bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded;
}
DCN_INLINE void Store(Floats value, BF16* to) {
  *reinterpret_cast<Vectors::UnalignedHalves*>(to) = __builtin_convertvector(RoundedBits(value), Halves);
}

// The first `count` lanes; the others are zero.
template <typename T>
DCN_INLINE Floats Load(const T* from, int64_t count) {
  if (count >= kLanes) return Load(from);
  T lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return Load(lanes);
}
template <typename T>
DCN_INLINE void Store(Floats value, T* to, int64_t count) {
  if (count >= kLanes) return Store(value, to);
  T lanes[kLanes];
  Store(value, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

DCN_INLINE Floats Broadcast(float value) { return value - Floats{}; }
DCN_INLINE Words BroadcastWord(const float* value) { return BitCast<uint32_t>(*value) + Words{}; }

// The sum of all lanes, always in the same order.
template <int kCount = kLanes>
DCN_INLINE float Sum(const typename VectorOf<float, kCount>::Type& value) {
  if constexpr (kCount == 2) {
    return value[0] + value[1];
  } else {
    typename VectorOf<float, kCount / 2>::Type low, high;
    std::memcpy(&low, &value, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof low, sizeof high);
    low += high;
    return Sum<kCount / 2>(low);
  }
}
