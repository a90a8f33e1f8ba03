// unzip(low, high, even, odd): of 32 elements, those at even places and those at odd ones; the reverse of zip.
#pragma once
#include "simd/vec.h"

namespace octavo {

#if defined(OCTAVO_ISA_AVX512)
inline void unzip(Vec16 low, Vec16 high, Vec16& even, Vec16& odd) {
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even.v = _mm512_permutex2var_ps(low.v, first, high.v);
  odd.v = _mm512_permutex2var_ps(low.v, _mm512_add_epi32(first, _mm512_set1_epi32(1)), high.v);
}
#elif defined(OCTAVO_ISA_AVX2)
inline __m256 in_halves(__m256 pairs) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8)); }
inline void unzip(Vec16 low, Vec16 high, Vec16& even, Vec16& odd) {
  even = {in_halves(_mm256_shuffle_ps(low.a, low.b, 0x88)), in_halves(_mm256_shuffle_ps(high.a, high.b, 0x88))};
  odd = {in_halves(_mm256_shuffle_ps(low.a, low.b, 0xdd)), in_halves(_mm256_shuffle_ps(high.a, high.b, 0xdd))};
}
#else
inline void unzip(const Vec16& low, const Vec16& high, Vec16& even, Vec16& odd) {
  float all[32];
  store(all, low);
  store(all + 16, high);
  float evens[16], odds[16];
  for (int i = 0; i < 16; ++i) {
    evens[i] = all[2 * i];
    odds[i] = all[2 * i + 1];
  }
  even = load(evens);
  odd = load(odds);
}
#endif

} // namespace octavo
