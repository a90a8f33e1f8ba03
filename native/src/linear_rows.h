// Products of signed bytes that have one scale a row of weights with inputs that have one scale a row.
//
// out = input scale * (weight scale * float(sum)), then + bias, then + residual. The sum of code * code over the whole
// depth is exact in 32 bits, so it has no order: every build, tile and number of threads gives the same bits.
#pragma once
#include <type_traits>

#include "linear_codes.h"
#include "linear_dot.h"
#include "linear_kernels.h"

namespace octavo {

// Instructions that multiply unsigned bytes with signed ones take inputs raised by 128, and weights as panels have them.
// Sums then start from -128 * the sum of a row's codes.
#if defined(OCTAVO_ISA_AVX512) || defined(__AVXVNNI__)
constexpr int kRowRaise = 128;
#else
constexpr int kRowRaise = 0;
#endif

// Adds the products of four inputs a lane. codes: of weights. inputs: raised by kRowRaise.
inline Int16 add_four(const Int16& sum, const Int16& codes, int32_t inputs) {
#if defined(OCTAVO_ISA_AVX512)
  return dot_raised(sum, set_words(inputs), codes);
#elif defined(__AVXVNNI__)
  const __m256i four = _mm256_set1_epi32(inputs);
  return {_mm256_dpbusd_avx_epi32(sum.a, four, codes.a), _mm256_dpbusd_avx_epi32(sum.b, four, codes.b)};
#else
  return dot<true>(sum, codes, inputs);
#endif
}

// What the sums of a panel start from.
inline Int16 row_start(const uint8_t* panel, const PanelLayout& at) {
  int32_t start[kLanes] = {};
  if (kRowRaise != 0) {
    memcpy(start, panel + at.sums, sizeof start);
    for (int32_t& lane : start) lane *= -kRowRaise;
  }
  return load_words(reinterpret_cast<const uint8_t*>(start));
}

// What makes bytes of a unit's codes of 4 bits: code * step + start.
#if defined(OCTAVO_ISA_NEON)
struct Steps {
  Int16 step, start; // a byte of each lane, four times
};
inline Steps load_steps(const uint8_t* p) {
  const uint8x16_t steps = vld1q_u8(p), starts = vld1q_u8(p + kLanes);
  const auto spread = [](uint8x16_t bytes, int i) {
    const uint8x16_t lane = vreinterpretq_u8_u32(vmulq_n_u32(vmovl_u16(vcreate_u16(0x0003000200010000u)), 0x01010101u));
    return vreinterpretq_u32_u8(vqtbl1q_u8(bytes, vaddq_u8(lane, vdupq_n_u8(static_cast<uint8_t>(4 * i)))));
  };
  return {each_four([&](int i) { return spread(steps, i); }), each_four([&](int i) { return spread(starts, i); })};
}
inline Int16 apply(const Steps& steps, const Int16& codes) {
  return each_four([&](int i) {
    return vreinterpretq_u32_u8(vmlaq_u8(vreinterpretq_u8_u32(steps.start.q[i]), vreinterpretq_u8_u32(codes.q[i]),
                                         vreinterpretq_u8_u32(steps.step.q[i])));
  });
}
#else
// A product with a step, below 256 for every code, stays in its byte: two at once are one of 16 bits.
#if defined(OCTAVO_ISA_AVX512)
struct Steps {
  __m512i step, start; // a step a half of each lane, a start a byte
};
inline __m512i spread_bytes(const uint8_t* p, __m128i first) {
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 0x04040404, 0x04040404, 0x04040404, 0x04040404, 0x08080808,
                                          0x08080808, 0x08080808, 0x08080808, 0x0c0c0c0c, 0x0c0c0c0c, 0x0c0c0c0c,
                                          0x0c0c0c0c);
  return _mm512_shuffle_epi8(bytes, _mm512_or_si512(_mm512_broadcast_i32x4(first), lanes));
}
inline Steps load_steps(const uint8_t* p) {
  const __m128i half = _mm_setr_epi8(0, -128, 0, -128, 1, -128, 1, -128, 2, -128, 2, -128, 3, -128, 3, -128);
  const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return {spread_bytes(p, half), spread_bytes(p + kLanes, byte)};
}
inline Int16 apply(const Steps& steps, Int16 codes) {
  return {_mm512_add_epi8(_mm512_mullo_epi16(codes.v, steps.step), steps.start)};
}
#elif defined(OCTAVO_ISA_AVX2)
struct Steps {
  Int16 step, start;
};
inline __m256i spread_half(__m128i bytes, __m128i low, int more) {
  const __m128i high = _mm_add_epi8(low, _mm_set1_epi8(4));
  const __m256i order = _mm256_add_epi8(_mm256_set_m128i(high, low), _mm256_set1_epi8(static_cast<char>(more)));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
}
inline Steps load_steps(const uint8_t* p) {
  const __m128i half = _mm_setr_epi8(0, -128, 0, -128, 1, -128, 1, -128, 2, -128, 2, -128, 3, -128, 3, -128);
  const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m128i steps = load_bytes(p), starts = load_bytes(p + kLanes);
  return {{spread_half(steps, half, 0), spread_half(steps, half, 8)},
          {spread_half(starts, byte, 0), spread_half(starts, byte, 8)}};
}
inline Int16 apply(const Steps& steps, Int16 codes) {
  return {_mm256_add_epi8(_mm256_mullo_epi16(codes.a, steps.step.a), steps.start.a),
          _mm256_add_epi8(_mm256_mullo_epi16(codes.b, steps.step.b), steps.start.b)};
}
#else
struct Steps {
  uint8_t step[kLanes], start[kLanes];
};
inline Steps load_steps(const uint8_t* p) {
  Steps steps;
  memcpy(&steps, p, sizeof steps);
  return steps;
}
inline Int16 apply(const Steps& steps, const Int16& codes) {
  return each_word([&](int i) {
    uint32_t word = 0;
    for (int shift = 0; shift < 32; shift += 8)
      word |= (((codes.lane[i] >> shift & 255) * steps.step[i] + steps.start[i]) & 255) << shift;
    return word;
  });
}
#endif
#endif

struct NoSteps {};
template <bool Stepped> using StepsOf = typename std::conditional<Stepped, Steps, NoSteps>::type;

// Two words of a lane's bytes: eight inputs of a unit from 8 row on.
template <bool Stepped>
inline void eight_bytes(const uint8_t* codes, const StepsOf<Stepped>& steps, int row, Int16 (&out)[2]) {
  if constexpr (Stepped) {
    const Int16 nibbles = load_once(codes + row * 64);
    out[0] = apply(steps, keep_bits(nibbles, 0x0f0f0f0fu));
    out[1] = apply(steps, keep_bits(shift_right<4>(nibbles), 0x0f0f0f0fu));
  } else {
    out[0] = load_once(codes + row * 128);
    out[1] = load_once(codes + row * 128 + 64);
  }
}

template <bool Stepped> inline StepsOf<Stepped> steps_of(const uint8_t* panel, const PanelLayout& at, int64_t unit) {
  if constexpr (Stepped)
    return load_steps(panel + at.min + unit * 2 * kLanes);
  else
    return {};
}

struct RowTile {
  const uint8_t* codes; // [units][8][64] of a panel: the second panel_stride behind the first, the next two pair_stride
  int64_t panel_stride, pair_stride;
  const int32_t* starts; // [panels][16]
  const uint8_t* inputs; // of a run of a row; rows kCodeRun apart, runs run_stride
  int64_t run_stride;
  int64_t units;
  const uint8_t *ahead, *ahead_end; // what this thread reads next
  int64_t ahead_lines;              // of it, fetched a unit
  // Where codes are read once, from memory:
  bool once;
  const uint8_t* steps; // of the first panel, [units][2][16], or null
  const uint8_t* next;  // the first of the panels after these, or null; codes on the way there are fetched
  int64_t next_panel_stride, next_pair_stride;
  const float* results;             // where the rows' results will be written, result_stride apart
  int64_t result_stride;
  int result_panels; // that will be written there

  int64_t panel_at(int p) const { return p / 2 * pair_stride + p % 2 * panel_stride; }
  const uint8_t* panel(int p) const { return codes + panel_at(p); }
  const uint8_t* next_panel(int p) const { return next + p / 2 * next_pair_stride + p % 2 * next_panel_stride; }
};

// By name, for compilers that are not told of the instruction would fetch for reading; whatever has AVX-512 has it.
OCTAVO_INLINE void fetch_for_writing(const float* line) {
#if defined(OCTAVO_ISA_AVX512)
  asm volatile("prefetchw %0" ::"m"(*line));
#else
  __builtin_prefetch(line, 1, 2);
#endif
}

inline Vec16 close_row(const Int16& sum, const Vec16& weight_scale, float input_scale) {
  return set1(input_scale) * (weight_scale * to_float(sum));
}

} // namespace octavo
