// The kernels of block formats with inputs of 8 bits, as templates; linear_int_legacy.cpp and linear_int_k.cpp make
// them.
//
// The sum of one output, the same in both kernels: in a group the exact integer sum of code * code, then
// total = fma(scale * the input's scale, float of it, total), then with mins total = fma(min, sum of inputs, total).
#pragma once
#include <string.h>

#include "linear_dot.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"

namespace octavo {

constexpr int log_of(int power) {
  int log = 0;
  for (; power > 1; power /= 2) ++log;
  return log;
}

// What a format's kernels read of the inputs.
template <int Number> struct IntInputs {
  static constexpr Format f = format_of(Number);
  static constexpr int kGroups = kUnit / f.group; // of a unit
  const uint8_t* codes;
  const float* scales;
  const float* sums = nullptr;
  const int32_t* starts = nullptr;
  int64_t cols;

  // From a row on, group by group and input by input.
  IntInputs(const LinearInputs& in, int64_t row, int64_t unit)
      : codes(in.coded.codes + in.layout.at(row, unit * kUnit, kCodeRun)),
        scales(in.coded.scales + in.layout.of_group(row, unit, in.cols / kUnit)), cols(in.cols) {
    const int64_t at = in.layout.of_group(row, unit * kGroups, in.cols / f.group);
    if constexpr (f.mins) sums = (f.group == 16 ? in.coded.sums16 : in.coded.sums32) + at;
    if constexpr (dot_offset(f) != 0) starts = in.coded.starts[log_of(dot_offset(f))] + at;
  }
};

// A tile of few rows, held in registers while a strip's codes go by once.
template <int Number, int Rows, int Panels> struct IntBlockTile {
  static constexpr Format f = format_of(Number);
  const Strip& strip;
  IntInputs<Number> in;
  Int16 sum[Rows][Panels];
  Vec16 total[Rows][Panels];

  const uint8_t* panel(int p) const { return strip.panels + p * strip.layout.bytes; }

  void open_group(int64_t group) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Int16 start = set_words(dot_offset(f) ? in.starts[r * (in.cols / f.group) + group] : 0);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = start;
    }
  }

  template <int Row> void add_eight(int64_t unit) {
    const int64_t ahead = Panels * strip.layout.bytes;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const uint8_t* low = panel(p) + unit * 64 * f.low_bits;
      const uint8_t* high = panel(p) + strip.layout.high + unit * 64 * f.high_bits;
      if constexpr (f.low_bits == 8) __builtin_prefetch(low + Row * 128 + 64 + ahead, 0, 2);
      if constexpr (f.low_bits >= 4 || Row % 2 == 0) __builtin_prefetch(low + Row * 16 * f.low_bits + ahead, 0, 2);
      const Int16 even = dot_codes<Number, Row, 0>(low, high), odd = dot_codes<Number, Row, 1>(low, high);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        int32_t input[2];
        memcpy(input, in.codes + r * in.cols + unit * kUnit + 8 * Row, sizeof input);
        sum[r][p] = dot<signed_codes<Number>()>(sum[r][p], even, input[0]);
        sum[r][p] = dot<signed_codes<Number>()>(sum[r][p], odd, input[1]);
      }
    }
  }

  void close_group(const SuperScales (&shared)[Panels], int64_t unit, int64_t group) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = group_scale<Number, true>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Vec16 both = scale * set1(in.scales[r * (in.cols / kUnit) + unit]);
        total[r][p] = fma(both, to_float(sum[r][p]), total[r][p]);
      }
      if constexpr (f.mins) {
        const Vec16 min = group_min<Number>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          total[r][p] = fma(min, set1(in.sums[r * (in.cols / f.group) + group]), total[r][p]);
      }
    }
  }

  void add_unit(const SuperScales (&shared)[Panels], int64_t unit) {
    constexpr int kGroups = kUnit / f.group;
    open_group(unit * kGroups);
    add_eight<0>(unit);
    add_eight<1>(unit);
    if constexpr (kGroups == 2) {
      close_group(shared, unit, 2 * unit);
      open_group(2 * unit + 1);
    }
    add_eight<2>(unit);
    add_eight<3>(unit);
    close_group(shared, unit, unit * kGroups + kGroups - 1);
  }
};

template <int Number, int Rows, int Panels>
void few_int_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr Format f = format_of(Number);
  constexpr int64_t kUnits = f.block / kUnit;
  IntBlockTile<Number, Rows, Panels> tile{strip, IntInputs<Number>(in, row, 0), {}, {}};
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) tile.total[r][p] = zero();
  for (int64_t block = 0; block < in.cols / f.block; ++block) {
    SuperScales shared[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) shared[p] = super_scales<Number, true>(tile.panel(p), strip.layout, block);
    for (int64_t unit = block * kUnits; unit < (block + 1) * kUnits; ++unit) tile.add_unit(shared, unit);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, tile.total[r][p]);
}

template <int Number, int Row> inline void write_dot_codes(const uint8_t* low, const uint8_t* high, uint8_t* out) {
  store_words(out + 2 * Row * 64, dot_codes<Number, Row, 0>(low, high));
  store_words(out + (2 * Row + 1) * 64, dot_codes<Number, Row, 1>(low, high));
}

// Codes [8][64], scales and mins [groups][16] of one unit of one panel.
template <int Number>
void write_unit_codes(const uint8_t* panel, const PanelLayout& at, int64_t unit, uint8_t* codes, float* scales,
                      float* mins, int group_stride) {
  constexpr Format f = format_of(Number);
  constexpr int kGroups = kUnit / f.group;
  const uint8_t *low = panel + unit * 64 * f.low_bits, *high = panel + at.high + unit * 64 * f.high_bits;
  write_dot_codes<Number, 0>(low, high, codes);
  write_dot_codes<Number, 1>(low, high, codes);
  write_dot_codes<Number, 2>(low, high, codes);
  write_dot_codes<Number, 3>(low, high, codes);
  const SuperScales shared = super_scales<Number, true>(panel, at, unit / (kSuperblock / kUnit));
  for (int g = 0; g < kGroups; ++g) {
    store(scales + g * group_stride, group_scale<Number, true>(panel, at, shared, unit * kGroups + g));
    if constexpr (f.mins) store(mins + g * group_stride, group_min<Number>(panel, at, shared, unit * kGroups + g));
  }
}

template <int Number>
void many_int_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                   float* scratch) {
  constexpr Format f = format_of(Number);
  constexpr int kGroups = kUnit / f.group;
  constexpr IntTileKind kKind{f.group, f.mins, dot_offset(f) != 0, signed_codes<Number>()};
  uint8_t* codes = reinterpret_cast<uint8_t*>(scratch); // [unit][panel][8][64]
  float* scales = scratch + kTileUnits * kMostPanels * kUnit * kLanes / 4;
  float* mins = scales + kTileUnits * 2 * kMostPanels * kLanes;
  const int64_t units = in.cols / kUnit;
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t first = 0; first < units; first += kTileUnits) {
    const int count = static_cast<int>(units - first < kTileUnits ? units - first : kTileUnits);
    for (int p = 0; p < panels; ++p)
      for (int u = 0; u < count; ++u) {
        const int at = (u * kGroups * panels + p) * kLanes;
        write_unit_codes<Number>(strip.panels + p * strip.layout.bytes, strip.layout, first + u,
                                 codes + (u * panels + p) * kUnit * kLanes, scales + at, mins + at, panels * kLanes);
      }
    IntTile tile{};
    tile.codes = codes;
    tile.units = count;
    const IntInputs<Number> from(in, row, first);
    tile.inputs = from.codes;
    tile.stride = in.layout.rows;
    tile.scales = scales;
    tile.mins = mins;
    tile.input_scales = from.scales;
    tile.sums = from.sums;
    tile.starts = from.starts;
    tile.total = total;
    run_int_tile<kKind.group, kKind.mins, kKind.starts, kKind.is_signed>(tile, rows, panels);
  }
}

template <int Number> struct IntBlocks {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_int_rows<Number, Rows, Panels>;
  static constexpr ManyRows kMany = many_int_rows<Number>;
};

} // namespace octavo
