// The inner kernels of products of many rows with coded inputs.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "linear_kernels.h"

namespace octavo {

struct IntTileKind {
  int group; // inputs that share a weight's scale
  bool mins, starts, is_signed;
};

// What will be read next, brought into the second level while the tile computes: lines of one plane of panels.
struct Ahead {
  const uint8_t* first = nullptr; // null: nothing
  int64_t stride = 0;             // of panels
  int lines = 0;                  // of a panel: 1 << lines
  int next = 0, most = 0;         // of all panels
  int each = 0;                   // at a unit
};

// What is fetched at a unit. With the tile one function: see OCTAVO_INLINE.
OCTAVO_INLINE void fetch_lines(const Ahead& ahead, int unit) {
  if (!ahead.first) return;
  const int from = ahead.next + unit * ahead.each;
  const int to = from + ahead.each < ahead.most ? from + ahead.each : ahead.most;
  const int mask = (1 << ahead.lines) - 1;
  for (int line = from; line < to; ++line)
    __builtin_prefetch(ahead.first + (line >> ahead.lines) * ahead.stride + (line & mask) * 64, 0, 3);
}

// Rows of inputs against `panels` panels over `units` units of 32 inputs, at most a run.
struct IntTile {
  const uint8_t* codes; // [units][panels][words of a unit][64]
  int units;
  const uint8_t* inputs;     // [rows], a run apart
  int64_t stride;            // how far groups are apart below
  const float* scales;       // [groups][panels][16]
  const float* mins;         // likewise
  const float* input_scales; // [spans], stride apart, of [rows]
  const float* sums;         // [groups], stride apart, of [rows]
  const int32_t* starts;     // likewise
  float* total;              // [rows][panels][16]
  Ahead ahead;
  const float* out; // where results of the rows will be written, rows out_stride apart; null: not soon
  int64_t out_stride;
};

template <Coding C, int Group, bool Mins, bool Starts, bool Signed>
void run_int_tile(const IntTile& tile, int rows, int panels);

// Rows that tiles of so many panels are high. With AVX-512 only words come here: linear_byte_rows.h has the bytes.
#if defined(OCTAVO_ISA_AVX512)
constexpr int int_tile_rows(Coding, int panels) { return panels == 1 ? 12 : 16 / panels; }
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
constexpr int int_tile_rows(Coding, int) { return 6; }
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int int_tile_rows(Coding, int) { return 5; }
#else
constexpr int int_tile_rows(Coding, int) { return 2; }
#endif

// Whether the scales of a format have so few bits, 11 or 11 times a number of 8, that kRaised times one of them is
// exact and no infinity.
constexpr bool short_scales(const Format& f) { return f.scale == Scale::half || f.two_level(); }

} // namespace octavo
