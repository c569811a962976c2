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

// Each instruction set defines these.
template <int kCount = kLanes>
FloatsOf<kCount> Load(const F16* from);
template <int kCount = kLanes>
void Store(const FloatsOf<kCount>& value, F16* to);

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

template <int kCount, int kFirst, size_t... kIndices>
DCN_INLINE FloatsOf<sizeof...(kIndices)> Lanes(const FloatsOf<kCount>& value, std::index_sequence<kIndices...>) {
  return FloatsOf<sizeof...(kIndices)>{value[kFirst + kIndices]...};
}

// Adds up lanes until four are left.
template <int kCount>
DCN_INLINE FloatsOf<4> FourSums(const FloatsOf<kCount>& value) {
  if constexpr (kCount == 2) {
    return FloatsOf<4>{value[0], value[1], 0, 0};
  } else if constexpr (kCount == 4) {
    return value;
  } else {
    constexpr auto kHalf = std::make_index_sequence<kCount / 2>();
    return FourSums<kCount / 2>(Lanes<kCount, 0>(value, kHalf) + Lanes<kCount, kCount / 2>(value, kHalf));
  }
}

// The sum of all lanes of each vector, always in the same order.
template <int kCount>
DCN_INLINE FloatsOf<4> Sums(const FloatsOf<kCount> (&values)[4]) {
  using Four = FloatsOf<4>;
  const Four a = FourSums<kCount>(values[0]), b = FourSums<kCount>(values[1]);
  const Four c = FourSums<kCount>(values[2]), d = FourSums<kCount>(values[3]);
  const Four ab = Four{a[0], b[0], a[1], b[1]} + Four{a[2], b[2], a[3], b[3]};
  const Four cd = Four{c[0], d[0], c[1], d[1]} + Four{c[2], d[2], c[3], d[3]};
  return Four{ab[0], ab[1], cd[0], cd[1]} + Four{ab[2], ab[3], cd[2], cd[3]};
}
