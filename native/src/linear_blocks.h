// The kernels of block formats, as templates; linear_legacy.cpp and linear_k.cpp make them.
#pragma once
#include <string.h>

#include "linear_codes.h"
#include "linear_kernels.h"
#include "linear_tile.h"

namespace octavo {

template <int Number> const float* group_sums(const LinearInputs& in) {
  return format_of(Number).group == 16 ? in.sums16 : in.sums32;
}

// A tile of few rows, held in registers while a strip's codes go by once.
template <int Number, int Rows, int Panels> struct BlockTile {
  static constexpr Format f = format_of(Number);
  const Strip& strip;
  const float* x;    // [Rows], cols apart
  const float* sums; // [Rows], cols / f.group apart; null without mins
  int64_t cols;
  Vec16 sum[Rows][Panels], total[Rows][Panels];
  AheadOf ahead;

  const uint8_t* panel(int p) const { return strip.panels + p * strip.layout.bytes; }

  // sum += values * inputs over eight inputs of a unit.
  template <int Row> void add_eight(int64_t unit) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const uint8_t* low = panel(p) + unit * 64 * f.low_bits;
      if constexpr (f.low_bits == 8) ahead.fetch(p, Row * 128 + 64);
      if constexpr (f.low_bits >= 4 || Row % 2 == 0) ahead.fetch(p, Row * 16 * f.low_bits);
      Vec16 value[8];
      read_eight<Number, Row>(low, panel(p) + strip.layout.high + unit * 64 * f.high_bits, value);
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          sum[r][p] = fma(value[k], set1(x[r * cols + unit * kUnit + 8 * Row + k]), sum[r][p]);
    }
  }

  // Adds the groups' sums to the totals, and starts new ones.
  void close_group(const SuperScales (&shared)[Panels], int64_t group) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = group_scale<Number>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) total[r][p] = fma(scale, sum[r][p], total[r][p]);
      if constexpr (f.mins) {
        const Vec16 min = group_min<Number>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) total[r][p] = fma(min, set1(sums[r * (cols / f.group) + group]), total[r][p]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sum[r][p] = zero();
    }
  }

  void add_unit(const SuperScales (&shared)[Panels], int64_t unit) {
    ahead.move(unit * 64 * f.low_bits);
    ahead.fetch_rest<Panels>();
    add_eight<0>(unit);
    add_eight<1>(unit);
    if constexpr (f.group == 16) close_group(shared, 2 * unit);
    add_eight<2>(unit);
    add_eight<3>(unit);
    close_group(shared, f.group == 16 ? 2 * unit + 1 : unit);
  }
};

template <int Number, int Rows, int Panels>
void few_block_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr Format f = format_of(Number);
  constexpr int64_t kUnits = f.block / kUnit;
  BlockTile<Number, Rows, Panels> tile{strip,
                                       in.values + row * in.cols,
                                       f.mins ? group_sums<Number>(in) + row * (in.cols / f.group) : nullptr,
                                       in.cols,
                                       {},
                                       {},
                                       AheadOf(strip, in.cols / kUnit)};
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) tile.sum[r][p] = tile.total[r][p] = zero();
  for (int64_t block = 0; block < in.cols / f.block; ++block) {
    SuperScales shared[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) shared[p] = super_scales<Number>(tile.panel(p), strip.layout, block);
    for (int64_t unit = block * kUnits; unit < (block + 1) * kUnits; ++unit) tile.add_unit(shared, unit);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, tile.total[r][p]);
}

template <int Number, int Row> inline void unpack_eight(const uint8_t* low, const uint8_t* high, float* out) {
  Vec16 value[8];
  read_eight<Number, Row>(low, high, value);
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) store(out + (8 * Row + k) * kLanes, value[k]);
}

template <int Number> void unpack_unit(const uint8_t* low, const uint8_t* high, float* out) {
  unpack_eight<Number, 0>(low, high, out);
  unpack_eight<Number, 1>(low, high, out);
  unpack_eight<Number, 2>(low, high, out);
  unpack_eight<Number, 3>(low, high, out);
}

template <int Number>
void many_block_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                     float* scratch) {
  constexpr Format f = format_of(Number);
  constexpr int kGroups = kUnit / f.group;
  float* scales = scratch + kMostPanels * kUnit * kLanes; // [group of the unit][panel][16]
  float* mins = scales + 2 * kMostPanels * kLanes;
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t unit = 0; unit < in.cols / kUnit; ++unit) {
    for (int p = 0; p < panels; ++p) {
      const uint8_t* panel = strip.panels + p * strip.layout.bytes;
      unpack_unit<Number>(panel + unit * 64 * f.low_bits, panel + strip.layout.high + unit * 64 * f.high_bits,
                          scratch + p * kUnit * kLanes);
      const SuperScales shared = super_scales<Number>(panel, strip.layout, unit / (kSuperblock / kUnit));
      for (int g = 0; g < kGroups; ++g) {
        const int64_t group = unit * kGroups + g;
        store(scales + (g * panels + p) * kLanes, group_scale<Number>(panel, strip.layout, shared, group));
        if constexpr (f.mins)
          store(mins + (g * panels + p) * kLanes, group_min<Number>(panel, strip.layout, shared, group));
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      const int64_t group = unit * kGroups + g;
      FloatTile tile{};
      tile.weights = scratch + g * f.group * kLanes;
      tile.panel_stride = kUnit * kLanes;
      tile.count = f.group;
      tile.inputs = in.values + in.layout.at(row, group * f.group, kFloatRun);
      tile.scales = scales + g * panels * kLanes;
      if constexpr (f.mins) {
        tile.mins = mins + g * panels * kLanes;
        tile.sums = group_sums<Number>(in) + in.layout.of_group(row, group, 0);
      }
      tile.total = total;
      run_float_tile(tile, rows, panels);
    }
  }
}

template <int Number> struct Blocks {
  static constexpr int kMost = kFewRows;
  template <int Rows, int Panels> static constexpr FewRows kFew = few_block_rows<Number, Rows, Panels>;
  static constexpr ManyRows kMany = many_block_rows<Number>;
};

} // namespace octavo
