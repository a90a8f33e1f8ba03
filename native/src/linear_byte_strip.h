// Prepares a strip of a block format for linear_byte_rows.h and multiplies it; linear_byte_*.cpp make the kernels.
#pragma once
#include "linear_byte_rows.h"
#include "linear_dot.h"
#include "linear_int_tile.h"

namespace octavo {

// Eight inputs of 16 lanes as signed bytes, offset taken.
template <int Number, int Row, int Parity> inline Int16 signed_bytes(const uint8_t* low, const uint8_t* high) {
  constexpr Format f = format_of(Number);
  const Int16 codes = byte_codes<Number, Coding::words, Row, Parity>(low, high);
  if constexpr (signed_codes(f) || f.offset == 0)
    return codes;
  else
    return {_mm512_sub_epi8(codes.v, _mm512_set1_epi8(static_cast<char>(f.offset)))};
}

// Where what belongs to a strip stands in a thread's memory.
template <int Number> struct ByteStrip {
  static constexpr Format f = format_of(Number);
  static constexpr bool kAsPacked = f.low_bits == 8; // codes need not be written out
  static constexpr int kGroups = kUnit / f.group;    // of a unit
  static constexpr ByteKind kKind{f.group, f.mins, short_scales(f)};

  uint8_t* codes;
  float *scales, *mins;
  int32_t* starts;
  int64_t units;
  int panels;

  static int64_t floats(int64_t cols, int panels) {
    const int64_t numbers = cols / f.group * panels * kLanes;
    return numbers * (f.mins ? 3 : 2) + (kAsPacked ? 0 : cols * panels * kLanes / 4);
  }

  ByteStrip(float* memory, int64_t cols, int panels) : units(cols / kUnit), panels(panels) {
    const int64_t numbers = cols / f.group * panels * kLanes;
    scales = memory;
    starts = reinterpret_cast<int32_t*>(scales + numbers);
    mins = scales + 2 * numbers;
    codes = reinterpret_cast<uint8_t*>(f.mins ? mins + numbers : mins);
  }

  void prepare_panel(const uint8_t* panel, const PanelLayout& at, int p) {
    SuperScales shared{};
    for (int64_t unit = 0; unit < units; ++unit) {
      if (f.two_level() && unit % (kSuperblock / kUnit) == 0)
        shared = super_scales<Number, true>(panel, at, unit / (kSuperblock / kUnit));
      const uint8_t *low = panel + unit * 64 * f.low_bits, *high = panel + at.high + unit * 64 * f.high_bits;
      uint8_t* out = codes + (p * units + unit) * 512;
      Int16 sums[kGroups];
      for (Int16& sum : sums) sum = set_words(0);
      take_eight<0>(low, high, out, sums[0]);
      take_eight<1>(low, high, out, sums[0]);
      take_eight<2>(low, high, out, sums[kGroups - 1]);
      take_eight<3>(low, high, out, sums[kGroups - 1]);
      for (int g = 0; g < kGroups; ++g) {
        const int64_t group = unit * kGroups + g, to = (group * panels + p) * kLanes;
        const __m512i raised = _mm512_slli_epi32(sums[g].v, 7);
        _mm512_storeu_si512(starts + to, _mm512_sub_epi32(_mm512_set1_epi32(kRaisedBits), raised));
        store(scales + to, group_scale<Number, true>(panel, at, shared, group));
        if constexpr (f.mins) store(mins + to, group_min<Number>(panel, at, shared, group));
      }
    }
  }

private:
  template <int Row> void take_eight(const uint8_t* low, const uint8_t* high, uint8_t* out, Int16& sum) {
    const Int16 even = signed_bytes<Number, Row, 0>(low, high), odd = signed_bytes<Number, Row, 1>(low, high);
    const __m512i one = _mm512_set1_epi8(1);
    sum.v = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum.v, one, even.v), one, odd.v);
    if constexpr (!kAsPacked) {
      store_words(out + Row * 128, even);
      store_words(out + Row * 128 + 64, odd);
    }
  }
};

template <int Number> int64_t byte_strip_floats(int64_t cols, int panels) {
  return ByteStrip<Number>::floats(cols, panels);
}

template <int Number>
void all_byte_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int64_t rows,
                   const Results& results, float* memory) {
  using Made = ByteStrip<Number>;
  Made made(memory, in.cols, panels);
  for (int p = 0; p < panels; ++p) made.prepare_panel(strip.panel(p), strip.layout, p);
  ByteRows all{};
  all.codes = Made::kAsPacked ? strip.panels : made.codes;
  all.panel_stride = !Made::kAsPacked ? made.units * 512 : strip.apart ? strip.apart : strip.layout.bytes;
  all.pair_stride = Made::kAsPacked && strip.apart ? strip.layout.bytes : 2 * all.panel_stride;
  all.units = made.units;
  all.lanes = panels * kLanes;
  all.scales = made.scales;
  all.mins = made.mins;
  all.starts = made.starts;
  all.inputs = in.coded.codes;
  all.run_stride = in.layout.rows * kCodeRun;
  all.input_scales = in.coded.scales;
  all.sums = Made::f.group == 16 ? in.coded.sums16 : in.coded.sums32;
  all.stride = in.layout.rows;
  all.ahead = strip.next;
  all.ahead_end = strip.next ? strip.next + strip.next_panels * strip.next_layout.bytes : nullptr;
  all.apart = strip.next_apart;
  run_byte_rows<Made::f.group, Made::f.mins, Made::kKind.short_scales>(all.from_row(row), rows, panels, results);
}

} // namespace octavo
