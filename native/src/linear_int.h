// The kernels of block formats with coded inputs, as templates; linear_byte_*.cpp and linear_word_*.cpp make them.
//
// The sum of one output, the same in both kernels: in a group the exact integer sum of code * code, then part =
// fma(scale, float of it, part) and with mins part = fma(min, sum of input codes, part); after each span of inputs
// total = fma(the inputs' scale, part, total), and part = 0.
#pragma once
#include <string.h>

#if defined(OCTAVO_ISA_AVX512)
#include "linear_byte_strip.h"
#endif
#include "linear_int_few.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"
#if defined(OCTAVO_VARIANT_NEON_I8MM)
#include "code_pairs.h"
#endif

namespace octavo {

// Bytes of codes of a unit of one panel, written out.
#if defined(OCTAVO_VARIANT_NEON_I8MM)
constexpr int written_bytes(Coding) { return kUnit * kLanes; }

template <int Number, Coding C, int Row>
inline void write_eight_codes(const uint8_t* low, const uint8_t* high, uint8_t* out) {
  Int16 codes[2];
  eight_codes<Number, Coding::bytes, Row>(low, high, codes);
  store_code_pairs(out + Row * 8 * kLanes, codes[0], codes[1]);
}
#else
constexpr int written_bytes(Coding coding) { return kUnit * kLanes * code_bytes_of(coding); }

template <int Number, Coding C, int Row>
inline void write_eight_codes(const uint8_t* low, const uint8_t* high, uint8_t* out) {
  constexpr int kWords = words_of_eight(C);
  Int16 codes[kWords];
  eight_codes<Number, C, Row>(low, high, codes);
#pragma GCC unroll 4
  for (int k = 0; k < kWords; ++k) store_written<C>(out + (Row * kWords + k) * 64, codes[k]);
}
#endif

// Codes [words of a unit][64], scales and mins [groups][16] of one unit of one panel.
template <int Number, Coding C>
void write_unit_codes(const uint8_t* panel, const PanelLayout& at, int64_t unit, uint8_t* codes, float* scales,
                      float* mins, int group_stride) {
  using Is = IntFormat<Number, C>;
  const uint8_t *low = panel + unit * 64 * Is::f.low_bits, *high = panel + at.high + unit * 64 * Is::f.high_bits;
  write_eight_codes<Number, C, 0>(low, high, codes);
  write_eight_codes<Number, C, 1>(low, high, codes);
  write_eight_codes<Number, C, 2>(low, high, codes);
  write_eight_codes<Number, C, 3>(low, high, codes);
  const SuperScales shared = super_scales<Number, true>(panel, at, unit / (kSuperblock / kUnit));
  for (int g = 0; g < Is::kGroups; ++g) {
    const int64_t group = unit * Is::kGroups + g;
    store(scales + g * group_stride, group_scale<Number, true>(panel, at, shared, group));
    if constexpr (Is::f.mins) store(mins + g * group_stride, group_min<Number>(panel, at, shared, group));
  }
}

// What follows the units before `next` in this strip, or in the next one.
template <int Number> Ahead ahead_of(const Strip& strip, int panels, int64_t next, int64_t units, int run, int spots) {
  constexpr int kLow = format_of(Number).low_bits; // a unit's lines
  Ahead ahead;
  ahead.first = next >= units ? strip.next : strip.cold ? strip.panels + next * 64 * kLow : nullptr;
  if (!ahead.first) return ahead;
  ahead.stride = strip.layout.bytes;
  while ((1 << ahead.lines) < run * kLow) ++ahead.lines;
  ahead.most = panels << ahead.lines;
  ahead.each = (ahead.most + spots - 1) / spots;
  return ahead;
}

// The same of the planes behind the first: scales and what else belongs to these units.
inline void fetch_planes(const uint8_t* panels, const PanelLayout& at, int count, int64_t first, int64_t last,
                         int64_t units) {
  const int64_t plane[] = {at.high, at.super_scale, at.super_min, at.scale, at.min, at.bytes};
  for (int i = 0; i < 5; ++i) {
    const int64_t size = plane[i + 1] - plane[i];
    if (size == 0) continue;
    for (int p = 0; p < count; ++p) {
      const uint8_t* from = panels + p * at.bytes + plane[i];
      for (int64_t byte = size * first / units; byte < size * last / units; byte += 64)
        __builtin_prefetch(from + byte, 0, 2);
    }
  }
}

template <int Number, Coding C>
void many_int_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                   float* scratch) {
  using Is = IntFormat<Number, C>;
  constexpr int kRun = kScratchUnits;
  uint8_t* codes = reinterpret_cast<uint8_t*>(scratch); // [unit][panel][words][64]
  float* scales = scratch + kMostPanels * kScratchUnits * kUnit * kLanes / 2;
  float* mins = scales + kScratchUnits * 2 * kMostPanels * kLanes;
  const int64_t units = in.cols / kUnit;
  const int tiles = (rows + int_tile_rows(C, panels) - 1) / int_tile_rows(C, panels);
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t first = 0; first < units; first += kRun) {
    const int count = static_cast<int>(units - first < kRun ? units - first : kRun);
    for (int p = 0; p < panels; ++p)
      for (int u = 0; u < count; ++u) {
        const int at = (u * Is::kGroups * panels + p) * kLanes;
        write_unit_codes<Number, C>(strip.panels + p * strip.layout.bytes, strip.layout, first + u,
                                    codes + (u * panels + p) * written_bytes(C), scales + at, mins + at,
                                    panels * kLanes);
      }
    const IntInputs<Number, C> from(in, row, first);
    const Ahead ahead = ahead_of<Number>(strip, panels, first + kRun, units, kRun, tiles * count);
    if (ahead.first) {
      const int64_t start = first + kRun < units ? first + kRun : 0, end = start + kRun < units ? start + kRun : units;
      fetch_planes(start > 0 ? strip.panels : strip.next, strip.layout, panels, start, end, units);
    }
    const IntTile tile{codes,           count, from.codes,  in.layout.rows,
                       scales,          mins,  from.scales, from.sums,
                       from.starts,     total, ahead,       first + kRun >= units ? strip.out : nullptr,
                       strip.out_stride};
    run_int_tile<C, Is::f.group, Is::f.mins, Is::kOffset != 0, Is::kSigned>(tile, rows, panels);
  }
}

#if defined(OCTAVO_ISA_AVX512)
// Whether one row has a kernel of its own. Of 3 bits taking codes apart is most of the work: bytes gain nothing.
constexpr bool is_fine(int32_t number, Coding coding) {
  return number == OCTAVO_Q2_K || (number == OCTAVO_Q3_K && coding == Coding::words);
}

// See linear_int_fine.h.
template <int Number, Coding C, int Panels>
void fine_int_row(const Strip& strip, const LinearInputs& in, int64_t row, float* out);
#endif

template <int Number, Coding C, int Rows, int Panels> constexpr FewRows few_rows_of() {
#if defined(OCTAVO_ISA_AVX512)
  if constexpr (is_fine(Number, C) && Rows == 1) return fine_int_row<Number, C, Panels>;
#endif
  return few_int_rows<Number, C, Rows, Panels>;
}

template <int Number, Coding C> struct IntBlocks {
  static constexpr int kMost = kFewCodedRows;
  template <int Rows, int Panels> static constexpr FewRows kFew = few_rows_of<Number, C, Rows, Panels>();
  static constexpr ManyRows many() {
    if constexpr (kBytesInStrips && C == Coding::bytes)
      return nullptr;
    else
      return many_int_rows<Number, C>;
  }
  static constexpr ManyRows kMany = many();
};

template <int Number> LinearKernel byte_kernel_of() {
  LinearKernel kernel = kernel_of<IntBlocks<Number, Coding::bytes>>();
#if defined(OCTAVO_ISA_AVX512)
  kernel.all = all_byte_rows<Number>;
  kernel.floats = byte_strip_floats<Number>;
#endif
  return kernel;
}

} // namespace octavo
