// The tiles of linear_int_tile.h, as templates; linear_byte_tile.cpp and linear_word_tile.cpp make them.
#pragma once
#include <string.h>

#include "linear_dot.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"
#include "simd/vec.h"

// The sums stay in registers only if all that uses them is one function.
#define OCTAVO_INLINE __attribute__((always_inline)) inline

namespace octavo {

template <Coding C, IntTileKind const& Kind, int Rows, int Panels> struct IntBody {
  static constexpr int kGroups = kUnit / Kind.group; // of a unit
  static constexpr bool kOne = kGroups * span_units(C) == 1; // a group is a span: its part needs no memory
  static constexpr int kSteps = 4 * words_of_eight(C); // words of a unit
  static constexpr int kUnitBytes = kUnit * code_bytes_of(C);
  static constexpr int kRunBytes = kCodeRun * code_bytes_of(C);
  const IntTile& t;
  using Sums = Int16[Rows][Panels];
  using Parts = float[Rows][Panels][kLanes]; // of a span, not yet scaled by the inputs' scale

  OCTAVO_INLINE void open(Sums& sum, int64_t group) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Int16 start = set_words(Kind.starts ? t.starts[group * t.stride + r] : 0);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = start;
    }
  }

  // Steps are unrolled by name: a loop over them would keep the sums in memory.
  template <int Step, int End> OCTAVO_INLINE void add(Sums& sum, int64_t unit) const {
    Int16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) weight[p] = load_words(t.codes + ((unit * Panels + p) * kSteps + Step) * 64);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      int32_t input;
      memcpy(&input, t.inputs + r * kRunBytes + unit * kUnitBytes + 4 * Step, sizeof input);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = dot_coded<C, Kind.is_signed>(sum[r][p], weight[p], input);
    }
    if constexpr (Step + 1 < End) add<Step + 1, End>(sum, unit);
  }

  OCTAVO_INLINE void close(const Sums& sum, Parts& part, int64_t group) const {
    Vec16 scale[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) scale[p] = load(t.scales + (group * Panels + p) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        Vec16 next = fma(scale[p], to_float(sum[r][p]), kOne ? zero() : load(part[r][p]));
        if constexpr (Kind.mins)
          next = fma(load(t.mins + (group * Panels + p) * kLanes), set1(t.sums[group * t.stride + r]), next);
        if constexpr (kOne) {
          float* at = t.total + (r * Panels + p) * kLanes;
          next = fma(set1(t.input_scales[group * t.stride + r]), next, load(at));
          store(at, next);
        } else {
          store(part[r][p], next);
        }
      }
  }

  OCTAVO_INLINE void open_span(Parts& part) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) store(part[r][p], zero());
  }

  OCTAVO_INLINE void close_span(const Parts& part, int64_t span) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec16 input = set1(t.input_scales[span * t.stride + r]);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        float* at = t.total + (r * Panels + p) * kLanes;
        store(at, fma(input, load(part[r][p]), load(at)));
      }
    }
  }

  void fetch(int64_t unit) const {
    if (!t.ahead.first) return;
    const int from = t.ahead.next + static_cast<int>(unit) * t.ahead.each;
    const int to = from + t.ahead.each < t.ahead.most ? from + t.ahead.each : t.ahead.most;
    const int mask = (1 << t.ahead.lines) - 1;
    for (int line = from; line < to; ++line)
      __builtin_prefetch(t.ahead.first + (line >> t.ahead.lines) * t.ahead.stride + (line & mask) * 64, 0, 2);
  }

  OCTAVO_INLINE void add_unit(Sums& sum, Parts& part, int64_t unit) const {
    fetch(unit);
    open(sum, unit * kGroups);
    add<0, kSteps / kGroups>(sum, unit);
    close(sum, part, unit * kGroups);
    if constexpr (kGroups == 2) {
      open(sum, unit * kGroups + 1);
      add<kSteps / kGroups, kSteps>(sum, unit);
      close(sum, part, unit * kGroups + 1);
    }
  }

  void run() const {
    constexpr int kSpan = span_units(C);
    Sums sum;
    alignas(64) Parts part;
    for (int64_t unit = 0, span = 0; unit < t.units; ++span) {
      const int64_t last = unit + kSpan < t.units ? unit + kSpan : t.units;
      if constexpr (!kOne) open_span(part);
      for (; unit < last; ++unit) add_unit(sum, part, unit);
      if constexpr (!kOne) close_span(part, span);
    }
  }
};

template <Coding C, IntTileKind const& Kind> IntTile skip_rows(IntTile t, int rows, int panels) {
  t.inputs += rows * kCodeRun * code_bytes_of(C);
  t.input_scales += rows;
  if (Kind.mins) t.sums += rows;
  if (Kind.starts) t.starts += rows;
  t.total += rows * panels * kLanes;
  t.ahead.next += t.units * t.ahead.each;
  return t;
}

// As many tiles of Rows rows as there are; what is left in tiles of half as many.
template <Coding C, IntTileKind const& Kind, int Rows, int Panels> void run_rows(IntTile tile, int rows) {
  for (; rows >= Rows; rows -= Rows) {
    IntBody<C, Kind, Rows, Panels>{tile}.run();
    tile = skip_rows<C, Kind>(tile, Rows, Panels);
  }
  if constexpr (Rows > 1)
    if (rows > 0) run_rows<C, Kind, Rows / 2, Panels>(tile, rows);
}

template <int Group, bool Mins, bool Starts, bool Signed> struct IntKinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed};
};

template <Coding C, int Group, bool Mins, bool Starts, bool Signed>
void run_int_tile(const IntTile& tile, int rows, int panels) {
  constexpr const IntTileKind& kKind = IntKinds<Group, Mins, Starts, Signed>::kind;
  if constexpr (kWidestMany == 4) {
    if (panels == 4) return run_rows<C, kKind, int_tile_rows(4), 4>(tile, rows);
    if (panels == 2) return run_rows<C, kKind, int_tile_rows(2), 2>(tile, rows);
  }
  return run_rows<C, kKind, int_tile_rows(1), 1>(tile, rows);
}

} // namespace octavo
