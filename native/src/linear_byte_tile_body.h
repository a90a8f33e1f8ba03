// The tiles of linear_byte_rows.h in vectors; linear_byte_tile.cpp makes them.
//
// What bounds them is how many operations on registers there are: 8 products a group of 32, and 2 that close it. Sums
// and totals of a tile stay in registers for all inputs of a row: a store an output and group would wait for room among
// the stores. Pointers are members of copies that nothing points to, so that stores change none of them.
#pragma once
#include <string.h>

#include "linear_byte_rows.h"
#include "linear_dot.h"

namespace octavo {

constexpr int kByteTileRows = 6;

template <ByteKind const& Kind, int Rows, int Panels> class ByteTile {
  static constexpr int kGroups = kUnit / Kind.group;
  using Floats = Vec16[Rows][Panels];
  using Sums = Int16[Rows][Panels];

public:
  OCTAVO_INLINE explicit ByteTile(const ByteRows& t) : t_(t) {}

  // totals: [Rows][lanes]. results: where they will be written, rows `stride` apart.
  OCTAVO_INLINE void run(int64_t fetched_a_unit, const float* results, int64_t stride, float* totals) {
    Floats part, total;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) total[r][p] = zero();
    constexpr int64_t kRunUnits = kCodeRun / kUnit;
    for (int64_t run = 0; run < t_.units; run += kRunUnits) {
      const uint8_t* inputs = t_.inputs;
      const int64_t last = run + kRunUnits < t_.units ? run + kRunUnits : t_.units;
      for (int64_t unit = run; unit < last; ++unit) {
        if (unit < Rows) fetch_result(results + unit * stride);
        fetch(fetched_a_unit);
        add_group<0>(inputs, part, total);
        if constexpr (kGroups == 2) add_group<1>(inputs, part, total);
        t_.input_scales += t_.stride;
        t_.codes += 512;
        inputs += kUnit;
      }
      t_.inputs += t_.run_stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) store(totals + r * t_.lanes + p * kLanes, total[r][p]);
  }

private:
  // A row's lines are far from the next one's, and few stores can wait; all at once there were too many, too. By name,
  // for compilers that are not told of it would fetch for reading; whatever has AVX-512 has it.
  OCTAVO_INLINE void fetch_result(const float* row) const {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) asm volatile("prefetchw %0" ::"m"(row[p * kLanes]));
  }

  OCTAVO_INLINE void fetch(int64_t lines) {
    for (int64_t line = 0; line < lines && t_.ahead < t_.ahead_end; ++line, t_.ahead += 64)
      __builtin_prefetch(t_.ahead, 0, 2);
  }

  template <int Group> OCTAVO_INLINE void add_group(const uint8_t* inputs, Floats& part, Floats& total) {
    constexpr int kEach = 8 / kGroups;
    Sums sums;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        sums[r][p] = load_words(reinterpret_cast<const uint8_t*>(t_.starts + p * kLanes));
    add<Group * kEach, (Group + 1) * kEach>(inputs, sums);
    close<Group == 0, Group == kGroups - 1>(sums, part, total);
    t_.scales += t_.lanes;
    t_.starts += t_.lanes;
    if (Kind.mins) t_.mins += t_.lanes;
    if (Kind.mins) t_.sums += t_.stride;
  }

  // Steps are unrolled by name: a loop over them would keep the sums in memory.
  template <int Step, int End> OCTAVO_INLINE void add(const uint8_t* inputs, Sums& sums) {
    Int16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) weight[p] = load_once(t_.codes + p * t_.panel_stride + Step * 64);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      int32_t input;
      memcpy(&input, inputs + r * kCodeRun + 4 * Step, sizeof input);
      const Int16 four = set_words(input);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sums[r][p] = dot_raised(sums[r][p], four, weight[p]);
    }
    if constexpr (Step + 1 < End) add<Step + 1, End>(inputs, sums);
  }

  template <bool First, bool Last> OCTAVO_INLINE void close(const Sums& sums, Floats& part, Floats& total) const {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = load(t_.scales + p * kLanes), lower = scale * set1(-kRaised);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        Vec16 next = close_raised<Kind, First>(as_floats(sums[r][p]), scale, lower, part[r][p]);
        if constexpr (Kind.mins) next = fma(load(t_.mins + p * kLanes), set1(t_.sums[r]), next);
        if constexpr (Last)
          total[r][p] = fma(set1(t_.input_scales[r]), next, total[r][p]);
        else
          part[r][p] = next;
      }
    }
  }

  ByteRows t_;
};

template <ByteKind const& Kind, int Rows, int Panels>
__attribute__((noinline)) void run_byte_tile(const ByteRows& rows, int64_t fetched_a_unit, const float* results,
                                             int64_t stride, float* totals) {
  ByteTile<Kind, Rows, Panels>(rows).run(fetched_a_unit, results, stride, totals);
}

template <int Group, bool Mins, bool Short> struct ByteKinds { static constexpr ByteKind kind{Group, Mins, Short}; };

template <ByteKind const& Kind, int Panels>
void run_byte_tile_of(int rows, const ByteRows& from, int64_t fetched_a_unit, const float* results, int64_t stride,
                      float* totals) {
  static_assert(kByteTileRows == 6, "as many as there are cases");
  switch (rows) {
  case 1: return run_byte_tile<Kind, 1, Panels>(from, fetched_a_unit, results, stride, totals);
  case 2: return run_byte_tile<Kind, 2, Panels>(from, fetched_a_unit, results, stride, totals);
  case 3: return run_byte_tile<Kind, 3, Panels>(from, fetched_a_unit, results, stride, totals);
  case 4: return run_byte_tile<Kind, 4, Panels>(from, fetched_a_unit, results, stride, totals);
  case 5: return run_byte_tile<Kind, 5, Panels>(from, fetched_a_unit, results, stride, totals);
  default: return run_byte_tile<Kind, 6, Panels>(from, fetched_a_unit, results, stride, totals);
  }
}

// In tiles as equal as can be, two panels after two.
template <int Group, bool Mins, bool Short>
void run_byte_rows(const ByteRows& all, int64_t rows, int panels, const Results& results) {
  constexpr const ByteKind& kKind = ByteKinds<Group, Mins, Short>::kind;
  const int64_t tiles = (rows + kByteTileRows - 1) / kByteTileRows;
  const int64_t turns = tiles * all.units * ((panels + 1) / 2);
  const int64_t lines = ((all.ahead_end - all.ahead + 63) / 64 + turns - 1) / turns;
  alignas(64) float totals[kByteTileRows * kAllPanels * kLanes];
  const uint8_t* ahead = all.ahead;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = tile * rows / tiles;
    const int count = static_cast<int>((tile + 1) * rows / tiles - row);
    for (int panel = 0; panel < panels; panel += 2) {
      ByteRows from = all.from_row(row).from_panel(panel);
      const float* out = results.out + row * results.stride + (results.gating ? panel / 2 : panel) * kLanes;
      from.set_ahead(ahead);
      ahead += all.units * lines * 64;
      if (panel + 1 < panels)
        run_byte_tile_of<kKind, 2>(count, from, lines, out, results.stride, totals + panel * kLanes);
      else
        run_byte_tile_of<kKind, 1>(count, from, lines, out, results.stride, totals + panel * kLanes);
    }
    write_results(results, row, count, panels, totals);
  }
}

} // namespace octavo
