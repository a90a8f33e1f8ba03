// Products of many rows of inputs in 8 bits with a strip of one or two panels, all of their inputs at a time: what
// linear_byte_strip.h prepares and linear_byte_tile.cpp multiplies. Builds with AVX-512 have it, for tiles or vectors.
//
// An instruction multiplies unsigned bytes with signed ones: codes of weights are the signed ones, as packed panels
// have them, and inputs are raised by 128. What a group's sum starts from makes up for it: -128 * the sum of its codes,
// an integer a lane, + kRaisedBits, so that it is a float without a conversion.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "linear_kernels.h"
#include "simd/vec.h"

namespace octavo {

// Sums of bytes can begin with the bits of 1.5 * 2^23, whose last bit counts ones: the bits of a sum below 2^22 either
// way are then those of the float kRaised + sum. (Sums of 32 products of 255 and 128 are below 2^21.)
constexpr float kRaised = 12582912.0f;
constexpr int32_t kRaisedBits = 0x4b400000;

struct ByteKind {
  int group; // inputs that share a weight's scale
  bool mins;
  bool short_scales; // see short_scales()
};

struct ByteRows {
  const uint8_t* codes;              // [units][8 words][64] of a panel, signed
  int64_t panel_stride, pair_stride; // pairs of panels
  int64_t units;
  int64_t lanes;         // of all panels
  const float* scales;   // [groups][lanes]
  const float* mins;     // likewise
  const int32_t* starts; // likewise
  const uint8_t* inputs; // of a run of a row; rows kCodeRun apart, runs run_stride
  int64_t run_stride;
  const float* input_scales; // [units], stride apart, of [rows]
  const float* sums;         // [groups], likewise
  int64_t stride;
  const uint8_t *ahead, *ahead_end; // what this thread reads next
  int64_t apart;                    // not 0: the second half of that stands so far behind the first

  ByteRows from_row(int64_t row) const {
    ByteRows rest = *this;
    rest.inputs += row * kCodeRun;
    rest.input_scales += row;
    if (rest.sums) rest.sums += row;
    return rest;
  }
  ByteRows from_panel(int panel) const {
    ByteRows rest = *this;
    rest.codes += panel / 2 * pair_stride + panel % 2 * panel_stride;
    rest.scales += panel * kLanes;
    rest.starts += panel * kLanes;
    if (rest.mins) rest.mins += panel * kLanes;
    return rest;
  }
  // The lines from `first`, a place of ahead .. ahead_end, on that stand together.
  void set_ahead(const uint8_t* first) {
    if (!ahead) return;
    const uint8_t* half = ahead + (ahead_end - ahead) / 2;
    if (apart && first < half) ahead_end = half;
    const int64_t behind = apart && first >= half ? apart - (half - ahead) : 0;
    ahead = first + behind;
    ahead_end += behind;
  }
};

// A group's closing, the same steps as in linear_int.h. raised: the bits of kRaised + the sum. With short scales
// scale * (kRaised + sum) - scale * kRaised is one operation, rounded once, and that is the rounded product.
template <ByteKind const& Kind, bool First>
inline Vec16 close_raised(Vec16 raised, Vec16 scale, Vec16 lower, Vec16 part) {
  if constexpr (First && Kind.short_scales)
    return fma(scale, raised, lower);
  else if constexpr (First)
    return scale * (raised - set1(kRaised));
  else
    return fma(scale, raised - set1(kRaised), part);
}

// totals: [rows][panels][16], changed
inline void write_gated(const Results& to, int64_t row, int rows, int panels, float* totals) {
  for (int p = 0; p < panels; p += 2) {
    float* gate = totals + p * kLanes;
    const int64_t column = p / 2 * kLanes;
    const GatedRows made{gate,      gate + kLanes, panels * kLanes, to.out + row * to.stride + column,
                         to.stride, rows,          kLanes};
    if (to.bias) made.add_bias(to.bias + column, to.bias + to.gating->gate.rows + column);
    made.write(to.gating->activation);
  }
}

// Likewise.
inline void write_results(const Results& to, int64_t row, int rows, int panels, float* totals) {
  if (to.gating) return write_gated(to, row, rows, panels, totals);
  const bool plain = !to.bias && !to.residual && to.lanes >= panels * kLanes;
  for (int r = 0; r < rows; ++r, totals += panels * kLanes) {
    float* out = to.out + (row + r) * to.stride;
    const float* residual = to.residual ? to.residual + (row + r) * to.stride : nullptr;
    if (plain) {
      for (int p = 0; p < panels; ++p) store(out + p * kLanes, load(totals + p * kLanes));
      continue;
    }
    for (int p = 0; p < panels; ++p) {
      const int64_t left = to.lanes - p * kLanes;
      const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
      Vec16 value = load(totals + p * kLanes);
      if (to.bias) value = value + load_n(to.bias + p * kLanes, lanes);
      if (residual) value = value + load_n(residual + p * kLanes, lanes);
      store_n(out + p * kLanes, value, lanes);
    }
  }
}

// Rows 0 .. rows - 1 of `all`.
template <int Group, bool Mins, bool Short>
void run_byte_rows(const ByteRows& all, int64_t rows, int panels, const Results& results);

} // namespace octavo
