// Products of signed bytes that have one scale a row of weights with inputs that have one scale a row.
//
// out = input scale * (weight scale * float(sum)), then + bias, then + residual. The sum of code * code over the whole
// depth is exact in 32 bits, so it has no order: every build, tile and number of threads gives the same bits.
#pragma once
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

struct RowTile {
  const uint8_t* codes; // [units][8][64] of a panel: the second panel_stride behind the first, the next two pair_stride
  int64_t panel_stride, pair_stride;
  const int32_t* starts; // [panels][16]
  const uint8_t* inputs; // of a run of a row; rows kCodeRun apart, runs run_stride
  int64_t run_stride;
  int64_t units;
  const uint8_t *ahead, *ahead_end; // what this thread reads next
  int64_t ahead_lines;              // of it, fetched a unit
  const float* results;             // where the rows' results will be written, result_stride apart
  int64_t result_stride;
  int result_panels; // that will be written there

  const uint8_t* panel(int p) const { return codes + p / 2 * pair_stride + p % 2 * panel_stride; }
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
