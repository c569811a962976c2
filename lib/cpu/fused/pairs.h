// bfloat16 in words of two.

// Of 32 channels, a vector has the even ones in the low and the odd ones in the high half of its words. A row has the
// even ones of all words first: that order needs no shuffles, and the weight is packed in it.
template <typename PairProduct>
struct Pairs {
  using Product = PairProduct;

  static DCN_INLINE void Blend(const BF16* const (&corner)[4], const Floats (&weight)[4], int64_t count, float* out) {
    for (int64_t c = 0; c < count; c += kPairChannels, out += kLanes) {
      Floats even{}, odd{};
      DCN_UNROLL for (int i = 0; i < 4; ++i) {
        const Words words = *reinterpret_cast<const Vectors::UnalignedWords*>(corner[i] + c);
        even += weight[i] * (Floats)(words << 16);
        odd += weight[i] * (Floats)(words & 0xffff0000);
      }
      Store((Floats)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even), out);
    }
  }

  static DCN_INLINE int64_t Channel(int64_t v) {
    const int64_t in_run = v % kPairChannels;
    return v - in_run + (in_run < kLanes ? 2 * in_run : 2 * (in_run - kLanes) + 1);
  }
  static DCN_INLINE void StoreValue(BF16 value, int64_t part, float* word) {
    std::memcpy(reinterpret_cast<char*>(word) + part * sizeof value, &value, sizeof value);
  }
};
