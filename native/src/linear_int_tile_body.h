// The tiles of linear_int_tile.h, as templates; linear_byte_tile.cpp and linear_word_tile.cpp make them.
//
// What bounds them is how many operations on registers there are: 8 products of bytes a group of 32, or 16 of words,
// and what closes the group. Pointers are members of copies that nothing points to, so that stores change none of them;
// and a barrier a group keeps compilers from moving what is in memory into registers that are not there.
#pragma once
#include <string.h>

#include "linear_dot.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"
#include "simd/vec.h"

namespace octavo {

inline void keep_memory_in_order() { asm volatile("" ::: "memory"); }

template <Coding C, IntTileKind const& Kind, int Rows, int Panels> struct IntSums {
  static constexpr int kGroups = kUnit / Kind.group;                             // of a unit
  static constexpr int kSteps = 4 * words_of_eight(C), kEach = kSteps / kGroups; // words of a unit, of a group
  static constexpr int kUnitBytes = kUnit * code_bytes_of(C);
  static constexpr int kRunBytes = kCodeRun * code_bytes_of(C);
  Int16 sum[Rows][Panels];

  // starts: [rows]
  OCTAVO_INLINE void open(const int32_t* starts) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Int16 start = set_words(Kind.starts ? starts[r] : 0);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = start;
    }
  }

  // codes, inputs: of the unit. Steps are unrolled by name: a loop over them would keep the sums in memory.
  template <int Step, int End> OCTAVO_INLINE void add(const uint8_t* codes, const uint8_t* inputs) {
    Int16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) weight[p] = load_once(codes + (p * kSteps + Step) * 64);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      int32_t input;
      memcpy(&input, inputs + r * kRunBytes + 4 * Step, sizeof input);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = dot_written<C, Kind.is_signed>(sum[r][p], weight[p], input);
    }
#if defined(OCTAVO_ISA_NEON)
    keep_memory_in_order(); // what a step reads stays in it: sums take 20 registers of 32
#endif
    if constexpr (Step + 1 < End) add<Step + 1, End>(codes, inputs);
  }
};

// Where a tile is in what it reads.
template <Coding C, IntTileKind const& Kind, int Panels> struct IntPlace {
  const uint8_t *codes, *inputs;
  const float *scales, *mins, *sums;
  const int32_t* starts;
  int64_t stride;

  OCTAVO_INLINE explicit IntPlace(const IntTile& t)
      : codes(t.codes), inputs(t.inputs), scales(t.scales), mins(t.mins), sums(t.sums), starts(t.starts),
        stride(t.stride) {}

  OCTAVO_INLINE void next_unit() {
    codes += Panels * 4 * words_of_eight(C) * 64;
    inputs += kUnit * code_bytes_of(C);
  }
  OCTAVO_INLINE void next_group() {
    scales += Panels * kLanes;
    if (Kind.mins) mins += Panels * kLanes;
    if (Kind.mins) sums += stride;
    if (Kind.starts) starts += stride;
  }
  OCTAVO_INLINE Vec16 add_min(int r, int p, Vec16 part) const {
    return Kind.mins ? fma(load(mins + p * kLanes), set1(sums[r]), part) : part;
  }
};

// The lines that a tile's results will be written to: a row's are far from the next one's, and few stores can wait.
inline void fetch_results(const IntTile& t, int rows, int panels) {
  if (!t.out) return;
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < panels; ++p) __builtin_prefetch(t.out + r * t.out_stride + p * kLanes, 1, 2);
}

// Parts of a span and totals in memory.
template <Coding C, IntTileKind const& Kind, int Rows, int Panels> struct StoredTile {
  using Sums = IntSums<C, Kind, Rows, Panels>;
  static constexpr int kGroups = Sums::kGroups, kSpan = span_units(C);
  static constexpr bool kOne = kGroups * kSpan == 1; // a group is a span: its part needs no memory
  const IntTile t;
  using Parts = float[Rows][Panels][kLanes]; // of a span, not yet scaled by the inputs' scale

  OCTAVO_INLINE void close(const Sums& sums, Parts& part, const IntPlace<C, Kind, Panels>& at,
                           const float* inputs) const {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = load(at.scales + p * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec16 value = to_float(sums.sum[r][p]);
        const Vec16 next = at.add_min(r, p, fma(scale, value, kOne ? zero() : load(part[r][p])));
        float* total = t.total + (r * Panels + p) * kLanes;
        if constexpr (kOne)
          store(total, fma(set1(inputs[r]), next, load(total)));
        else
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

  OCTAVO_INLINE void close_span(const Parts& part, const float* inputs) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec16 input = set1(inputs[r]);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        float* total = t.total + (r * Panels + p) * kLanes;
        store(total, fma(input, load(part[r][p]), load(total)));
      }
    }
  }

  OCTAVO_INLINE void run() const {
    alignas(64) Parts part;
    IntPlace<C, Kind, Panels> at(t);
    const float* inputs = t.input_scales;
    for (int unit = 0; unit < t.units; inputs += t.stride) {
      const int last = unit + kSpan < t.units ? unit + kSpan : t.units;
      if constexpr (!kOne) open_span(part);
      for (; unit < last; ++unit) {
        fetch_lines(t.ahead, unit);
        Sums sums;
        add_group<0>(sums, part, at, inputs);
        if constexpr (kGroups == 2) add_group<1>(sums, part, at, inputs);
        at.next_unit();
      }
      if constexpr (!kOne) close_span(part, inputs);
    }
  }

  template <int Group>
  OCTAVO_INLINE void add_group(Sums& sums, Parts& part, IntPlace<C, Kind, Panels>& at, const float* inputs) const {
    keep_memory_in_order();
    sums.open(at.starts);
    sums.template add<Group * Sums::kEach, (Group + 1) * Sums::kEach>(at.codes, at.inputs);
    close(sums, part, at, inputs);
    at.next_group();
  }
};

template <Coding C, IntTileKind const& Kind> IntTile skip_rows(IntTile t, int rows, int panels) {
  t.inputs += rows * kCodeRun * code_bytes_of(C);
  t.input_scales += rows;
  if (Kind.mins) t.sums += rows;
  if (Kind.starts) t.starts += rows;
  t.total += rows * panels * kLanes;
  t.ahead.next += t.units * t.ahead.each;
  if (t.out) t.out += rows * t.out_stride;
  return t;
}

template <Coding C, IntTileKind const& Kind, int Rows, int Panels>
__attribute__((noinline)) void run_one(const IntTile& tile) {
  fetch_results(tile, Rows, Panels);
  StoredTile<C, Kind, Rows, Panels>{tile}.run();
}

// As many tiles of Rows rows as there are; what is left in tiles of half as many.
template <Coding C, IntTileKind const& Kind, int Rows, int Panels> void run_rows(IntTile tile, int rows) {
  for (; rows >= Rows; rows -= Rows) {
    run_one<C, Kind, Rows, Panels>(tile);
    tile = skip_rows<C, Kind>(tile, Rows, Panels);
  }
  if constexpr (Rows > 1)
    if (rows > 0) run_rows<C, Kind, (Rows + 1) / 2, Panels>(tile, rows);
}

template <int Group, bool Mins, bool Starts, bool Signed> struct IntKinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed};
};

template <Coding C, int Group, bool Mins, bool Starts, bool Signed>
void run_int_tile(const IntTile& tile, int rows, int panels) {
  constexpr const IntTileKind& kKind = IntKinds<Group, Mins, Starts, Signed>::kind;
  if constexpr (kWidestMany == 4) {
    if (panels == 4) return run_rows<C, kKind, int_tile_rows(C, 4), 4>(tile, rows);
    if (panels == 2) return run_rows<C, kKind, int_tile_rows(C, 2), 2>(tile, rows);
  }
  return run_rows<C, kKind, int_tile_rows(C, 1), 1>(tile, rows);
}

} // namespace octavo
