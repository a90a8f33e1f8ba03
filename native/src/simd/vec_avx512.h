// Vec16 on AVX-512: one register.
#pragma once
#include <immintrin.h>

#include "simd/convert.h"

namespace octavo {

constexpr int kTileRows = 4;
constexpr int kTileVectors = 4;

struct Vec16 {
  __m512 v;
};

inline Vec16 zero() { return {_mm512_setzero_ps()}; }
inline Vec16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec16 a) { _mm512_storeu_ps(p, a.v); }

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Vec16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_n(float* p, Vec16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline Vec16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void load_bf16_pairs(const uint16_t* p, Vec16& even, Vec16& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline void zip(Vec16 even, Vec16 odd, Vec16& low, Vec16& high) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low.v = _mm512_permutex2var_ps(even.v, first, odd.v);
  high.v = _mm512_permutex2var_ps(even.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd.v);
}
inline __m128i load_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline Vec16 load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_bytes(p)), 7);
  return {_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))))};
}
inline Vec16 load_e5m2(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_bytes(p)), 8))};
}
inline void store_f16(uint16_t* p, Vec16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
// Not VCVTNEPS2BF16, which flushes subnormals: the cache holds the same bits on every instruction set.
// Rounded to bf16: its bits in the upper half of a lane, what was there before or what rounding made in the lower one.
inline __m512i round_upper_half(Vec16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
inline __m256i round_to_bf16(Vec16 a) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_upper_half(a), 16)); }
inline void store_bf16(uint16_t* p, Vec16 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(a)); }

inline Vec16 operator+(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec16 operator-(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec16 operator*(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec16 operator/(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec16 max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec16 min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec16 sqrt(Vec16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec16 round_int(Vec16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec16 round_int(Vec16 a, Vec16& rest) {
  rest.v = _mm512_reduce_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); // exact, and so is the difference
  return {_mm512_sub_ps(a.v, rest.v)};
}

inline Vec16 select_less(Vec16 a, Vec16 b, Vec16 x, Vec16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline Vec16 keep_range(Vec16 a, int first, int last, float fill) {
  const __mmask16 keep = static_cast<__mmask16>(first_lanes(last) & ~first_lanes(first));
  return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), a.v)};
}
inline Vec16 scale2(Vec16 a, Vec16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline uint32_t any_greater(Vec16 a, Vec16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }

inline __m256 upper_half(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }

inline float sum(Vec16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(Vec16 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline uint64_t sum_bytes64(const uint8_t* p) {
  const __m512i sums = _mm512_sad_epu8(_mm512_loadu_si512(p), _mm512_setzero_si512());
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums));
}

} // namespace octavo
