// Codes of a packed panel as floats: eight inputs of sixteen lanes at a time, and the scales of a group.
#pragma once
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "simd/vec.h"

namespace octavo {

// Sixteen 32-bit integers: only what decoding needs.
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
inline Int16 operator|(Int16 a, Int16 b) { return {_mm512_or_si512(a.v, b.v)}; }
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
inline Int16 operator|(Int16 x, Int16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline Vec16 to_float(Int16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
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
inline Int16 operator|(const Int16& a, const Int16& b) {
  return each_word([&](int i) { return a.lane[i] | b.lane[i]; });
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

template <int Number> constexpr float value_of(int code) {
  constexpr Format f = format_of(Number);
  if (f.values == Values::iq4_nl) return kIq4Nl[code & 15];
  if (f.values == Values::mxfp4) return kMxfp4[code & 15];
  return static_cast<float>(code - f.offset);
}

template <int Number> struct CodeTable {
  alignas(64) float value[32];
  constexpr CodeTable() : value() {
    for (int code = 0; code < 32; ++code) value[code] = value_of<Number>(code);
  }
};
template <int Number> constexpr CodeTable<Number> kCodeTable{};

// Four inputs a lane, one a byte: those at 8 Row + 2 byte + Parity of a unit.
template <int Number, int Row, int Parity> inline Int16 code_bytes(const uint8_t* low, const uint8_t* high) {
  constexpr Format f = format_of(Number);
  constexpr uint32_t kEach = 0x01010101u;
  constexpr int kPair = 2 * (2 * (Row % 2) + Parity);
  Int16 codes = f.low_bits == 4 ? keep_bits(shift_right<4 * Parity>(load_words(low + Row * 64)), 15 * kEach)
                                : keep_bits(shift_right<kPair>(load_words(low + Row / 2 * 64)), 3 * kEach);
  if constexpr (f.high_bits == 2) {
    const Int16 bits = shift_right<kPair - f.low_bits>(load_words(high + Row / 2 * 64));
    codes = codes | keep_bits(bits, (3u << f.low_bits) * kEach);
  } else if constexpr (f.high_bits == 1) {
    const Int16 bits = shift_right<2 * Row + Parity - f.low_bits>(load_words(high));
    codes = codes | keep_bits(bits, (1u << f.low_bits) * kEach);
  }
  return codes;
}

template <int Number> inline Vec16 float_of_codes(const Int16& codes) {
  constexpr Format f = format_of(Number);
  if constexpr (f.values == Values::integers) {
    if constexpr (f.offset == 0) return to_float(codes);
    else return to_float(codes) - set1(static_cast<float>(f.offset));
  } else {
    uint32_t code[kLanes];
    float lane[kLanes];
    memcpy(code, &codes, sizeof code);
    for (int i = 0; i < kLanes; ++i) lane[i] = kCodeTable<Number>.value[code[i]];
    return load(lane);
  }
}

// The value of byte Byte of each word, which is a code of at most 6 bits.
template <int Number, int Byte> inline Vec16 value_of_byte(const Int16& codes) {
#if defined(OCTAVO_ISA_AVX512)
  constexpr Format f = format_of(Number);
  if constexpr (f.low_bits + f.high_bits <= 4) {  // the permutation looks at 4 bits of an index
    return {_mm512_permutexvar_ps(shift_right<8 * Byte>(codes).v, _mm512_load_ps(kCodeTable<Number>.value))};
  } else if constexpr (f.low_bits + f.high_bits == 5) {
    return {_mm512_permutex2var_ps(_mm512_load_ps(kCodeTable<Number>.value), shift_right<8 * Byte>(codes).v,
                                   _mm512_load_ps(kCodeTable<Number>.value + 16))};
  } else {
    return float_of_codes<Number>(keep_bits(shift_right<8 * Byte>(codes), 255));
  }
#else
  return float_of_codes<Number>(keep_bits(shift_right<8 * Byte>(codes), 255));
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

// out[k]: values, without scale, of input 8 Row + k of the unit whose planes are low and high.
template <int Number, int Row> inline void read_eight(const uint8_t* low, const uint8_t* high, Vec16 (&out)[8]) {
  constexpr Format f = format_of(Number);
  if constexpr (f.low_bits == 8) {
    for (int k = 0; k < 8; ++k) out[k] = to_float(load_signed_bytes(low + (8 * Row + k) * kLanes));
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

template <int Number> inline Vec16 group_scale(const uint8_t* panel, const PanelLayout& at, int64_t group) {
  constexpr Format f = format_of(Number);
  if constexpr (f.scale == Scale::half) return load_halves(panel + at.scale + group * 2 * kLanes);
  else if constexpr (f.scale == Scale::exponent) return load_exponents(panel + at.scale + group * kLanes);
  else {
    const uint8_t* bytes = panel + at.scale + group * kLanes;
    const Vec16 d = load_halves(panel + at.super_scale + group / (kSuperblock / f.group) * 2 * kLanes);
    if constexpr (f.scale == Scale::signed_bytes) return d * to_float(load_signed_bytes(bytes));
    else if constexpr (f.scale == Scale::bytes) return d * to_float(load_unsigned_bytes(bytes));
    else return d * to_float(keep_bits(load_unsigned_bytes(bytes), 15));
  }
}

// What is added to every value of a group: GGUF's K-quants subtract their min, the older formats add it.
template <int Number> inline Vec16 group_min(const uint8_t* panel, const PanelLayout& at, int64_t group) {
  constexpr Format f = format_of(Number);
  if constexpr (f.scale == Scale::half) return load_halves(panel + at.min + group * 2 * kLanes);
  else {
    const Vec16 d = load_halves(panel + at.super_min + group / (kSuperblock / f.group) * 2 * kLanes);
    const Int16 bytes = f.scale == Scale::nibbles
                            ? shift_right<4>(load_unsigned_bytes(panel + at.scale + group * kLanes))
                            : load_unsigned_bytes(panel + at.min + group * kLanes);
    return zero() - d * to_float(bytes);
  }
}

}  // namespace octavo
