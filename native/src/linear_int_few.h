// Products of few rows of coded inputs with weights of block formats, as templates: linear_int.h says what they
// compute.
//
// Sums and totals stay in registers while a strip's codes go by once; they do only if all that uses them is one
// function.
#pragma once
#include <string.h>

#include "linear_dot.h"
#include "linear_kernels.h"

namespace octavo {

template <int Number, Coding C> struct IntFormat {
  static constexpr Format f = format_of(Number);
  static constexpr int kGroups = kUnit / f.group; // of a unit
  static constexpr int kOffset = dot_offset(f, C);
  static constexpr bool kSigned = signed_codes(f);
  static constexpr int kWords = words_of_eight(C);
  static constexpr int kSpan = span_units(C);
  static constexpr int kUnitBytes = kUnit * code_bytes_of(C);
};

// What a format's kernels read of the inputs.
template <int Number, Coding C> struct IntInputs : IntFormat<Number, C> {
  using Is = IntFormat<Number, C>;
  const uint8_t* codes;
  const float* scales;
  const float* sums = nullptr;
  const int32_t* starts = nullptr;
  int64_t units;

  // From a row on, span by span, group by group and input by input; unit: the first of a span.
  IntInputs(const LinearInputs& in, int64_t row, int64_t unit)
      : codes(in.coded.codes + in.layout.at(row, unit * kUnit, kCodeRun) * code_bytes_of(C)), units(in.cols / kUnit) {
    const int64_t span = in.layout.of_group(row, unit / Is::kSpan, spans());
    const int64_t group = in.layout.of_group(row, unit * Is::kGroups, units * Is::kGroups);
    scales = in.coded.scales + span;
    if constexpr (Is::f.mins) sums = (Is::f.group == 16 ? in.coded.sums16 : in.coded.sums32) + group;
    if constexpr (Is::kOffset != 0) starts = in.coded.starts[start_index(Is::kOffset, Is::f.group)] + group;
  }
  int64_t spans() const { return span_count(C, units); }
};

// A tile of rows and panels.
template <int Number, Coding C, int Rows, int Panels> class FewIntTile {
  using Is = IntFormat<Number, C>;
  static constexpr Format f = Is::f;
  static constexpr bool kOne = Is::kGroups * Is::kSpan == 1; // a group is a span
  // There are no registers for totals and parts beside so many sums.
  static constexpr bool kStored = C == Coding::words && Rows * Panels > 8;

public:
  OCTAVO_INLINE FewIntTile(const Strip& strip, const LinearInputs& in, int64_t row)
      : at_(strip.layout), panels_(strip.panels), in_(in, row, 0), ahead_(strip, in.cols / kUnit) {}

  // out: [Rows][Panels][16]
  OCTAVO_INLINE void run(float* out) {
    Kept kept;
    clear(kept.total);
    SuperScales shared[Panels]{};
    for (int64_t unit = 0, span = 0; unit < in_.units; ++span) {
      if (f.two_level() && unit % (kSuperblock / kUnit) == 0)
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p)
          shared[p] = super_scales<Number, true>(panel(p), at_, unit / (kSuperblock / kUnit));
      if constexpr (!kOne) clear(kept.part);
      const int64_t last = unit + Is::kSpan < in_.units ? unit + Is::kSpan : in_.units;
      for (; unit < last; ++unit) add_unit(shared, unit, kept);
      if constexpr (!kOne) close_span(span, kept);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, kept.total[r][p]);
  }

private:
  // Apart from the tile: what stands beside something in memory would be written there, too.
  struct Kept {
    Vec16 part[Rows][Panels], total[Rows][Panels];
  };

  OCTAVO_INLINE const uint8_t* panel(int p) const { return panels_ + p * at_.bytes; }

  static OCTAVO_INLINE void clear(Vec16 (&numbers)[Rows][Panels]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) numbers[r][p] = zero();
  }

  OCTAVO_INLINE void open_group(int64_t group) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Int16 start = set_words(Is::kOffset ? in_.starts[r * in_.units * Is::kGroups + group] : 0);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum_[r][p] = start;
    }
  }

  // Word by word: what a word's inputs are is loaded once for all panels. Steps are unrolled by name: a loop over them
  // would keep the sums in memory.
  template <int Row, int Word> OCTAVO_INLINE void multiply(const Int16 (&codes)[Panels][Is::kWords], int64_t unit) {
    const uint8_t* inputs = in_.codes + unit * Is::kUnitBytes + 4 * (Is::kWords * Row + Word);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const InputWord input = load_input(inputs + r * in_.units * Is::kUnitBytes);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum_[r][p] = dot_coded<C, Is::kSigned>(sum_[r][p], codes[p][Word], input);
    }
    if constexpr (Word + 1 < Is::kWords) multiply<Row, Word + 1>(codes, unit);
  }

  template <int Row> OCTAVO_INLINE void add_eight(int64_t unit) {
    Int16 codes[Panels][Is::kWords];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      if constexpr (f.low_bits == 8) ahead_.fetch(p, Row * 128 + 64);
      if constexpr (f.low_bits >= 4 || Row % 2 == 0) ahead_.fetch(p, Row * 16 * f.low_bits);
      eight_codes<Number, C, Row>(panel(p) + unit * 64 * f.low_bits, panel(p) + at_.high + unit * 64 * f.high_bits,
                                  codes[p]);
    }
    multiply<Row, 0>(codes, unit);
  }

  // In the order of steps that each output has, output by output, so that few numbers wait in registers.
  OCTAVO_INLINE void close_group(const SuperScales (&shared)[Panels], int64_t group, Kept& kept) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = group_scale<Number, true>(panel(p), at_, shared[p], group);
      Vec16 min = zero();
      if constexpr (f.mins) min = group_min<Number>(panel(p), at_, shared[p], group);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        Vec16 part = fma(scale, to_float(sum_[r][p]), kOne ? zero() : kept.part[r][p]);
        if constexpr (f.mins) part = fma(min, set1(in_.sums[r * in_.units * Is::kGroups + group]), part);
        if constexpr (kOne)
          close_part(part, group, r, p, kept);
        else
          kept.part[r][p] = part;
      }
    }
    keep_stored(kept);
  }

  OCTAVO_INLINE void close_part(Vec16 part, int64_t span, int r, int p, Kept& kept) {
    kept.total[r][p] = fma(set1(in_.scales[r * in_.spans() + span]), part, kept.total[r][p]);
  }

  OCTAVO_INLINE void close_span(int64_t span, Kept& kept) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) close_part(kept.part[r][p], span, r, p, kept);
    keep_stored(kept);
  }

  static OCTAVO_INLINE void keep_stored(Kept& kept) {
    if constexpr (kStored) asm volatile("" : "+m"(kept.total));
    if constexpr (kStored && !kOne) asm volatile("" : "+m"(kept.part));
  }

  OCTAVO_INLINE void add_unit(const SuperScales (&shared)[Panels], int64_t unit, Kept& kept) {
    const int64_t group = unit * Is::kGroups;
    ahead_.move(unit * 64 * f.low_bits);
    ahead_.template fetch_rest<Panels>();
    open_group(group);
    add_eight<0>(unit);
    add_eight<1>(unit);
    if constexpr (Is::kGroups == 2) {
      close_group(shared, group, kept);
      open_group(group + 1);
    }
    add_eight<2>(unit);
    add_eight<3>(unit);
    close_group(shared, group + Is::kGroups - 1, kept);
  }

  const PanelLayout at_;
  const uint8_t* const panels_;
  const IntInputs<Number, C> in_;
  AheadOf ahead_;
  Int16 sum_[Rows][Panels];
};

template <int Number, Coding C, int Rows, int Panels>
void few_int_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  FewIntTile<Number, C, Rows, Panels>(strip, in, row).run(out);
}

} // namespace octavo
