// Dot products of a cache's codes with inputs of 16 bits, four of each a lane, summed exactly (modulo 2^32):
//
//   Codes                         64 codes, unsigned numbers: lane i has those at bytes 4 i .. 4 i + 3
//   load_codes(p)                 of a byte each
//   load_half_codes(p, half)      of 4 bits each: the low (0) or the high (1) halves of the 64 bytes
//   Inputs, load_inputs(p)        four of them, the same for all lanes
//   InputSums, no_inputs()        sums of inputs (fours.h: totals_of)
//   store_inputs(p, v, sums)      sixteen floats within kMostInput, rounded to nearest even, in 32 bytes
//   store_inputs(p, v, w, sums)   thirty-two, likewise
//   DotSums, sums_from(start)     sixteen lanes, all `start` at first
//   add_dots(sums, codes, inputs)
//   floats_of(sums)               as float32
//   add_sums(to, sums)            to[0 .. 15] += sums
//   load_ints(p) fill_ints(p, x)  as float32; sixteen times x
//   max_magnitude(v, most)        lane by lane |v| or most, whichever is larger; NaN is the largest of all
//   largest_magnitude(most)       of the lanes
//
// Sums are integers, so their order leaves no trace: each instruction set adds as it likes.
#pragma once
#include "simd/vec.h"

namespace octavo {

// AVX-512 splits an input into two signed bytes.
constexpr float kMostInput = 32512.0f; // 127 * 256
constexpr int64_t kInputBytes = 2;

#if defined(OCTAVO_ISA_AVX512)

struct Codes {
  __m512i v;
};
struct Inputs {
  __m512i high, low;
};
struct DotSums {
  __m512i high, low;
};

constexpr int kDotRows = 3, kDotVectors = 4; // sums that fit the registers
constexpr int kTallDotRows = 6, kTallDotVectors = 2;
constexpr int kOneDotVectors = 8; // of one row

inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Codes load_half_codes(const uint8_t* p, int half) {
  const __m512i bytes = _mm512_loadu_si512(p);
  return {_mm512_and_si512(half == 0 ? bytes : _mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15))};
}
inline Inputs load_inputs(const uint8_t* p) {
  const int32_t* words = reinterpret_cast<const int32_t*>(p);
  return {_mm512_set1_epi32(words[0]), _mm512_set1_epi32(words[1])};
}
// v = 256 high + low, both signed: the lowest bytes of v + 128 are the high one, and the low one plus 128. The sum of
// floats, which is rounded, has them as its last bits.
constexpr uint32_t kRaisedBits = 0x4b400080u; // of 1.5 * 2^23 + 128
struct InputSums {
  __m512i raised;
  uint32_t vectors;
};
inline InputSums no_inputs() { return {_mm512_setzero_si512(), 0}; }
inline __m512i raised_input(Vec16 v, InputSums& sums) {
  const __m512i raised = _mm512_castps_si512(_mm512_add_ps(v.v, _mm512_set1_ps(0x1.8p23f + 128.0f)));
  sums.raised = _mm512_add_epi32(sums.raised, raised);
  ++sums.vectors;
  return raised;
}
inline __m512i in_fours(__m512i raised, __m128i order) {
  return _mm512_shuffle_epi8(raised, _mm512_broadcast_i32x4(order));
}
inline void store_inputs(uint8_t* p, Vec16 v, InputSums& sums) {
  const __m512i fours =
      in_fours(raised_input(v, sums), _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m512i close = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0), fours);
  const __m256i sign = _mm256_set1_epi64x(static_cast<int64_t>(0x8080808000000000u));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_xor_si256(_mm512_castsi512_si256(close), sign));
}
inline void store_inputs(uint8_t* p, Vec16 v, Vec16 w, InputSums& sums) {
  const __m512i low =
      in_fours(raised_input(v, sums), _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m512i high =
      in_fours(raised_input(w, sums), _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 1, 5, 9, 13, 0, 4, 8, 12));
  const __m512i sign = _mm512_set1_epi64(static_cast<int64_t>(0x8080808000000000u));
  const __m512i both = _mm512_ternarylogic_epi64(low, high, sign, 0x56); // (low | high) ^ sign
  _mm512_storeu_si512(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), both));
}
inline DotSums sums_from(int32_t start) { return {_mm512_setzero_si512(), _mm512_set1_epi32(start)}; }
// Written as instructions: of the intrinsic's accumulators GCC 12 keeps copies.
inline void add_dots(DotSums& sums, Codes codes, Inputs inputs) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.high) : "v"(codes.v), "v"(inputs.high));
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.low) : "v"(codes.v), "v"(inputs.low));
}
inline __m512i total_of(const DotSums& sums) { return _mm512_add_epi32(_mm512_slli_epi32(sums.high, 8), sums.low); }
inline Vec16 floats_of(const DotSums& sums) { return {_mm512_cvtepi32_ps(total_of(sums))}; }
inline void add_sums(int32_t* to, const DotSums& sums) {
  _mm512_storeu_si512(to, _mm512_add_epi32(_mm512_loadu_si512(to), total_of(sums)));
}
inline Vec16 load_ints(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
inline void fill_ints(int32_t* p, int32_t x) { _mm512_storeu_si512(p, _mm512_set1_epi32(x)); }
inline Vec16 max_magnitude(Vec16 v, Vec16 most) {
  const __m512i size = _mm512_and_si512(_mm512_castps_si512(v.v), _mm512_set1_epi32(0x7fffffff));
  return {_mm512_castsi512_ps(_mm512_max_epi32(size, _mm512_castps_si512(most.v)))};
}
inline float largest_magnitude(Vec16 most) {
  return float_of(static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_castps_si512(most.v))));
}

#elif defined(OCTAVO_ISA_AVX2)

// Codes at even and at odd places as words of 16 bits; inputs lie in the order 0 2 1 3.
struct Codes {
  __m256i even[2], odd[2];
};
struct Inputs {
  __m256i even, odd;
};
struct DotSums {
  __m256i half[2];
};

constexpr int kDotRows = 3, kDotVectors = 1;
constexpr int kTallDotRows = 3, kTallDotVectors = 1;
constexpr int kOneDotVectors = 1;

inline __m256i load_half_line(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Codes load_codes(const uint8_t* p) {
  Codes codes;
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = load_half_line(p + 32 * i);
    codes.even[i] = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
    codes.odd[i] = _mm256_srli_epi16(bytes, 8);
  }
  return codes;
}
inline Codes load_half_codes(const uint8_t* p, int half) {
  Codes codes;
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = load_half_line(p + 32 * i);
    const __m256i chosen = half == 0 ? bytes : _mm256_srli_epi16(bytes, 4);
    codes.even[i] = _mm256_and_si256(chosen, _mm256_set1_epi16(15));
    codes.odd[i] = _mm256_and_si256(_mm256_srli_epi16(chosen, 8), _mm256_set1_epi16(15));
  }
  return codes;
}
inline Inputs load_inputs(const uint8_t* p) {
  const int32_t* words = reinterpret_cast<const int32_t*>(p);
  return {_mm256_set1_epi32(words[0]), _mm256_set1_epi32(words[1])};
}
inline void store_whole(uint8_t* p, Vec16 v) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)); // 0-3 8-11 4-7 12-15
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7,
                                         8, 9, 12, 13, 10, 11, 14, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_shuffle_epi8(_mm256_permute4x64_epi64(packed, 0xd8), order));
}
inline DotSums sums_from(int32_t start) { return {{_mm256_set1_epi32(start), _mm256_set1_epi32(start)}}; }
inline void add_dots(DotSums& sums, const Codes& codes, Inputs inputs) {
  for (int i = 0; i < 2; ++i) {
    const __m256i even = _mm256_madd_epi16(codes.even[i], inputs.even);
    const __m256i odd = _mm256_madd_epi16(codes.odd[i], inputs.odd);
    sums.half[i] = _mm256_add_epi32(sums.half[i], _mm256_add_epi32(even, odd));
  }
}
inline Vec16 floats_of(const DotSums& sums) {
  return {_mm256_cvtepi32_ps(sums.half[0]), _mm256_cvtepi32_ps(sums.half[1])};
}
inline void add_sums(int32_t* to, const DotSums& sums) {
  for (int i = 0; i < 2; ++i) {
    __m256i* place = reinterpret_cast<__m256i*>(to + 8 * i);
    _mm256_storeu_si256(place, _mm256_add_epi32(_mm256_loadu_si256(place), sums.half[i]));
  }
}
inline Vec16 load_ints(const int32_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(halves)), _mm256_cvtepi32_ps(_mm256_loadu_si256(halves + 1))};
}
inline void fill_ints(int32_t* p, int32_t x) {
  for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + i, _mm256_set1_epi32(x));
}
inline __m256 max_magnitude(__m256 v, __m256 most) {
  const __m256i size = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_max_epi32(size, _mm256_castps_si256(most)));
}
inline Vec16 max_magnitude(Vec16 v, Vec16 most) { return {max_magnitude(v.a, most.a), max_magnitude(v.b, most.b)}; }
inline float largest_magnitude(Vec16 most) {
  const __m256i eight = _mm256_castps_si256(max_magnitude(most.a, most.b));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
  return float_of(static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)))));
}

#elif defined(OCTAVO_ISA_NEON)

// As for AVX2. Sums of lanes 4 i, 4 i + 1 and 4 i + 2, 4 i + 3 have two parts each until they are read.
struct Codes {
  int16x8_t even[4], odd[4];
};
struct Inputs {
  int16x8_t even, odd;
};
struct DotSums {
  int32x4_t low[4], high[4];
};

constexpr int kDotRows = 2, kDotVectors = 1;
constexpr int kTallDotRows = 2, kTallDotVectors = 1;
constexpr int kOneDotVectors = 1;

inline Codes split_codes(const uint8_t* p, int shift, uint16_t mask) {
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t words =
        vshlq_u16(vreinterpretq_u16_u8(vld1q_u8(p + 16 * i)), vdupq_n_s16(static_cast<int16_t>(-shift)));
    codes.even[i] = vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(mask)));
    codes.odd[i] = vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(words, 8), vdupq_n_u16(mask)));
  }
  return codes;
}
inline Codes load_codes(const uint8_t* p) { return split_codes(p, 0, 255); }
inline Codes load_half_codes(const uint8_t* p, int half) { return split_codes(p, 4 * half, 15); }
inline Inputs load_inputs(const uint8_t* p) {
  const int32_t* words = reinterpret_cast<const int32_t*>(p);
  return {vreinterpretq_s16_s32(vdupq_n_s32(words[0])), vreinterpretq_s16_s32(vdupq_n_s32(words[1]))};
}
inline void store_whole(uint8_t* p, Vec16 v) {
  for (int i = 0; i < 4; ++i) {
    const int16x4_t four = vmovn_s32(vcvtnq_s32_f32(v.q[i]));
    const int16x4_t even = vuzp1_s16(four, four), odd = vuzp2_s16(four, four); // 0 2 0 2, 1 3 1 3
    vst1_s32(reinterpret_cast<int32_t*>(p + 8 * i), vzip1_s32(vreinterpret_s32_s16(even), vreinterpret_s32_s16(odd)));
  }
}
inline DotSums sums_from(int32_t start) {
  const int32x4_t once = vsetq_lane_s32(start, vsetq_lane_s32(start, vdupq_n_s32(0), 0), 2);
  DotSums sums;
  for (int i = 0; i < 4; ++i) sums.low[i] = sums.high[i] = once;
  return sums;
}
inline void add_dots(DotSums& sums, const Codes& codes, Inputs inputs) {
  for (int i = 0; i < 4; ++i) {
    sums.low[i] = vmlal_s16(sums.low[i], vget_low_s16(codes.even[i]), vget_low_s16(inputs.even));
    sums.high[i] = vmlal_high_s16(sums.high[i], codes.even[i], inputs.even);
    sums.low[i] = vmlal_s16(sums.low[i], vget_low_s16(codes.odd[i]), vget_low_s16(inputs.odd));
    sums.high[i] = vmlal_high_s16(sums.high[i], codes.odd[i], inputs.odd);
  }
}
inline Vec16 floats_of(const DotSums& sums) {
  return each_quarter([&](int i) { return vcvtq_f32_s32(vpaddq_s32(sums.low[i], sums.high[i])); });
}
inline void add_sums(int32_t* to, const DotSums& sums) {
  for (int i = 0; i < 4; ++i) {
    vst1q_s32(to + 4 * i, vaddq_s32(vld1q_s32(to + 4 * i), vpaddq_s32(sums.low[i], sums.high[i])));
  }
}
inline Vec16 load_ints(const int32_t* p) {
  return each_quarter([&](int i) { return vcvtq_f32_s32(vld1q_s32(p + 4 * i)); });
}
inline void fill_ints(int32_t* p, int32_t x) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, vdupq_n_s32(x));
}
inline Vec16 max_magnitude(Vec16 v, Vec16 most) {
  return each_quarter([&](int i) {
    const uint32x4_t size = vreinterpretq_u32_f32(vabsq_f32(v.q[i]));
    return vreinterpretq_f32_u32(vmaxq_u32(size, vreinterpretq_u32_f32(most.q[i])));
  });
}
inline float largest_magnitude(Vec16 most) {
  uint32x4_t four = vreinterpretq_u32_f32(most.q[0]);
  for (int i = 1; i < 4; ++i) four = vmaxq_u32(four, vreinterpretq_u32_f32(most.q[i]));
  return float_of(vmaxvq_u32(four));
}

#else

struct Codes {
  const uint8_t* bytes;
  int shift;
  uint8_t mask;
};
struct Inputs {
  const int16_t* four;
};
struct DotSums {
  uint32_t lane[16];
};

constexpr int kDotRows = 2, kDotVectors = 1;
constexpr int kTallDotRows = 2, kTallDotVectors = 1;
constexpr int kOneDotVectors = 1;

inline Codes load_codes(const uint8_t* p) { return {p, 0, 255}; }
inline Codes load_half_codes(const uint8_t* p, int half) { return {p, 4 * half, 15}; }
inline Inputs load_inputs(const uint8_t* p) { return {reinterpret_cast<const int16_t*>(p)}; }
inline void store_whole(uint8_t* p, const Vec16& v) {
  for (int i = 0; i < 16; ++i) reinterpret_cast<int16_t*>(p)[i] = static_cast<int16_t>(v.lane[i]);
}
inline DotSums sums_from(int32_t start) {
  DotSums sums;
  for (uint32_t& lane : sums.lane) lane = static_cast<uint32_t>(start);
  return sums;
}
inline void add_dots(DotSums& sums, Codes codes, Inputs inputs) {
  for (int i = 0; i < 64; ++i) {
    const int code = codes.bytes[i] >> codes.shift & codes.mask;
    sums.lane[i / 4] += static_cast<uint32_t>(code * inputs.four[i % 4]);
  }
}
inline Vec16 floats_of(const DotSums& sums) {
  return each_lane([&](int i) { return static_cast<float>(static_cast<int32_t>(sums.lane[i])); });
}
inline void add_sums(int32_t* to, const DotSums& sums) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<int32_t>(static_cast<uint32_t>(to[i]) + sums.lane[i]);
}
inline Vec16 load_ints(const int32_t* p) {
  return each_lane([&](int i) { return static_cast<float>(p[i]); });
}
inline void fill_ints(int32_t* p, int32_t x) {
  for (int i = 0; i < 16; ++i) p[i] = x;
}
inline Vec16 max_magnitude(const Vec16& v, const Vec16& most) {
  return each_lane([&](int i) {
    const uint32_t size = bits_of(v.lane[i]) & 0x7fffffffu, other = bits_of(most.lane[i]);
    return float_of(size > other ? size : other);
  });
}
inline float largest_magnitude(const Vec16& most) {
  Vec16 all = zero();
  for (int i = 0; i < 16; ++i) all = max_magnitude(set1(most.lane[i]), all);
  return all.lane[0];
}

#endif

#if !defined(OCTAVO_ISA_AVX512)
struct InputSums {
  Vec16 whole;
};
inline InputSums no_inputs() { return {zero()}; }
inline void store_inputs(uint8_t* p, const Vec16& v, InputSums& sums) {
  const Vec16 whole = round_int(v);
  store_whole(p, whole);
  sums.whole = sums.whole + whole;
}
inline void store_inputs(uint8_t* p, const Vec16& v, const Vec16& w, InputSums& sums) {
  store_inputs(p, v, sums);
  store_inputs(p + 16 * kInputBytes, w, sums);
}
#endif

} // namespace octavo
