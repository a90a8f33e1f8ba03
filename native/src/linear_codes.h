// Codes of a packed panel as floats: eight inputs of sixteen lanes at a time, and the scales of a group.
#pragma once
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "simd/vec.h"

namespace octavo {

// Sixteen 32-bit integers: only what decoding needs. pick_bits: a's bits where the mask is 1, b's elsewhere.
#if defined(OCTAVO_ISA_AVX512)
struct Int16 {
  __m512i v;
};
inline Int16 load_words(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Int16 load_unsigned_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Int16 load_signed_bytes(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
template <int Count> inline Int16 shift_right(Int16 a) {
  return Count > 0 ? Int16{_mm512_srli_epi32(a.v, Count > 0 ? Count : 0)}
                   : Int16{_mm512_slli_epi32(a.v, Count < 0 ? -Count : 0)};
}
inline Int16 keep_bits(Int16 a, uint32_t mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(mask)))};
}
inline Int16 pick_bits(uint32_t mask, Int16 a, Int16 b) {
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(mask)), a.v, b.v, 0xca)};
}
inline Vec16 to_float(Int16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
#elif defined(OCTAVO_ISA_AVX2)
struct Int16 {
  __m256i a, b;
};
inline Int16 load_words(const uint8_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline __m128i load_eight_bytes(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline Int16 load_unsigned_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load_eight_bytes(p)), _mm256_cvtepu8_epi32(load_eight_bytes(p + 8))};
}
inline Int16 load_signed_bytes(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(load_eight_bytes(p)), _mm256_cvtepi8_epi32(load_eight_bytes(p + 8))};
}
template <int Count> inline Int16 shift_right(Int16 x) {
  constexpr int kRight = Count > 0 ? Count : 0, kLeft = Count < 0 ? -Count : 0;
  return Count > 0 ? Int16{_mm256_srli_epi32(x.a, kRight), _mm256_srli_epi32(x.b, kRight)}
                   : Int16{_mm256_slli_epi32(x.a, kLeft), _mm256_slli_epi32(x.b, kLeft)};
}
inline Int16 keep_bits(Int16 x, uint32_t mask) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline Int16 pick_bits(uint32_t mask, Int16 x, Int16 y) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_or_si256(_mm256_and_si256(m, x.a), _mm256_andnot_si256(m, y.a)),
          _mm256_or_si256(_mm256_and_si256(m, x.b), _mm256_andnot_si256(m, y.b))};
}
inline Vec16 to_float(Int16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// table[code], codes of 4 bits: each half of the table is one permutation.
inline __m256 look_up(const float* table, __m256i code) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), code);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), code);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
}
#elif defined(OCTAVO_ISA_NEON)
struct Int16 {
  uint32x4_t q[4];
};
template <class F> inline Int16 each_four(F&& f) { return {{f(0), f(1), f(2), f(3)}}; }
inline Int16 load_words(const uint8_t* p) {
  return each_four([&](int i) { return vreinterpretq_u32_u8(vld1q_u8(p + 16 * i)); });
}
inline Int16 load_unsigned_bytes(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  return {{vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)}};
}
inline Int16 load_signed_bytes(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))), vreinterpretq_u32_s32(vmovl_high_s16(low)),
           vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))), vreinterpretq_u32_s32(vmovl_high_s16(high))}};
}
template <int Count> inline Int16 shift_right(const Int16& a) {
  constexpr int kRight = Count > 0 ? Count : 1, kLeft = Count < 0 ? -Count : 0;
  return each_four([&](int i) { return Count > 0 ? vshrq_n_u32(a.q[i], kRight) : vshlq_n_u32(a.q[i], kLeft); });
}
inline Int16 keep_bits(const Int16& a, uint32_t mask) {
  return each_four([&](int i) { return vandq_u32(a.q[i], vdupq_n_u32(mask)); });
}
inline Int16 pick_bits(uint32_t mask, const Int16& a, const Int16& b) {
  return each_four([&](int i) { return vbslq_u32(vdupq_n_u32(mask), a.q[i], b.q[i]); });
}
inline Vec16 to_float(const Int16& a) {
  return each_quarter([&](int i) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a.q[i])); });
}
#else
struct Int16 {
  uint32_t lane[kLanes];
};
template <class F> inline Int16 each_word(F&& f) {
  Int16 v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = f(i);
  return v;
}
inline Int16 load_words(const uint8_t* p) {
  Int16 v;
  memcpy(v.lane, p, sizeof v.lane);
  return v;
}
inline Int16 load_unsigned_bytes(const uint8_t* p) {
  return each_word([&](int i) { return static_cast<uint32_t>(p[i]); });
}
inline Int16 load_signed_bytes(const uint8_t* p) {
  return each_word([&](int i) { return static_cast<uint32_t>(static_cast<int8_t>(p[i])); });
}
template <int Count> inline Int16 shift_right(const Int16& a) {
  constexpr int kRight = Count > 0 ? Count : 0, kLeft = Count < 0 ? -Count : 0;
  return each_word([&](int i) { return a.lane[i] >> kRight << kLeft; });
}
inline Int16 keep_bits(const Int16& a, uint32_t mask) {
  return each_word([&](int i) { return a.lane[i] & mask; });
}
inline Int16 pick_bits(uint32_t mask, const Int16& a, const Int16& b) {
  return each_word([&](int i) { return (a.lane[i] & mask) | (b.lane[i] & ~mask); });
}
inline Vec16 to_float(const Int16& a) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<float>(static_cast<int32_t>(a.lane[i]));
  return load(lane);
}
#endif

inline Vec16 bits_as_float(const Int16& a) {
  Vec16 v;
  static_assert(sizeof v == sizeof a, "sixteen words each");
  memcpy(&v, &a, sizeof v);
  return v;
}

#if defined(OCTAVO_VARIANT_NEON_I8MM)
// sum + the products of two bf16 a lane, the second of each two first, each added with one rounding.
inline Vec16 add_pairs(const Vec16& sum, const Vec16& a, const Vec16& b) {
  return each_quarter([&](int i) {
    const bfloat16x8_t left = vreinterpretq_bf16_f32(a.q[i]), right = vreinterpretq_bf16_f32(b.q[i]);
    return vbfmlalbq_f32(vbfmlaltq_f32(sum.q[i], left, right), left, right);
  });
}
#endif

#if defined(OCTAVO_ISA_AVX512)
// sum + the products of two bf16 a lane; only where the processor has AVX-512 BF16. Written as an instruction, for the
// compiler is not told of it: it must not use it anywhere else.
inline Vec16 add_pairs(Vec16 sum, Vec16 a, Vec16 b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  return sum;
}
#endif

template <int Number> constexpr float value_of(int code) {
  constexpr Format f = format_of(Number);
  if (f.values == Values::iq4_nl) return kIq4Nl[code & 15];
  if (f.values == Values::mxfp4) return kMxfp4[code & 15];
  return static_cast<float>(code - f.offset);
}

// By the low five bits of an index, of which only a code's own bits count.
template <int Number> struct CodeTable {
  alignas(64) float value[32];
  constexpr CodeTable() : value() {
    constexpr Format f = format_of(Number);
    for (int index = 0; index < 32; ++index)
      value[index] = value_of<Number>(index & ((1 << (f.low_bits + f.high_bits)) - 1));
  }
};
template <int Number> constexpr CodeTable<Number> kCodeTable{};

// Four inputs a lane, one a byte: those at 8 Row + 2 byte + Parity of a unit. Bits above a code's own are anything.
template <int Number, int Row, int Parity> inline Int16 code_bytes(const uint8_t* low, const uint8_t* high) {
  constexpr Format f = format_of(Number);
  constexpr int kPair = 2 * (2 * (Row % 2) + Parity);
  const Int16 codes = f.low_bits == 4 ? shift_right<4 * Parity>(load_words(low + Row * 64))
                                      : shift_right<kPair>(load_words(low + Row / 2 * 64));
  constexpr uint32_t kLow = ((1u << f.low_bits) - 1) * 0x01010101u;
  if constexpr (f.high_bits == 2)
    return pick_bits(kLow, codes, shift_right<kPair - f.low_bits>(load_words(high + Row / 2 * 64)));
  else if constexpr (f.high_bits == 1)
    return pick_bits(kLow, codes, shift_right<2 * Row + Parity - f.low_bits>(load_words(high)));
  else
    return codes;
}

template <int Number> inline Vec16 float_of_codes(const Int16& codes) {
  constexpr Format f = format_of(Number);
  if constexpr (f.values == Values::integers) {
    if constexpr (f.offset == 0)
      return to_float(codes);
    else
      return to_float(codes) - set1(static_cast<float>(f.offset));
  } else {
#if defined(OCTAVO_ISA_AVX2)
    return {look_up(kCodeTable<Number>.value, codes.a), look_up(kCodeTable<Number>.value, codes.b)};
#else
    uint32_t code[kLanes];
    float lane[kLanes];
    memcpy(code, &codes, sizeof code);
    for (int i = 0; i < kLanes; ++i) lane[i] = kCodeTable<Number>.value[code[i]];
    return load(lane);
#endif
  }
}

// What a value is multiplied by before its scale, so that it costs less to decode. A power of two: nothing is rounded.
// Kernels on integers (Int) multiply nothing.
template <int Number, bool Int = false> constexpr float value_unit() {
  if (Int) return 1.0f;
  if (format_of(Number).values == Values::e4m3) return 0x1p8f;
#if defined(OCTAVO_ISA_AVX512)
  if (format_of(Number).low_bits + format_of(Number).high_bits == 6) return 0x1p24f;
#endif
  if (format_of(Number).low_bits == 8) return 0x1p24f;
  return 1.0f;
}

#if defined(OCTAVO_ISA_AVX512)
// Byte Byte of each word, signed, times 2^24: moved to the front, the rest cleared.
template <int Byte> inline __m512 front_byte(__m512i bytes) {
  constexpr int kPick = static_cast<int>(static_cast<uint32_t>(Byte) << 24 | 0x808080u);
  const __m512i pick =
      _mm512_add_epi32(_mm512_set1_epi32(kPick), _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4 << 24, 8 << 24, 12 << 24)));
  return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, pick));
}
#endif

// The value, times value_unit, of byte Byte of each word.
template <int Number, int Byte> inline Vec16 value_of_byte(const Int16& codes) {
  constexpr Format f = format_of(Number);
  constexpr int kBits = f.low_bits + f.high_bits;
#if defined(OCTAVO_ISA_AVX512)
  if constexpr (kBits == 8) {
    return {front_byte<Byte>(codes.v)};
  } else if constexpr (kBits == 6) {
    const __m512i bits = _mm512_and_si512(codes.v, _mm512_set1_epi8(63));
    return {front_byte<Byte>(_mm512_sub_epi8(bits, _mm512_set1_epi8(static_cast<char>(f.offset))))};
  } else { // a permutation looks at the lowest 4 bits of an index, that of two registers at 5
    const __m512i index = shift_right<8 * Byte>(codes).v;
    const float* table = kCodeTable<Number>.value;
    if constexpr (kBits < 5)
      return {_mm512_permutexvar_ps(index, _mm512_load_ps(table))};
    else
      return {_mm512_permutex2var_ps(_mm512_load_ps(table), index, _mm512_load_ps(table + 16))};
  }
#else
  if constexpr (kBits == 8)
    return to_float(keep_bits(shift_right<8 * Byte - 24>(codes), 0xff000000u));
  else
    return float_of_codes<Number>(keep_bits(shift_right<8 * Byte>(codes), (1u << kBits) - 1));
#endif
}

template <int Number, int Row, int Byte> inline void read_nibble_pair(const uint8_t* low, Vec16* out) {
#if defined(OCTAVO_ISA_AVX512)
  // Loading at an odd address moves byte Byte of each lane to the front for nothing; the index's other bits are not
  // looked at. The last load ends 3 bytes past the plane, where the scales are.
  const __m512i words = _mm512_loadu_si512(low + Row * 64 + Byte);
  const __m512 table = _mm512_load_ps(kCodeTable<Number>.value);
  out[2 * Byte] = {_mm512_permutexvar_ps(words, table)};
  out[2 * Byte + 1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 4), table)};
#else
  const Int16 words = load_words(low + Row * 64);
  out[2 * Byte] = float_of_codes<Number>(keep_bits(shift_right<8 * Byte>(words), 15));
  out[2 * Byte + 1] = float_of_codes<Number>(keep_bits(shift_right<8 * Byte + 4>(words), 15));
#endif
}

template <int Number, int Byte> inline void read_byte_pair(const Int16& even, const Int16& odd, Vec16* out) {
  out[2 * Byte] = value_of_byte<Number, Byte>(even);
  out[2 * Byte + 1] = value_of_byte<Number, Byte>(odd);
}

// Floats of 8 bits, times 2^8: sign, exponent and fraction are moved to a float's place, and the exponent's highest bit
// set. A code whose exponent is 0 has no implicit one: 2 + fraction / 4 becomes fraction / 2. These are rare (the
// smallest 2^-15 of a scale's range), so that AVX-512 looks first whether eight inputs have any.
#if defined(OCTAVO_ISA_AVX512)
inline __m512i at_float(__m512i sign_and_size, int mask, int set) {
  return _mm512_ternarylogic_epi32(sign_and_size, _mm512_set1_epi32(mask), _mm512_set1_epi32(set), 0xea);
}

template <int Byte> inline Vec16 any_e4m3_of_byte(__m512i bytes) {
  constexpr int kPick = static_cast<int>(static_cast<uint32_t>(Byte) << 24 | 0x808080u);
  const __m512i pick =
      _mm512_add_epi32(_mm512_set1_epi32(kPick), _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4 << 24, 8 << 24, 12 << 24)));
  const __m512i front = _mm512_shuffle_epi8(bytes, pick);
  const __m512i value = at_float(_mm512_srai_epi32(front, 4), static_cast<int>(0x87f00000u), 0x40000000);
  const __m512i sign = _mm512_and_si512(front, _mm512_set1_epi32(INT32_MIN));
  const __m512i four = _mm512_xor_si512(sign, _mm512_castps_si512(_mm512_set1_ps(-4.0f)));
  const __mmask16 none = _mm512_testn_epi32_mask(front, _mm512_set1_epi32(0x78000000));
  return {_mm512_mask_fmadd_ps(_mm512_castsi512_ps(value), none, _mm512_set1_ps(2.0f), _mm512_castsi512_ps(four))};
}

template <int Byte> inline void read_any_e4m3(const Int16& even, const Int16& odd, Vec16 (&out)[8]) {
  out[2 * Byte] = any_e4m3_of_byte<Byte>(even.v);
  out[2 * Byte + 1] = any_e4m3_of_byte<Byte>(odd.v);
  if constexpr (Byte < 3) read_any_e4m3<Byte + 1>(even, odd, out);
}

// Two at a time: the values fit the upper halves of floats. out: the second of each four inputs apart
inline void read_four_e4m3(__m512i bytes, Vec16* out) {
  const __m512i high = _mm512_srai_epi16(bytes, 4), low = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 4);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i odd = at_float(high, static_cast<int>(0x87f087f0u), 0x40004000);
  const __m512i even = at_float(low, static_cast<int>(0x87f087f0u), 0x40004000);
  out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(even, 16))};
  out[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(odd, 16))};
  out[4] = {_mm512_castsi512_ps(_mm512_and_si512(even, upper))};
  out[6] = {_mm512_castsi512_ps(_mm512_and_si512(odd, upper))};
}

inline void read_eight_e4m3(const uint8_t* low, Vec16 (&out)[8]) {
  const Int16 even = load_words(low), odd = load_words(low + 64);
  const __m512i exponent = _mm512_set1_epi8(0x78);
  const __mmask64 none = _mm512_testn_epi8_mask(even.v, exponent) | _mm512_testn_epi8_mask(odd.v, exponent);
  if (__builtin_expect(none != 0, 0)) {
    read_any_e4m3<0>(even, odd, out);
  } else {
    read_four_e4m3(even.v, out);
    read_four_e4m3(odd.v, out + 1);
  }
}
#elif defined(OCTAVO_ISA_AVX2)
template <int Byte> inline __m256 e4m3_of_byte(__m256i words) {
  const __m256i front = _mm256_slli_epi32(words, 24 - 8 * Byte);
  const __m256i kept = _mm256_and_si256(_mm256_srai_epi32(front, 4), _mm256_set1_epi32(0x87f00000 - (1ll << 32)));
  const __m256 value = _mm256_castsi256_ps(_mm256_or_si256(kept, _mm256_set1_epi32(0x40000000)));
  const __m256i sign = _mm256_and_si256(front, _mm256_set1_epi32(INT32_MIN));
  const __m256 four = _mm256_castsi256_ps(_mm256_xor_si256(sign, _mm256_castps_si256(_mm256_set1_ps(-4.0f))));
  const __m256i exponent = _mm256_and_si256(front, _mm256_set1_epi32(0x78000000));
  const __m256i none = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  return _mm256_blendv_ps(value, _mm256_fmadd_ps(value, _mm256_set1_ps(2.0f), four), _mm256_castsi256_ps(none));
}

template <int Byte> inline void read_e4m3_pair(const Int16& even, const Int16& odd, Vec16 (&out)[8]) {
  out[2 * Byte] = {e4m3_of_byte<Byte>(even.a), e4m3_of_byte<Byte>(even.b)};
  out[2 * Byte + 1] = {e4m3_of_byte<Byte>(odd.a), e4m3_of_byte<Byte>(odd.b)};
}

inline void read_eight_e4m3(const uint8_t* low, Vec16 (&out)[8]) {
  const Int16 even = load_words(low), odd = load_words(low + 64);
  read_e4m3_pair<0>(even, odd, out);
  read_e4m3_pair<1>(even, odd, out);
  read_e4m3_pair<2>(even, odd, out);
  read_e4m3_pair<3>(even, odd, out);
}
#else
inline void read_eight_e4m3(const uint8_t* low, Vec16 (&out)[8]) {
  for (int k = 0; k < 8; ++k) {
    float lane[kLanes];
    for (int i = 0; i < kLanes; ++i) lane[i] = e4m3_times_256(low[(k % 2 * kLanes + i) * 4 + k / 2]);
    out[k] = load(lane);
  }
}
#endif

// out[k]: value, times value_unit, of input 8 Row + k of the unit whose planes are low and high.
template <int Number, int Row> inline void read_eight(const uint8_t* low, const uint8_t* high, Vec16 (&out)[8]) {
  constexpr Format f = format_of(Number);
  if constexpr (f.values == Values::e4m3) {
    read_eight_e4m3(low + Row * 128, out);
  } else if constexpr (f.low_bits == 8) {
    const Int16 even = load_words(low + Row * 128), odd = load_words(low + Row * 128 + 64);
    read_byte_pair<Number, 0>(even, odd, out);
    read_byte_pair<Number, 1>(even, odd, out);
    read_byte_pair<Number, 2>(even, odd, out);
    read_byte_pair<Number, 3>(even, odd, out);
  } else if constexpr (f.low_bits == 4 && f.high_bits == 0) {
    read_nibble_pair<Number, Row, 0>(low, out);
    read_nibble_pair<Number, Row, 1>(low, out);
    read_nibble_pair<Number, Row, 2>(low, out);
    read_nibble_pair<Number, Row, 3>(low, out);
  } else {
    const Int16 even = code_bytes<Number, Row, 0>(low, high);
    const Int16 odd = code_bytes<Number, Row, 1>(low, high);
    read_byte_pair<Number, 0>(even, odd, out);
    read_byte_pair<Number, 1>(even, odd, out);
    read_byte_pair<Number, 2>(even, odd, out);
    read_byte_pair<Number, 3>(even, odd, out);
  }
}

inline Vec16 load_halves(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// 2^(e - 128): E8M0 halved, because the values of MXFP4 are doubled.
inline Vec16 load_exponents(const uint8_t* p) {
  const Vec16 power = to_float(load_unsigned_bytes(p)) - set1(128.0f);
  return scale2(set1(1.0f), power);
}

// Of a span.
inline Vec16 load_span_scales(const uint8_t* panel, const PanelLayout& at, int64_t span) {
  const uint8_t* p = panel + at.scale;
  if (at.scale_type == OCTAVO_SCALE_F16) return load_halves(p + span * 2 * kLanes);
  if (at.scale_type == OCTAVO_SCALE_BF16) return load_bf16(reinterpret_cast<const uint16_t*>(p) + span * kLanes);
  const float* wide = reinterpret_cast<const float*>(p);
  return at.scale_type == OCTAVO_SCALE_F32 ? load(wide + span * kLanes) : set1(wide[span]);
}

// What the groups of a superblock share: d and, negated because GGUF's K-quants subtract their mins, dmin. Formats of
// one level have no use for it.
struct SuperScales {
  Vec16 d, min;
};

template <int Number, bool Int = false>
inline SuperScales super_scales(const uint8_t* panel, const PanelLayout& at, int64_t superblock) {
  constexpr Format f = format_of(Number);
  SuperScales shared{};
  if constexpr (f.two_level()) {
    shared.d = load_halves(panel + at.super_scale + superblock * 2 * kLanes);
    if constexpr (value_unit<Number, Int>() != 1.0f) shared.d = shared.d * set1(1.0f / value_unit<Number, Int>());
    if constexpr (f.mins) shared.min = zero() - load_halves(panel + at.super_min + superblock * 2 * kLanes);
  }
  return shared;
}

template <int Number, bool Int = false>
inline Vec16 group_scale(const uint8_t* panel, const PanelLayout& at, const SuperScales& shared, int64_t group) {
  constexpr Format f = format_of(Number);
  const uint8_t* bytes = panel + at.scale + group * kLanes;
  if constexpr (has_steps(Number)) {
    return load_span_scales(panel, at, 0) * to_float(load_unsigned_bytes(panel + at.min + group * 2 * kLanes));
  } else if constexpr (f.scale == Scale::span) {
    const Vec16 scale = load_span_scales(panel, at, group >> at.shift);
    return value_unit<Number, Int>() == 1.0f ? scale : scale * set1(1.0f / value_unit<Number, Int>());
  } else if constexpr (f.scale == Scale::half) {
    const Vec16 scale = load_halves(panel + at.scale + group * 2 * kLanes);
    return value_unit<Number, Int>() == 1.0f ? scale : scale * set1(1.0f / value_unit<Number, Int>());
  } else if constexpr (f.scale == Scale::exponent)
    return load_exponents(bytes);
  else if constexpr (f.scale == Scale::signed_bytes)
    return shared.d * to_float(load_signed_bytes(bytes));
  else if constexpr (f.scale == Scale::bytes)
    return shared.d * to_float(load_unsigned_bytes(bytes));
  else
    return shared.d * to_float(keep_bits(load_unsigned_bytes(bytes), 15));
}

// What is added to every value of a group.
template <int Number>
inline Vec16 group_min(const uint8_t* panel, const PanelLayout& at, const SuperScales& shared, int64_t group) {
  constexpr Format f = format_of(Number);
  if constexpr (has_steps(Number)) {
    const uint8_t* starts = panel + at.min + (group * 2 + 1) * kLanes;
    return load_span_scales(panel, at, 0) * to_float(load_signed_bytes(starts));
  } else if constexpr (f.scale == Scale::span) {
    const uint8_t* zeros = panel + at.min + (group >> at.shift) * kLanes;
    const Vec16 code = to_float(f.low_bits == 8 ? load_signed_bytes(zeros) : load_unsigned_bytes(zeros));
    return load_span_scales(panel, at, group >> at.shift) * (zero() - code);
  } else if constexpr (f.scale == Scale::half)
    return load_halves(panel + at.min + group * 2 * kLanes);
  else if constexpr (f.scale == Scale::nibbles)
    return shared.min * to_float(shift_right<4>(load_unsigned_bytes(panel + at.scale + group * kLanes)));
  else
    return shared.min * to_float(load_unsigned_bytes(panel + at.min + group * kLanes));
}

} // namespace octavo
