// What the lanes of four vectors come to, each of them with the bits of sum(v), largest(v) and largest_magnitude(v):
//
//   sums_of(four, to)  largest_of(four, to)  largest_magnitudes_of(four, to)   to[0 .. 3]
#pragma once
#include "simd/coded_dot.h"

namespace octavo {

#if defined(OCTAVO_ISA_AVX512)

// Halves are folded as sum(v) folds them; a vector's halves stand beside those of another.
template <class F> inline void fold_four(const Vec16 (&four)[4], float* to, F fold) {
  const auto halves = [&](Vec16 a, Vec16 b) {
    return fold(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  };
  const __m512 first = halves(four[0], four[1]), second = halves(four[2], four[3]);
  const __m512 quarters = fold(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
  const __m512 pairs = fold(quarters, _mm512_permute_ps(quarters, 0x4e));
  const __m512 all = fold(pairs, _mm512_permute_ps(pairs, 0xb1));
  const __m512i heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, all)));
}

inline void sums_of(const Vec16 (&four)[4], float* to) {
  fold_four(four, to, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
inline void largest_of(const Vec16 (&four)[4], float* to) {
  fold_four(four, to, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}
inline void largest_magnitudes_of(const Vec16 (&four)[4], float* to) {
  fold_four(four, to, [](__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  });
}
inline void totals_of(const InputSums (&four)[4], int32_t* to) {
  Vec16 lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i].v = _mm512_castsi512_ps(four[i].raised);
  float totals[4];
  fold_four(lanes, totals, [](__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  });
  for (int i = 0; i < 4; ++i) to[i] = static_cast<int32_t>(bits_of(totals[i]) - four[i].vectors * 16u * kRaisedBits);
}

#else

inline void sums_of(const Vec16 (&four)[4], float* to) {
  for (int i = 0; i < 4; ++i) to[i] = sum(four[i]);
}
inline void largest_of(const Vec16 (&four)[4], float* to) {
  for (int i = 0; i < 4; ++i) to[i] = largest(four[i]);
}
inline void largest_magnitudes_of(const Vec16 (&four)[4], float* to) {
  for (int i = 0; i < 4; ++i) to[i] = largest_magnitude(four[i]);
}
inline void totals_of(const InputSums (&four)[4], int32_t* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<int32_t>(sum(four[i].whole));
}

#endif

} // namespace octavo
