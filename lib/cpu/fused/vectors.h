// Vectors of float32 lanes, as wide as those of the instruction set, or narrower for few channels.

template <int kCount>
struct VectorsOf {
  typedef float Floats __attribute__((vector_size(4 * kCount)));
  typedef uint32_t Words __attribute__((vector_size(4 * kCount)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kCount)));
  typedef float UnalignedFloats __attribute__((vector_size(4 * kCount), aligned(4), may_alias));
  typedef uint32_t UnalignedWords __attribute__((vector_size(4 * kCount), aligned(4), may_alias));
  typedef uint16_t UnalignedHalves __attribute__((vector_size(2 * kCount), aligned(2), may_alias));
};

template <int kCount>
using FloatsOf = typename VectorsOf<kCount>::Floats;
template <int kCount>
using WordsOf = typename VectorsOf<kCount>::Words;
using Floats = FloatsOf<kLanes>;
using Words = WordsOf<kLanes>;

constexpr int kNarrow = kLanes / 2;  // lanes of narrower vectors

template <int kCount = kLanes>
DCN_INLINE FloatsOf<kCount> Load(const float* from) {
  return *reinterpret_cast<const typename VectorsOf<kCount>::UnalignedFloats*>(from);
}
template <int kCount = kLanes>
DCN_INLINE FloatsOf<kCount> Load(const BF16* from) {
  const auto halves = *reinterpret_cast<const typename VectorsOf<kCount>::UnalignedHalves*>(from);
  return (FloatsOf<kCount>)(__builtin_convertvector(halves, WordsOf<kCount>) << 16);
}

// Rounded to bfloat16 in the low halves of words: to nearest, ties to even, as BF16 does.
template <int kCount = kLanes>
DCN_INLINE WordsOf<kCount> RoundedBits(const FloatsOf<kCount>& value) {
  const WordsOf<kCount> bits = (WordsOf<kCount>)value;
  const WordsOf<kCount> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet_nan = (bits >> 16) | 0x40;
  return (bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded;
}

template <int kCount = kLanes>
DCN_INLINE void Store(const FloatsOf<kCount>& value, float* to) {
  *reinterpret_cast<typename VectorsOf<kCount>::UnalignedFloats*>(to) = value;
}
template <int kCount = kLanes>
DCN_INLINE void Store(const FloatsOf<kCount>& value, BF16* to) {
  *reinterpret_cast<typename VectorsOf<kCount>::UnalignedHalves*>(to) =
      __builtin_convertvector(RoundedBits<kCount>(value), typename VectorsOf<kCount>::Halves);
}

// The first `count` lanes; the others are zero.
template <int kCount = kLanes, typename T>
DCN_INLINE FloatsOf<kCount> Load(const T* from, int64_t count) {
  if (count >= kCount) return Load<kCount>(from);
  T lanes[kCount] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return Load<kCount>(lanes);
}
template <int kCount = kLanes, typename T>
DCN_INLINE void Store(const FloatsOf<kCount>& value, T* to, int64_t count) {
  if (count >= kCount) return Store<kCount>(value, to);
  T lanes[kCount];
  Store<kCount>(value, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

DCN_INLINE Words BroadcastWord(const float* value) { return BitCast<uint32_t>(*value) + Words{}; }

// The sum of all lanes, always in the same order.
template <int kCount>
DCN_INLINE float Sum(const FloatsOf<kCount>& value) {
  if constexpr (kCount == 2) {
    return value[0] + value[1];
  } else {
    FloatsOf<kCount / 2> low, high;
    std::memcpy(&low, &value, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof low, sizeof high);
    low += high;
    return Sum<kCount / 2>(low);
  }
}
