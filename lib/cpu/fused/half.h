// float16 in vectors, by F16C and AVX-512.

template <int kCount>
DCN_INLINE FloatsOf<kCount> Load(const F16* from) {
  if constexpr (kCount == 16) {
    return (FloatsOf<kCount>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else if constexpr (kCount == 8) {
    return (FloatsOf<kCount>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    static_assert(kCount == 4, "a vector has 4, 8 or 16 lanes");
    return (FloatsOf<kCount>)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
}

template <int kCount>
DCN_INLINE void Store(const FloatsOf<kCount>& value, F16* to) {
  constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  if constexpr (kCount == 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)value, kToNearest));
  } else if constexpr (kCount == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
  } else {
    static_assert(kCount == 4, "a vector has 4, 8 or 16 lanes");
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph((__m128)value, _MM_FROUND_TO_NEAREST_INT));
  }
}
