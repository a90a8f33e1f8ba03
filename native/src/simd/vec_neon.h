// Vec16 on NEON (AArch64): four registers.
#pragma once
#include <arm_neon.h>

#include "simd/convert.h"

namespace octavo {

constexpr int kTileRows = 2;
constexpr int kTileVectors = 2;

struct Vec16 {
  float32x4_t q[4];
};

template <class F> inline Vec16 each_quarter(F&& f) { return {{f(0), f(1), f(2), f(3)}}; }

inline Vec16 set1(float x) {
  return each_quarter([&](int) { return vdupq_n_f32(x); });
}
inline Vec16 zero() { return set1(0.0f); }
inline Vec16 load(const float* p) {
  return each_quarter([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, Vec16 v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.q[i]);
}
inline Vec16 load_n(const float* p, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_n(float* p, Vec16 v, int n) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline Vec16 load_f16(const uint16_t* p) {
  return each_quarter([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Vec16 load_bf16(const uint16_t* p) {
  return each_quarter([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline void load_bf16_pairs(const uint16_t* p, Vec16& even, Vec16& odd) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    even.q[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    odd.q[i] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
  }
}
inline void zip(Vec16 even, Vec16 odd, Vec16& low, Vec16& high) {
  for (int i = 0; i < 4; ++i) {
    Vec16& half = i < 2 ? low : high;
    half.q[i % 2 * 2] = vzip1q_f32(even.q[i], odd.q[i]);
    half.q[i % 2 * 2 + 1] = vzip2q_f32(even.q[i], odd.q[i]);
  }
}
inline Vec16 widen_f16(uint16x8_t low, uint16x8_t high) {
  const float16x8_t first = vreinterpretq_f16_u16(low);
  const float16x8_t second = vreinterpretq_f16_u16(high);
  return {{vcvt_f32_f16(vget_low_f16(first)), vcvt_f32_f16(vget_high_f16(first)), vcvt_f32_f16(vget_low_f16(second)),
           vcvt_f32_f16(vget_high_f16(second))}};
}
inline uint16x8_t widen_e4m3(int8x8_t bytes) {
  return vandq_u16(vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(bytes)), 7), vdupq_n_u16(0xbfff));
}
inline Vec16 load_e4m3(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  return widen_f16(widen_e4m3(vget_low_s8(bytes)), widen_e4m3(vget_high_s8(bytes)));
}
inline Vec16 load_e5m2(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  return widen_f16(vshll_n_u8(vget_low_u8(bytes), 8), vshll_n_u8(vget_high_u8(bytes), 8));
}
inline void store_f16(uint16_t* p, Vec16 v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.q[i])));
}
inline void store_bf16(uint16_t* p, Vec16 v) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v.q[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t number = vceqq_f32(v.q[i], v.q[i]);
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
  }
}

inline Vec16 operator+(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vaddq_f32(a.q[i], b.q[i]); });
}
inline Vec16 operator-(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vsubq_f32(a.q[i], b.q[i]); });
}
inline Vec16 operator*(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vmulq_f32(a.q[i], b.q[i]); });
}
inline Vec16 operator/(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vdivq_f32(a.q[i], b.q[i]); });
}
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
  return each_quarter([&](int i) { return vfmaq_f32(c.q[i], a.q[i], b.q[i]); });
}
inline Vec16 max(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vmaxq_f32(a.q[i], b.q[i]); });
}
inline Vec16 min(Vec16 a, Vec16 b) {
  return each_quarter([&](int i) { return vminq_f32(a.q[i], b.q[i]); });
}
inline Vec16 sqrt(Vec16 a) {
  return each_quarter([&](int i) { return vsqrtq_f32(a.q[i]); });
}
inline Vec16 round_int(Vec16 a) {
  return each_quarter([&](int i) { return vrndnq_f32(a.q[i]); });
}
inline Vec16 round_int(Vec16 a, Vec16& rest) {
  const Vec16 whole = round_int(a);
  rest = a - whole;
  return whole;
}

inline Vec16 select_less(Vec16 a, Vec16 b, Vec16 x, Vec16 y) {
  return each_quarter([&](int i) { return vbslq_f32(vcltq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]); });
}
inline Vec16 keep_range(Vec16 v, int first, int last, float fill) {
  const int32_t numbers[4] = {0, 1, 2, 3};
  const int32x4_t start = vld1q_s32(numbers);
  return each_quarter([&](int i) {
    const int32x4_t lane = vaddq_s32(start, vdupq_n_s32(4 * i));
    const uint32x4_t keep = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
    return vbslq_f32(keep, v.q[i], vdupq_n_f32(fill));
  });
}
// In two factors, so that results may be subnormal or overflow to infinity.
inline Vec16 scale2(Vec16 v, Vec16 n) {
  return each_quarter([&](int i) {
    const int32x4_t whole = vcvtnq_s32_f32(n.q[i]);
    const int32x4_t half = vshrq_n_s32(whole, 1);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
    return vmulq_f32(vmulq_f32(v.q[i], vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
  });
}
inline uint32_t any_greater(Vec16 a, Vec16 b) {
  const uint32_t numbers[4] = {1, 2, 4, 8};
  const uint32x4_t bit = vld1q_u32(numbers);
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= vaddvq_u32(vandq_u32(vcgtq_f32(a.q[i], b.q[i]), bit)) << (4 * i);
  return bits;
}

inline float sum(Vec16 v) {
  const float32x4_t four = vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(Vec16 v) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.q[0], v.q[2]), vmaxq_f32(v.q[1], v.q[3]))); }

inline uint64_t sum_bytes64(const uint8_t* p) {
  uint64_t total = 0;
  for (int i = 0; i < 4; ++i) total += vaddlvq_u8(vld1q_u8(p + 16 * i));
  return total;
}

} // namespace octavo
