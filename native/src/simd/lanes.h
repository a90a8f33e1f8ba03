// sum_of_each(lanes, count), largest_of_each(lanes, count): what sum and largest give of each of up to 16 vectors, as one
// vector.
//
// The same additions, of many vectors at once: halves of two rows stand side by side, then quarters of four, and so on.
// All sixteen vectors are read.
#pragma once
#include "simd/vec.h"

namespace octavo {

#if defined(OCTAVO_ISA_AVX512)

template <class Both> inline Vec16 fold_lanes(const float* lanes, Both&& both) {
  __m512 eights[8], fours[4], twos[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 one = load(lanes + 32 * i).v, other = load(lanes + 32 * i + 16).v;
    eights[i] = both(_mm512_shuffle_f32x4(one, other, 0x44), _mm512_shuffle_f32x4(one, other, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 one = eights[2 * i], other = eights[2 * i + 1];
    fours[i] = both(_mm512_shuffle_f32x4(one, other, 0x88), _mm512_shuffle_f32x4(one, other, 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d one = _mm512_castps_pd(fours[2 * i]), other = _mm512_castps_pd(fours[2 * i + 1]);
    twos[i] = both(_mm512_castpd_ps(_mm512_unpacklo_pd(one, other)), _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
  }
  const __m512 all = both(_mm512_shuffle_ps(twos[0], twos[1], 0x88), _mm512_shuffle_ps(twos[0], twos[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, all)};
}

inline Vec16 sum_of_each(const float* lanes, int) {
  return fold_lanes(lanes, [](__m512 lower, __m512 upper) { return _mm512_add_ps(lower, upper); });
}
inline Vec16 largest_of_each(const float* lanes, int) {
  return fold_lanes(lanes, [](__m512 lower, __m512 upper) { return _mm512_max_ps(lower, upper); });
}

#else

inline Vec16 sum_of_each(const float* lanes, int count) {
  float sums[16] = {};
  for (int i = 0; i < count; ++i) sums[i] = sum(load(lanes + 16 * i));
  return load(sums);
}
inline Vec16 largest_of_each(const float* lanes, int count) {
  float most[16] = {};
  for (int i = 0; i < count; ++i) most[i] = largest(load(lanes + 16 * i));
  return load(most);
}

#endif

} // namespace octavo
