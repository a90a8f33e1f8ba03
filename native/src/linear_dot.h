// Dot products of codes with inputs of 8 bits, four a lane, summed exactly in 32 bits.
#pragma once
#include "linear_codes.h"

namespace octavo {

// Codes of 8 bits and of tables are signed numbers, all others unsigned ones from which the format's offset is to be
// taken. AVX-512's instruction wants one unsigned factor: there signed codes are raised by 128.
template <int Number> constexpr bool signed_codes() {
  return format_of(Number).low_bits == 8 || format_of(Number).values != Values::integers;
}

// What a sum starts from makes up for the offset: -(sum of the group's inputs) times this; 0: nothing to make up for.
constexpr int dot_offset(const Format& f) {
#if defined(OCTAVO_ISA_AVX512)
  if (f.low_bits == 8 || f.values != Values::integers) return 128;
#endif
  return f.values == Values::integers ? f.offset : 0;
}

// Values of 4-bit codes as dot() takes them.
template <int Number> struct ByteTable {
  alignas(16) uint8_t value[16];
  constexpr ByteTable() : value() {
    constexpr Format f = format_of(Number);
    for (int code = 0; code < 16; ++code)
      value[code] = static_cast<uint8_t>(static_cast<int>(f.values == Values::iq4_nl ? kIq4Nl[code] : kMxfp4[code]) +
                                         dot_offset(f));
  }
};
template <int Number> constexpr ByteTable<Number> kByteTable{};

#if defined(OCTAVO_ISA_AVX512)
inline Int16 set_words(int32_t word) { return {_mm512_set1_epi32(word)}; }
template <bool Signed> inline Int16 dot(Int16 sum, Int16 codes, int32_t inputs) {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(inputs))};
}
inline void store_words(uint8_t* p, Int16 a) { _mm512_storeu_si512(p, a.v); }
inline Int16 raise_bytes(Int16 a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }
inline Int16 look_up_bytes(const uint8_t* table, Int16 codes) {
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes.v)};
}
#elif defined(OCTAVO_ISA_AVX2)
inline Int16 set_words(int32_t word) { return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)}; }
// Pairs are summed in 16 bits, which 63 * 127 * 2 and 128 * 127 * 2 fit.
template <bool Signed> inline __m256i dot_half(__m256i sum, __m256i codes, __m256i inputs) {
  const __m256i factor = Signed ? _mm256_abs_epi8(codes) : codes;
  const __m256i pairs = _mm256_maddubs_epi16(factor, Signed ? _mm256_sign_epi8(inputs, codes) : inputs);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
template <bool Signed> inline Int16 dot(Int16 sum, Int16 codes, int32_t inputs) {
  const __m256i four = _mm256_set1_epi32(inputs);
  return {dot_half<Signed>(sum.a, codes.a, four), dot_half<Signed>(sum.b, codes.b, four)};
}
inline void store_words(uint8_t* p, Int16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.b);
}
inline Int16 raise_bytes(Int16 a) { return a; }
inline Int16 look_up_bytes(const uint8_t* table, Int16 codes) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(values, codes.a), _mm256_shuffle_epi8(values, codes.b)};
}
#else
inline Int16 set_words(int32_t word) {
  return each_word([&](int) { return static_cast<uint32_t>(word); });
}
#if defined(OCTAVO_ISA_NEON)
// Codes are below 128: they are the same signed.
template <bool Signed> inline Int16 dot(const Int16& sum, const Int16& codes, int32_t inputs) {
  Int16 result;
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(inputs));
  for (int i = 0; i < 4; ++i) {
    const int32x4_t total = vld1q_s32(reinterpret_cast<const int32_t*>(sum.lane) + 4 * i);
    const int8x16_t weights = vld1q_s8(reinterpret_cast<const int8_t*>(codes.lane) + 16 * i);
#if defined(__ARM_FEATURE_DOTPROD)
    const int32x4_t next = vdotq_s32(total, weights, four);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(four));
    const int16x8_t high = vmull_s8(vget_high_s8(weights), vget_high_s8(four));
    const int32x4_t next = vaddq_s32(total, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
    vst1q_s32(reinterpret_cast<int32_t*>(result.lane) + 4 * i, next);
  }
  return result;
}
#else
template <bool Signed> inline Int16 dot(const Int16& sum, const Int16& codes, int32_t inputs) {
  return each_word([&](int i) {
    int32_t total = static_cast<int32_t>(sum.lane[i]);
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t code = codes.lane[i] >> (8 * byte) & 255;
      const int32_t input = static_cast<int8_t>(static_cast<uint32_t>(inputs) >> (8 * byte) & 255);
      total += (Signed ? static_cast<int8_t>(code) : static_cast<int32_t>(code)) * input;
    }
    return static_cast<uint32_t>(total);
  });
}
#endif
inline void store_words(uint8_t* p, const Int16& a) { memcpy(p, a.lane, sizeof a.lane); }
inline Int16 raise_bytes(const Int16& a) { return a; }
inline Int16 look_up_bytes(const uint8_t* table, const Int16& codes) {
  return each_word([&](int i) {
    uint32_t word = 0;
    for (int shift = 0; shift < 32; shift += 8)
      word |= static_cast<uint32_t>(table[codes.lane[i] >> shift & 15]) << shift;
    return word;
  });
}
#endif

// Codes of a unit at 8 Row + 2 byte + Parity, one a byte, for dot<signed_codes>().
template <int Number, int Row, int Parity> inline Int16 dot_codes(const uint8_t* low, const uint8_t* high) {
  constexpr Format f = format_of(Number);
  if constexpr (f.low_bits == 8) {
    return raise_bytes(load_words(low + Row * 128 + Parity * 64));
  } else {
    constexpr uint32_t kMask = ((1u << (f.low_bits + f.high_bits)) - 1) * 0x01010101u;
    const Int16 codes = keep_bits(code_bytes<Number, Row, Parity>(low, high), kMask);
    return f.values == Values::integers ? codes : look_up_bytes(kByteTable<Number>.value, codes);
  }
}

} // namespace octavo
