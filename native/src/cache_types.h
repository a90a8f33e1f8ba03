// How each cache type reads its elements, and how it writes a token. octavo/execution/torch/cache_types.py gives the
// meaning, and both compute the same bits.
//
// A read element times its scale is the number that was kept. Scales stay outside of the sums over elements, so reading
// is a conversion alone, and prompts, which convert a block once for many rows, get the same bits as single tokens.
// Codes of int8 and int4 are not even converted.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cache_layout.h"
#include "simd/hadamard.h"
#include "simd/math.h"
#include "simd/unzip.h"

namespace octavo {

// Members of a type: load16 and load32 read elements; load32 may give the 32 in another order, stored sums then have it
// too. at(row, d) is where element d of a value row starts, load_rest an element past the last full vector of a row.
struct Plain {
  static constexpr bool kPairs = false;   // of dimensions, in keys
  static constexpr bool kCoded = false;   // codes are multiplied as integers
  static constexpr bool kScaled = false;  // has scales
  static constexpr bool kGrouped = false; // has a scale for kScaleGroup elements, not for all of a head
  static constexpr bool kCold = true;     // is to be fetched from memory
  // Queries and weights are rounded to bf16, and of two products with neighbours the second is added first: as
  // VDPBF16PS does, so that it may multiply (bf16_choice.h).
  static constexpr bool kInPairs = false;
  static constexpr int kFetchEvery = 1;   // dimensions of keys that one fetch covers
  static constexpr int kFetchVectors = 2; // vectors of a value that one fetch covers
  static constexpr float kUnit = 1.0f;    // scales are kept divided by it
};

struct CacheF32 : Plain {
  using Type = float;
  static void load32(const float* p, Vec16& first, Vec16& second) {
    first = load(p);
    second = load(p + 16);
  }
  static Vec16 load16(const float* p) { return load(p); }
  static const float* at(const float* row, int64_t d) { return row + d; }
  static float load_rest(const float* p, int64_t i) { return p[i]; }
  static float from(float x) { return x; }
  static void store16(float* p, Vec16 v) { store(p, v); }
};

struct CacheF16 : Plain {
  using Type = uint16_t;
  static void load32(const uint16_t* p, Vec16& first, Vec16& second) {
    first = load_f16(p);
    second = load_f16(p + 16);
  }
  static Vec16 load16(const uint16_t* p) { return load_f16(p); }
  static const uint16_t* at(const uint16_t* row, int64_t d) { return row + d; }
  static float load_rest(const uint16_t* p, int64_t i) { return from_f16(p[i]); }
  static uint16_t from(float x) { return to_f16(x); }
  static void store16(uint16_t* p, Vec16 v) { store_f16(p, v); }
};

struct CacheBf16 : Plain {
  static constexpr bool kPairs = true;
  static constexpr bool kInPairs = true;
  static constexpr int kFetchEvery = 2;
  using Type = uint16_t;
  static void load32(const uint16_t* p, Vec16& even, Vec16& odd) { load_bf16_pairs(p, even, odd); }
  static Vec16 load16(const uint16_t* p) { return load_bf16(p); }
  static const uint16_t* at(const uint16_t* row, int64_t d) { return row + d; }
  static float load_rest(const uint16_t* p, int64_t i) { return from_bf16(p[i]); }
  static uint16_t from(float x) { return to_bf16(x); }
  static void store16(uint16_t* p, Vec16 v) { store_bf16(p, v); }
};

// The largest and the smallest of up to 256 numbers and 0; both NaN when one is not finite.
struct Extremes {
  float high, low;

  Extremes(const float* x, int64_t count) {
    Vec16 highest = zero();
    Vec16 lowest = zero();
    Vec16 nothing = zero();
    for (int64_t i = 0; i < count; i += 16) {
      const Vec16 values = load_up_to(x + i, count - i);
      highest = max(values, highest);
      lowest = max(zero() - values, lowest);
      nothing = fma(values, zero(), nothing);
    }
    const float none = sum(nothing); // 0, or NaN
    high = largest(highest) + none;
    low = none - largest(lowest);
  }
};

// codes[i] = make(x[i] / scale within -bound .. bound), rounded to a whole number first or not. A scale of 0 gives
// 0 / 1. Returns the scale, as it is kept; it is NaN when the numbers cannot be kept, and the codes are those of zeros
// then.
template <bool Whole, class F>
uint16_t divide(const float* x, int64_t count, float exact_scale, float bound, uint8_t* codes, F&& make) {
  const uint16_t kept = to_bf16(exact_scale);
  const float scale = from_bf16(kept);
  const bool finite = fabsf(scale) < INFINITY;
  const Vec16 divisor = set1(scale == 0.0f || !finite ? 1.0f : scale);
  float lanes[16];
  for (int64_t i = 0; i < count; i += 16) {
    const Vec16 values = finite ? load_up_to(x + i, count - i) : zero();
    const Vec16 quotient = min(max(values / divisor, set1(-bound)), set1(bound));
    store(lanes, Whole ? round_int(quotient) : quotient);
    if (count - i >= 16) {
      for (int k = 0; k < 16; ++k) codes[i + k] = make(lanes[k]);
    } else {
      for (int64_t k = 0; i + k < count; ++k) codes[i + k] = make(lanes[k]);
    }
  }
  return finite ? kept : static_cast<uint16_t>(0x7fc0u);
}

// Codes of bytes: OCP 8-bit floating point specification 1.0, table 1; round to nearest even.
// Both ways of rounding are computed, so that loops over it become vectors. Subnormals: the adder rounds to units of
// 2^-9 and 2^-16.
inline uint8_t to_e4m3(float x) { // |x| <= 448
  const uint32_t bits = bits_of(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f);
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
  return static_cast<uint8_t>(((bits >> 24) & 0x80u) | (magnitude < 0x3c800000u ? subnormal : normal));
}

// What is finite stays finite.
inline uint8_t to_e5m2(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t all = bits & 0x7fffffffu;
  const uint32_t magnitude = all < 0x47600000u ? all : 0x47600000u; // 57344
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p7f) - bits_of(0x1p7f);
  const uint32_t normal = (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - 0x38000000u) >> 21;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t other = all > 0x7f800000u ? 0x7fu : 0x7cu;
  return static_cast<uint8_t>(((bits >> 24) & 0x80u) | (all < 0x7f800000u ? finite : other));
}

// Types of one byte an element.
struct Bytes : Plain {
  static constexpr int kFetchEvery = 4;
  static constexpr int kFetchVectors = 4;
  using Type = uint8_t;
  static const uint8_t* at(const uint8_t* row, int64_t d) { return row + d; }
};

// Read as float16 with the exponent that is there, which is 2^8 too small.
struct CacheE4m3 : Bytes {
  static constexpr bool kScaled = true;
  static constexpr float kUnit = 256.0f;
  static void load32(const uint8_t* p, Vec16& first, Vec16& second) {
    first = load_e4m3(p);
    second = load_e4m3(p + 16);
  }
  static Vec16 load16(const uint8_t* p) { return load_e4m3(p); }
  static float load_rest(const uint8_t* p, int64_t i) {
    return from_f16(static_cast<uint16_t>((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7));
  }
  static uint16_t encode(const float* x, int64_t count, uint8_t* codes) {
    const Extremes found(x, count);
    const float most = found.high > -found.low ? found.high : -found.low;
    return divide<false>(x, count, most / 448.0f, 448.0f, codes, to_e4m3);
  }
};

// The upper byte of a float16.
struct CacheE5m2 : Bytes {
  static void load32(const uint8_t* p, Vec16& first, Vec16& second) {
    first = load_e5m2(p);
    second = load_e5m2(p + 16);
  }
  static Vec16 load16(const uint8_t* p) { return load_e5m2(p); }
  static float load_rest(const uint8_t* p, int64_t i) { return from_f16(static_cast<uint16_t>(p[i] << 8)); }
  static uint16_t encode(const float* x, int64_t count, uint8_t* codes) {
    for (int64_t i = 0; i < count; ++i) codes[i] = to_e5m2(x[i]);
    return 0;
  }
};

// Types whose codes are multiplied as integers (attention_coded.h). kRaised: what a code is above the number that
// it is for.
struct CacheInt8 : Bytes {
  static constexpr bool kCoded = true;
  static constexpr bool kScaled = true;
  static constexpr int kRaised = 128;
  static constexpr int64_t kPerByte = 1;
  static uint16_t encode(const float* x, int64_t count, uint8_t* codes) {
    const Extremes found(x, count);
    const float most = found.high > -found.low ? found.high : -found.low;
    return divide<true>(x, count, most / 127.0f, 127.0f, codes,
                        [](float y) { return static_cast<uint8_t>(static_cast<int>(y) + kRaised); });
  }
};

// The number farthest from 0 is -8 scales, whatever its sign.
struct CacheInt4 : Bytes {
  static constexpr bool kCoded = true;
  static constexpr bool kScaled = true;
  static constexpr bool kGrouped = true; // a scale for kScaleGroup elements, not for all of a head
  static constexpr int kRaised = 8;
  static constexpr int64_t kPerByte = 2;
  static uint16_t encode(const float* x, int64_t count, uint8_t* codes) {
    const Extremes found(x, count);
    const float farthest = found.high >= -found.low ? found.high : found.low;
    return divide<true>(x, count, farthest / -8.0f, 8.0f, codes, [](float y) {
      const int code = static_cast<int>(y) + kRaised;
      return static_cast<uint8_t>(code > 15 ? 15 : code);
    });
  }
};

// use(type) with the type that a number stands for.
template <class F> void with_cache_type(int32_t type, F&& use) {
  switch (type) {
  case OCTAVO_CACHE_F16: return use(CacheF16());
  case OCTAVO_CACHE_BF16: return use(CacheBf16());
  case OCTAVO_CACHE_INT8: return use(CacheInt8());
  case OCTAVO_CACHE_FP8_E4M3: return use(CacheE4m3());
  case OCTAVO_CACHE_FP8_E5M2: return use(CacheE5m2());
  case OCTAVO_CACHE_INT4: return use(CacheInt4());
  default: return use(CacheF32());
  }
}

// What was converted to float32 a moment ago: nothing is to be fetched. Scales are still those of the type.
template <class Format> struct Converted : CacheF32 {
  static constexpr bool kScaled = Format::kScaled;
  static constexpr bool kCold = false;
  static constexpr bool kInPairs = Format::kInPairs;
  static constexpr float kUnit = Format::kUnit;
};

// In place: x = H x, H the Hadamard matrix of Sylvester's order on each run of `size` elements, not normalized: H H =
// size. `size` is the largest power of two that divides the width.
inline int64_t rotation_size(int64_t width) { return width & -width; }
inline void rotate_in_steps(float* x, int64_t size) {
  for (int64_t half = 1; half < size; half *= 2) {
    for (int64_t run = 0; run < size; run += 2 * half) {
      for (int64_t i = run; i < run + half; ++i) {
        const float left = x[i];
        const float right = x[i + half];
        x[i] = left + right;
        x[i + half] = left - right;
      }
    }
  }
}

// The same butterflies in registers: each stage takes neighbours, and puts sums and differences into halves.
template <int Vectors> inline void rotate_neighbours(float* x) {
  Vec16 from[Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Vectors; ++i) from[i] = load(x + 16 * i);
#pragma GCC unroll 8
  for (int stage = 1; stage < 16 * Vectors; stage *= 2) {
    Vec16 to[Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Vectors / 2; ++i) {
      Vec16 left, right;
      unzip(from[2 * i], from[2 * i + 1], left, right);
      to[i] = left + right;
      to[i + Vectors / 2] = left - right;
    }
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; ++i) from[i] = to[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < Vectors; ++i) store(x + 16 * i, from[i]);
}

inline void rotate_by_hadamard(float* x, int64_t width) {
  const int64_t size = rotation_size(width);
  for (int64_t run = 0; run < width; run += size) {
    switch (size) {
    case 32: rotate_neighbours<2>(x + run); break;
    case 64: rotate_neighbours<4>(x + run); break;
    case 128: rotate_neighbours<8>(x + run); break;
    case 256: rotate_neighbours<16>(x + run); break;
    default: rotate_in_steps(x + run, size); break;
    }
  }
}

// The same for numbers that are not kept: butterflies in another order, so the last bits may differ.
inline void rotate_quickly(float* x, int64_t width, int64_t size) {
  for (int64_t run = 0; run < width; run += size) {
    switch (size) {
    case 32: rotate_run<2>(x + run); break;
    case 64: rotate_run<4>(x + run); break;
    case 128: rotate_run<8>(x + run); break;
    case 256: rotate_run<16>(x + run); break;
    default: rotate_in_steps(x + run, size); break;
    }
  }
}

} // namespace octavo
