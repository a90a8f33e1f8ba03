// Vec16 on AVX2, FMA and F16C: two registers.
#pragma once
#include <immintrin.h>

#include "simd/convert.h"

namespace octavo {

constexpr int kTileRows = 2;
constexpr int kTileVectors = 2;

struct Vec16 {
  __m256 a, b;
};

inline Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec16 v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}

inline __m256i lanes_below(int n, int offset) {
  const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(offset));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}
inline Vec16 load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
inline void store_n(float* p, Vec16 v, int n) {
  _mm256_maskstore_ps(p, lanes_below(n, 0), v.a);
  _mm256_maskstore_ps(p + 8, lanes_below(n, 8), v.b);
}

inline __m128i load_eight(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline Vec16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_eight(p)), _mm256_cvtph_ps(load_eight(p + 8))};
}
inline __m256 widen_bf16(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
inline Vec16 load_bf16(const uint16_t* p) { return {widen_bf16(load_eight(p)), widen_bf16(load_eight(p + 8))}; }
inline void load_bf16_pairs(const uint16_t* p, Vec16& even, Vec16& odd) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(low, mask)), _mm256_castsi256_ps(_mm256_and_si256(high, mask))};
}
inline Vec16 zip(__m256 even, __m256 odd) {
  const __m256 outer = _mm256_unpacklo_ps(even, odd); // 0 1 and 4 5 of each
  const __m256 inner = _mm256_unpackhi_ps(even, odd); // 2 3 and 6 7
  return {_mm256_permute2f128_ps(outer, inner, 0x20), _mm256_permute2f128_ps(outer, inner, 0x31)};
}
inline void zip(Vec16 even, Vec16 odd, Vec16& low, Vec16& high) {
  low = zip(even.a, odd.a);
  high = zip(even.b, odd.b);
}
inline __m128i load_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline Vec16 widen_f16(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
inline Vec16 load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_bytes(p)), 7);
  return widen_f16(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))));
}
inline Vec16 load_e5m2(const uint8_t* p) {
  return widen_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_bytes(p)), 8));
}
inline void store_f16(uint16_t* p, Vec16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256i round_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(uint16_t* p, Vec16 v) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(v.a), round_bf16(v.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

inline Vec16 operator+(Vec16 x, Vec16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec16 operator-(Vec16 x, Vec16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec16 operator*(Vec16 x, Vec16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec16 operator/(Vec16 x, Vec16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec16 fma(Vec16 x, Vec16 y, Vec16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec16 max(Vec16 x, Vec16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec16 min(Vec16 x, Vec16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec16 sqrt(Vec16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
inline Vec16 round_int(Vec16 x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
inline Vec16 round_int(Vec16 x, Vec16& rest) {
  const Vec16 whole = round_int(x);
  rest = x - whole;
  return whole;
}

inline Vec16 select_less(Vec16 a, Vec16 b, Vec16 x, Vec16 y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
inline Vec16 keep_range(Vec16 x, int first, int last, float fill) {
  const __m256 other = _mm256_set1_ps(fill);
  const __m256i low = _mm256_andnot_si256(lanes_below(first, 0), lanes_below(last, 0));
  const __m256i high = _mm256_andnot_si256(lanes_below(first, 8), lanes_below(last, 8));
  return {_mm256_blendv_ps(other, x.a, _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(other, x.b, _mm256_castsi256_ps(high))};
}
// In two factors, so that results may be subnormal or overflow to infinity.
inline __m256 scale2(__m256 v, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(v, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
inline Vec16 scale2(Vec16 v, Vec16 n) { return {scale2(v.a, n.a), scale2(v.b, n.b)}; }
inline uint32_t any_greater(Vec16 x, Vec16 y) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
  return static_cast<uint32_t>(low | (high << 8));
}

inline float sum(Vec16 v) {
  const __m256 eight = _mm256_add_ps(v.a, v.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(Vec16 v) {
  const __m256 eight = _mm256_max_ps(v.a, v.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline uint64_t sum_bytes64(const uint8_t* p) {
  const __m256i* words = reinterpret_cast<const __m256i*>(p);
  const __m256i none = _mm256_setzero_si256();
  const __m256i sums = _mm256_add_epi64(_mm256_sad_epu8(_mm256_loadu_si256(words), none),
                                        _mm256_sad_epu8(_mm256_loadu_si256(words + 1), none));
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) + static_cast<uint64_t>(_mm_extract_epi64(two, 1));
}

} // namespace octavo
