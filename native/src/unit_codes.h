// Rounds 32 inputs to integers and stores them in the order that coded inputs have; linear_quantize.h says which.
#pragma once
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "simd/vec.h"

namespace octavo {

struct UnitSums {
  int32_t low, high; // of inputs 0..15 and 16..31
};

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AVX2)
// The sums of four words in each half.
inline UnitSums sum_words(__m256i eight) {
  const __m256i two = _mm256_add_epi32(eight, _mm256_shuffle_epi32(eight, 0xee));
  const __m256i one = _mm256_add_epi32(two, _mm256_shuffle_epi32(two, 0x55));
  return {_mm256_cvtsi256_si32(one), _mm_cvtsi128_si32(_mm256_extracti128_si256(one, 1))};
}

#if defined(OCTAVO_ISA_AVX512)
inline __m256i sixteen_words(Vec16 a) { return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)); }
inline __m256i unit_bytes(Vec16 low, Vec16 high) {
  return _mm256_set_m128i(_mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(high.v)),
                          _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(low.v)));
}
#else
inline __m256i sixteen_words(Vec16 a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b));
  return _mm256_permute4x64_epi64(words, 0xd8);
}
inline __m256i unit_bytes(Vec16 low, Vec16 high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(sixteen_words(low), sixteen_words(high)), 0xd8);
}
#endif

inline UnitSums store_unit_bytes(uint8_t* p, Vec16 low, Vec16 high, uint8_t raise) {
  const __m256i codes = unit_bytes(low, high);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  const __m256i raised = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(raise)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(raised, order));
  return sum_words(_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1)));
}

inline __m256i store_sixteen_words(uint8_t* p, Vec16 a) {
  const __m256i codes = sixteen_words(a);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(codes, order));
  return _mm256_madd_epi16(codes, _mm256_set1_epi16(1));
}

inline UnitSums store_unit_words(uint8_t* p, Vec16 low, Vec16 high) {
  const __m256i first = store_sixteen_words(p, low), second = store_sixteen_words(p + 32, high);
  return sum_words(_mm256_add_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                                    _mm256_permute2x128_si256(first, second, 0x31)));
}
#else
// Codes of sixteen inputs, whose places are given; their sum.
template <class Code, class Place> inline int32_t store_sixteen(uint8_t* p, const Vec16& a, float limit, Place place) {
  float value[kLanes];
  store(value, max(min(round_int(a), set1(limit)), set1(-limit))); // a NaN has no integer
  int32_t total = 0;
  for (int k = 0; k < kLanes; ++k) {
    const Code code = static_cast<Code>(value[k] == value[k] ? static_cast<int32_t>(value[k]) : 0);
    memcpy(p + (k / 8 * 8 + place(k % 8)) * static_cast<int>(sizeof code), &code, sizeof code);
    total += code;
  }
  return total;
}

inline UnitSums store_unit_bytes(uint8_t* p, const Vec16& low, const Vec16& high, uint8_t) { // never raised here
  const auto place = [](int k) { return k % 2 * 4 + k / 2; };
  return {store_sixteen<int8_t>(p, low, 127.0f, place), store_sixteen<int8_t>(p + 16, high, 127.0f, place)};
}

inline UnitSums store_unit_words(uint8_t* p, const Vec16& low, const Vec16& high) {
  const auto place = [](int k) { return k % 2 * 4 + k / 2 % 2 * 2 + k / 4; };
  return {store_sixteen<int16_t>(p, low, 32767.0f, place), store_sixteen<int16_t>(p + 32, high, 32767.0f, place)};
}
#endif

} // namespace octavo
