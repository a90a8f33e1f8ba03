// Elementary functions, the same steps on every instruction set, of Vec16 and of several at once (simd/many.h).
// Polynomials: least squares on Chebyshev nodes.
#pragma once
#include "simd/many.h"
#include "simd/vec.h"

namespace octavo {

// The first n lanes when n < 16, else all.
inline Vec16 load_up_to(const float* p, int64_t n) { return n >= 16 ? load(p) : load_n(p, static_cast<int>(n)); }
inline void store_up_to(float* p, Vec16 v, int64_t n) {
  if (n >= 16) return store(p, v);
  store_n(p, v, static_cast<int>(n));
}
// To nearest even; a NaN stays one.
inline Vec16 rounded_to_bf16(Vec16 v) {
#if defined(OCTAVO_ISA_AVX512)
  return {_mm512_castsi512_ps(_mm512_and_si512(round_upper_half(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
#else
  uint16_t rounded[16];
  store_bf16(rounded, v);
  return load_bf16(rounded);
#endif
}
// Of numbers that have been rounded to bf16 already.
inline void store_bf16_again(uint16_t* p, Vec16 v) {
#if defined(OCTAVO_ISA_AVX512)
  const __m512i halves = _mm512_srli_epi32(_mm512_castps_si512(v.v), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(halves));
#else
  store_bf16(p, v);
#endif
}
inline float first_lane(Vec16 v) {
  float lanes[16];
  store(lanes, v);
  return lanes[0];
}
template <class V> inline V absolute(const V& x) { return max(x, zero() - x); }

// e^x to about 1 ulp; subnormal results and infinities too. NaN stays NaN.
template <class V> inline V exp(const V& x) {
  const V bounded = min(set1(89.0f), max(set1(-106.0f), x));
  const V n = round_int(bounded * set1(1.44269504f));
  // ln 2 in two parts; n times the first is exact.
  const V high = fma(n, set1(-0.693359375f), bounded);
  const V r = fma(n, set1(2.12194440e-4f), high);
  V p = fma(set1(1.3933643e-3f), r, set1(8.3631752e-3f));
  p = fma(p, r, set1(4.1666467e-2f));
  p = fma(p, r, set1(1.6666576e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p * r, r, r) + set1(1.0f);
  return scale2(p, n);
}

// 2^x for -126 <= x <= 0, relative error below 1.7e-7; 1 for 0, and 2^-126 for all that is less: subnormal results
// would be slow. NaN stays NaN.
inline Vec16 exp2_down(Vec16 x) {
  const Vec16 bounded = max(set1(-126.0f), x);
  Vec16 r;
  const Vec16 n = round_int(bounded, r);
  Vec16 p = fma(set1(1.3264555e-3f), r, set1(9.67152324e-3f));
  p = fma(p, r, set1(5.55073433e-2f));
  p = fma(p, r, set1(0.240222424f));
  p = fma(p, r, set1(0.693147004f));
  return scale2(fma(p, r, set1(1.0f)), n);
}

inline Vec16 tanh(Vec16 x) {
  const Vec16 size = absolute(x);
  const Vec16 square = x * x;
  Vec16 p = fma(set1(-6.1049479e-3f), square, set1(2.1003641e-2f));
  p = fma(p, square, set1(-5.3852499e-2f));
  p = fma(p, square, set1(1.3332783e-1f));
  p = fma(p, square, set1(-3.3333328e-1f));
  const Vec16 small = fma(p * square, x, x);
  const Vec16 large = set1(1.0f) - set1(2.0f) / (exp(size + size) + set1(1.0f));
  const Vec16 with_sign = select_less(x, zero(), zero() - large, large);
  return select_less(size, set1(0.625f), small, with_sign);
}

// 1 - erf(z) for z >= 0, relative error below 2e-6: t e^(P(t) - z^2) with t = 1 / (1 + z / 2).
template <class V> inline V erfc_positive(const V& z) {
  const V bounded = min(set1(10.5f), z);
  const V t = set1(1.0f) / fma(bounded, set1(0.5f), set1(1.0f));
  V p = fma(set1(0.15217128f), t, set1(-0.72015756f));
  p = fma(p, t, set1(1.2489851f));
  p = fma(p, t, set1(-0.81853658f));
  p = fma(p, t, set1(0.020350492f));
  p = fma(p, t, set1(-0.051861517f));
  p = fma(p, t, set1(0.052532699f));
  p = fma(p, t, set1(0.38292456f));
  p = fma(p, t, set1(0.99906039f));
  p = fma(p, t, set1(-1.2654687f));
  return t * exp(p - bounded * bounded);
}

} // namespace octavo
