// Dot products of codes with coded inputs, summed exactly in 32 bits: four of 8 bits a lane, or two of 16.
#pragma once
#include "linear_codes.h"
#include "linear_quantize.h"

namespace octavo {

// Codes of 8 bits and of tables are signed numbers, all others unsigned ones from which the format's offset is to be
// taken.
constexpr bool signed_codes(const Format& f) { return f.low_bits == 8 || f.values != Values::integers; }

// VNNI's instruction on bytes wants one unsigned factor: there signed codes are raised by 128.
#if defined(OCTAVO_ISA_AVX512) || defined(__AVXVNNI__)
constexpr int kRaise = 128;
#else
constexpr int kRaise = 0;
#endif

// What a sum starts from makes up for the offset: -(sum of the group's inputs) times this; 0: nothing to make up for.
constexpr int dot_offset(const Format& f, Coding coding) {
  if (signed_codes(f)) return coding == Coding::bytes ? kRaise : 0;
  return f.offset;
}

// Values of 4-bit codes as dot() takes them.
template <int Number, Coding C> struct ByteTable {
  alignas(16) uint8_t value[16];
  constexpr ByteTable() : value() {
    constexpr Format f = format_of(Number);
    for (int code = 0; code < 16; ++code)
      value[code] = static_cast<uint8_t>(static_cast<int>(f.values == Values::iq4_nl ? kIq4Nl[code] : kMxfp4[code]) +
                                         dot_offset(f, C));
  }
};
template <int Number, Coding C> constexpr ByteTable<Number, C> kByteTable{};

#if defined(OCTAVO_ISA_AVX512)
inline Int16 set_words(int32_t word) { return {_mm512_set1_epi32(word)}; }
inline Vec16 as_floats(Int16 a) { return {_mm512_castsi512_ps(a.v)}; }
// Written as instructions, in the order in which they stand: of the intrinsics' accumulators GCC 12 keeps copies, and
// then moves them to memory and back; and what is loaded for them, it loads again rather than keep it in a register.
template <bool Signed> inline Int16 dot(Int16 sum, Int16 codes, int32_t inputs) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(_mm512_set1_epi32(inputs)));
  return sum;
}
// Inputs are raised by 128, codes signed.
inline Int16 dot_raised(Int16 sum, Int16 inputs, Int16 codes) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(inputs.v), "v"(codes.v));
  return sum;
}
inline Int16 dot_words(Int16 sum, Int16 codes, int32_t inputs) {
  asm volatile("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(_mm512_set1_epi32(inputs)));
  return sum;
}
// A word of inputs for all lanes. As an instruction: from a number the compiler would take one more operation.
using InputWord = Int16;
inline InputWord load_input(const uint8_t* p) {
  Int16 words;
  asm("vpbroadcastd %1, %0" : "=v"(words.v) : "m"(*reinterpret_cast<const int32_t*>(p)));
  return words;
}
template <bool Signed> inline Int16 dot(Int16 sum, Int16 codes, InputWord inputs) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(inputs.v));
  return sum;
}
inline Int16 dot_words(Int16 sum, Int16 codes, InputWord inputs) {
  asm volatile("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(inputs.v));
  return sum;
}
inline Int16 load_once(const uint8_t* p) {
  struct Line {
    uint8_t byte[64];
  };
  Int16 words;
  asm volatile("vmovdqu64 %1, %0" : "=v"(words.v) : "m"(*reinterpret_cast<const Line*>(p)));
  return words;
}
// Bytes 0 and 2, or 1 and 3, of each word as two numbers of 16 bits.
template <bool Signed> inline Int16 even_bytes(Int16 a) {
  return {Signed ? _mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8) : _mm512_and_si512(a.v, _mm512_set1_epi16(255))};
}
template <bool Signed> inline Int16 odd_bytes(Int16 a) {
  return {Signed ? _mm512_srai_epi16(a.v, 8) : _mm512_srli_epi16(a.v, 8)};
}
inline void store_words(uint8_t* p, Int16 a) { _mm512_storeu_si512(p, a.v); }
inline Int16 raise_bytes(Int16 a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }
inline Int16 look_up_bytes(const uint8_t* table, Int16 codes) {
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes.v)};
}
#elif defined(OCTAVO_ISA_AVX2)
inline Int16 set_words(int32_t word) { return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)}; }
inline Int16 load_once(const uint8_t* p) { return load_words(p); }
#if defined(__AVXVNNI__)
template <bool Signed> inline __m256i dot_half(__m256i sum, __m256i codes, __m256i inputs) {
  return _mm256_dpbusd_avx_epi32(sum, codes, inputs);
}
inline __m256i dot_half_words(__m256i sum, __m256i codes, __m256i inputs) {
  return _mm256_dpwssd_avx_epi32(sum, codes, inputs);
}
inline __m256i raise_half(__m256i a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
#else
// Pairs are summed in 16 bits, which 63 * 127 * 2 and 128 * 127 * 2 fit.
template <bool Signed> inline __m256i dot_half(__m256i sum, __m256i codes, __m256i inputs) {
  const __m256i factor = Signed ? _mm256_abs_epi8(codes) : codes;
  const __m256i pairs = _mm256_maddubs_epi16(factor, Signed ? _mm256_sign_epi8(inputs, codes) : inputs);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline __m256i dot_half_words(__m256i sum, __m256i codes, __m256i inputs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, inputs));
}
inline __m256i raise_half(__m256i a) { return a; }
#endif
template <bool Signed> inline __m256i even_half(__m256i a) {
  return Signed ? _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8) : _mm256_and_si256(a, _mm256_set1_epi16(255));
}
template <bool Signed> inline __m256i odd_half(__m256i a) {
  return Signed ? _mm256_srai_epi16(a, 8) : _mm256_srli_epi16(a, 8);
}
inline Int16 dot_words(Int16 sum, Int16 codes, int32_t inputs) {
  const __m256i two = _mm256_set1_epi32(inputs);
  return {dot_half_words(sum.a, codes.a, two), dot_half_words(sum.b, codes.b, two)};
}
template <bool Signed> inline Int16 even_bytes(Int16 x) { return {even_half<Signed>(x.a), even_half<Signed>(x.b)}; }
template <bool Signed> inline Int16 odd_bytes(Int16 x) { return {odd_half<Signed>(x.a), odd_half<Signed>(x.b)}; }
template <bool Signed> inline Int16 dot(Int16 sum, Int16 codes, int32_t inputs) {
  const __m256i four = _mm256_set1_epi32(inputs);
  return {dot_half<Signed>(sum.a, codes.a, four), dot_half<Signed>(sum.b, codes.b, four)};
}
inline void store_words(uint8_t* p, Int16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.b);
}
inline Int16 raise_bytes(Int16 x) { return {raise_half(x.a), raise_half(x.b)}; }
inline Int16 look_up_bytes(const uint8_t* table, Int16 codes) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(values, codes.a), _mm256_shuffle_epi8(values, codes.b)};
}
#elif defined(OCTAVO_ISA_NEON)
inline Int16 set_words(int32_t word) {
  return each_four([&](int) { return vdupq_n_u32(static_cast<uint32_t>(word)); });
}
inline Int16 load_once(const uint8_t* p) { return load_words(p); }
// Numbers of 16 bits made of the lower bytes of those that a holds.
template <bool Signed> inline Int16 even_bytes(const Int16& a) {
  return each_four([&](int i) {
    const uint16x8_t raised = vshlq_n_u16(vreinterpretq_u16_u32(a.q[i]), 8);
    return Signed ? vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u16(raised), 8))
                  : vandq_u32(a.q[i], vdupq_n_u32(0x00ff00ffu));
  });
}
template <bool Signed> inline Int16 odd_bytes(const Int16& a) {
  return each_four([&](int i) {
    return Signed ? vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u32(a.q[i]), 8))
                  : vreinterpretq_u32_u16(vshrq_n_u16(vreinterpretq_u16_u32(a.q[i]), 8));
  });
}
// Codes are below 128: they are the same signed.
template <bool Signed> inline Int16 dot(const Int16& sum, const Int16& codes, int32_t inputs) {
#if defined(__ARM_FEATURE_DOTPROD)
  const int8x8_t four = vreinterpret_s8_s32(vdup_n_s32(inputs));
#else
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(inputs));
#endif
  return each_four([&](int i) {
    const int32x4_t total = vreinterpretq_s32_u32(sum.q[i]);
    const int8x16_t weights = vreinterpretq_s8_u32(codes.q[i]);
#if defined(__ARM_FEATURE_DOTPROD)
    return vreinterpretq_u32_s32(vdotq_lane_s32(total, weights, four, 0));
#else
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(four)), high = vmull_high_s8(weights, four);
    return vreinterpretq_u32_s32(vaddq_s32(total, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))));
#endif
  });
}
inline Int16 dot_words(const Int16& sum, const Int16& codes, int32_t inputs) {
  const int16x8_t two = vreinterpretq_s16_s32(vdupq_n_s32(inputs));
  return each_four([&](int i) {
    const int16x8_t weights = vreinterpretq_s16_u32(codes.q[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(weights), vget_low_s16(two)), high = vmull_high_s16(weights, two);
    return vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_u32(sum.q[i]), vpaddq_s32(low, high)));
  });
}
// Codes of 16 bits apart: those of all lanes for a word's first input, then those for its second. So they are written
// out for many rows, where a sum takes them up without anything moved between lanes.
inline Int16 set_apart(const Int16& codes) {
  Int16 to;
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t a = vreinterpretq_u16_u32(codes.q[2 * i]), b = vreinterpretq_u16_u32(codes.q[2 * i + 1]);
    to.q[i] = vreinterpretq_u32_u16(vuzp1q_u16(a, b));
    to.q[2 + i] = vreinterpretq_u32_u16(vuzp2q_u16(a, b));
  }
  return to;
}
inline Int16 dot_apart(const Int16& sum, const Int16& codes, int32_t inputs) {
  const int16x8_t first = vdupq_n_s16(static_cast<int16_t>(inputs));
  const int16x8_t second = vdupq_n_s16(static_cast<int16_t>(inputs >> 16));
  return each_four([&](int i) {
    const int16x8_t a = vreinterpretq_s16_u32(codes.q[i / 2]), b = vreinterpretq_s16_u32(codes.q[2 + i / 2]);
    int32x4_t total = vreinterpretq_s32_u32(sum.q[i]);
    total = i % 2 ? vmlal_high_s16(total, a, first) : vmlal_s16(total, vget_low_s16(a), vget_low_s16(first));
    total = i % 2 ? vmlal_high_s16(total, b, second) : vmlal_s16(total, vget_low_s16(b), vget_low_s16(second));
    return vreinterpretq_u32_s32(total);
  });
}
inline void store_words(uint8_t* p, const Int16& a) {
  for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, vreinterpretq_u8_u32(a.q[i]));
}
inline Int16 raise_bytes(const Int16& a) { return a; }
inline Int16 look_up_bytes(const uint8_t* table, const Int16& codes) {
  const uint8x16_t values = vld1q_u8(table);
  return each_four([&](int i) { return vreinterpretq_u32_u8(vqtbl1q_u8(values, vreinterpretq_u8_u32(codes.q[i]))); });
}
#else
inline Int16 set_words(int32_t word) {
  return each_word([&](int) { return static_cast<uint32_t>(word); });
}
inline Int16 load_once(const uint8_t* p) { return load_words(p); }
// The numbers of 16 bits in a word.
inline int32_t half_of(uint32_t word, int index) { return static_cast<int16_t>(word >> (16 * index) & 0xffff); }
// The lower bytes of its halves in their place.
template <bool Signed> inline uint32_t widen_bytes(uint32_t word) {
  const uint32_t low = word & 0x00ff00ffu;
  return Signed ? low | (low & 0x00800080u) * 0x1feu : low; // copies of a byte's highest bit above it
}
template <bool Signed> inline Int16 even_bytes(const Int16& a) {
  return each_word([&](int i) { return widen_bytes<Signed>(a.lane[i]); });
}
template <bool Signed> inline Int16 odd_bytes(const Int16& a) {
  return each_word([&](int i) { return widen_bytes<Signed>(a.lane[i] >> 8); });
}
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
inline Int16 dot_words(const Int16& sum, const Int16& codes, int32_t inputs) {
  const uint32_t two = static_cast<uint32_t>(inputs);
  return each_word([&](int i) {
    int32_t total = static_cast<int32_t>(sum.lane[i]);
    for (int half = 0; half < 2; ++half) total += half_of(codes.lane[i], half) * half_of(two, half);
    return static_cast<uint32_t>(total);
  });
}
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

#if !defined(OCTAVO_ISA_AVX512)
using InputWord = int32_t;
inline InputWord load_input(const uint8_t* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}
#endif

// Codes of a unit at 8 Row + 2 byte + Parity, one a byte; raised when they are for dot().
template <int Number, Coding C, int Row, int Parity> inline Int16 byte_codes(const uint8_t* low, const uint8_t* high) {
  constexpr Format f = format_of(Number);
  if constexpr (f.low_bits == 8) {
    const Int16 codes = load_words(low + Row * 128 + Parity * 64);
    return C == Coding::bytes ? raise_bytes(codes) : codes;
  } else {
    constexpr uint32_t kMask = ((1u << (f.low_bits + f.high_bits)) - 1) * 0x01010101u;
    const Int16 codes = keep_bits(code_bytes<Number, Row, Parity>(low, high), kMask);
    return f.values == Values::integers ? codes : look_up_bytes(kByteTable<Number, C>.value, codes);
  }
}

constexpr int words_of_eight(Coding coding) { return coding == Coding::words ? 4 : 2; }

// Eight inputs from 8 Row on, in the order that coded inputs have.
template <int Number, Coding C, int Row>
inline void eight_codes(const uint8_t* low, const uint8_t* high, Int16 (&out)[words_of_eight(C)]) {
  constexpr Format f = format_of(Number);
  if constexpr (C == Coding::bytes) {
    out[0] = byte_codes<Number, C, Row, 0>(low, high);
    out[1] = byte_codes<Number, C, Row, 1>(low, high);
  } else if constexpr (f.low_bits == 4 && f.high_bits == 0 && f.values == Values::integers) {
    const Int16 nibbles = load_words(low + Row * 64);
    out[0] = keep_bits(nibbles, 0x000f000fu);
    out[1] = keep_bits(shift_right<8>(nibbles), 0x000f000fu);
    out[2] = keep_bits(shift_right<4>(nibbles), 0x000f000fu);
    out[3] = keep_bits(shift_right<12>(nibbles), 0x000f000fu);
  } else {
    constexpr bool kSigned = signed_codes(f);
    const Int16 even = byte_codes<Number, C, Row, 0>(low, high), odd = byte_codes<Number, C, Row, 1>(low, high);
    out[0] = even_bytes<kSigned>(even);
    out[1] = odd_bytes<kSigned>(even);
    out[2] = even_bytes<kSigned>(odd);
    out[3] = odd_bytes<kSigned>(odd);
  }
}

// Adds the products of codes and the inputs of one word.
template <Coding C, bool Signed, class Word>
inline Int16 dot_coded(const Int16& sum, const Int16& codes, const Word& inputs) {
  if constexpr (C == Coding::words)
    return dot_words(sum, codes, inputs);
  else
    return dot<Signed>(sum, codes, inputs);
}

// The same of codes that were written out for many rows, as store_written() does.
template <Coding C, bool Signed> inline Int16 dot_written(const Int16& sum, const Int16& codes, int32_t inputs) {
#if defined(OCTAVO_ISA_NEON)
  if constexpr (C == Coding::words) return dot_apart(sum, codes, inputs);
#endif
  return dot_coded<C, Signed>(sum, codes, inputs);
}
template <Coding C> inline void store_written(uint8_t* p, const Int16& codes) {
#if defined(OCTAVO_ISA_NEON)
  if constexpr (C == Coding::words) return store_words(p, set_apart(codes));
#endif
  store_words(p, codes);
}

} // namespace octavo
