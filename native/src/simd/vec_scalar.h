// Vec16 in plain C++: the portable build, and what the others are checked against.
#pragma once
#include <math.h>

#include "simd/convert.h"

namespace octavo {

constexpr int kTileRows = 1;
constexpr int kTileVectors = 2;

struct Vec16 {
  float lane[16];
};

template <class F> inline Vec16 each_lane(F&& f) {
  Vec16 v;
  for (int i = 0; i < 16; ++i) v.lane[i] = f(i);
  return v;
}

inline Vec16 set1(float x) {
  return each_lane([&](int) { return x; });
}
inline Vec16 zero() { return set1(0.0f); }
inline Vec16 load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec16& v) {
  for (int i = 0; i < 16; ++i) p[i] = v.lane[i];
}
inline Vec16 load_n(const float* p, int n) {
  return each_lane([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_n(float* p, const Vec16& v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}

inline Vec16 load_f16(const uint16_t* p) {
  return each_lane([&](int i) { return from_f16(p[i]); });
}
inline Vec16 load_bf16(const uint16_t* p) {
  return each_lane([&](int i) { return from_bf16(p[i]); });
}
inline void load_bf16_pairs(const uint16_t* p, Vec16& even, Vec16& odd) {
  even = each_lane([&](int i) { return from_bf16(p[2 * i]); });
  odd = each_lane([&](int i) { return from_bf16(p[2 * i + 1]); });
}
inline void zip(const Vec16& even, const Vec16& odd, Vec16& low, Vec16& high) {
  const auto at = [&](int i) { return i % 2 == 0 ? even.lane[i / 2] : odd.lane[i / 2]; };
  low = each_lane([&](int i) { return at(i); });
  high = each_lane([&](int i) { return at(i + 16); });
}
inline Vec16 load_e4m3(const uint8_t* p) {
  return each_lane([&](int i) { return from_f16(static_cast<uint16_t>((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7)); });
}
inline Vec16 load_e5m2(const uint8_t* p) {
  return each_lane([&](int i) { return from_f16(static_cast<uint16_t>(p[i] << 8)); });
}
inline void store_f16(uint16_t* p, const Vec16& v) {
  for (int i = 0; i < 16; ++i) p[i] = to_f16(v.lane[i]);
}
inline void store_bf16(uint16_t* p, const Vec16& v) {
  for (int i = 0; i < 16; ++i) p[i] = to_bf16(v.lane[i]);
}

inline Vec16 operator+(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec16 operator-(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vec16 operator*(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec16 operator/(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vec16 fma(const Vec16& a, const Vec16& b, const Vec16& c) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Vec16 max(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec16 min(const Vec16& a, const Vec16& b) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec16 sqrt(const Vec16& a) {
  return each_lane([&](int i) { return ::sqrtf(a.lane[i]); });
}
inline Vec16 round_int(const Vec16& a) {
  return each_lane([&](int i) { return ::nearbyintf(a.lane[i]); });
}
inline Vec16 round_int(const Vec16& a, Vec16& rest) {
  const Vec16 whole = round_int(a);
  rest = a - whole;
  return whole;
}

inline Vec16 select_less(const Vec16& a, const Vec16& b, const Vec16& x, const Vec16& y) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
}
inline Vec16 keep_range(const Vec16& v, int first, int last, float fill) {
  return each_lane([&](int i) { return i >= first && i < last ? v.lane[i] : fill; });
}
// In two factors, so that results may be subnormal or overflow to infinity. A NaN's n is not looked at.
inline Vec16 scale2(const Vec16& v, const Vec16& n) {
  return each_lane([&](int i) {
    const int whole = n.lane[i] == n.lane[i] ? static_cast<int>(n.lane[i]) : 0;
    const int half = whole >> 1;
    const float first = float_of(static_cast<uint32_t>(half + 127) << 23);
    const float second = float_of(static_cast<uint32_t>(whole - half + 127) << 23);
    return v.lane[i] * first * second;
  });
}
inline uint32_t any_greater(const Vec16& a, const Vec16& b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
  return bits;
}

template <class F> inline float fold(Vec16 v, F&& f) {
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) v.lane[i] = f(v.lane[i], v.lane[i + apart]);
  }
  return v.lane[0];
}
inline float sum(const Vec16& v) {
  return fold(v, [](float a, float b) { return a + b; });
}
inline float largest(const Vec16& v) {
  return fold(v, [](float a, float b) { return a > b ? a : b; });
}

inline uint64_t sum_bytes64(const uint8_t* p) {
  constexpr uint64_t kEven = 0x00ff00ff00ff00ffu;
  uint64_t pairs = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t word;
    memcpy(&word, p + 8 * i, 8);
    pairs += (word & kEven) + ((word >> 8) & kEven);
  }
  return (pairs * 0x0001000100010001u) >> 48;
}

} // namespace octavo
