// The sums of linear_rows.h for a tile of rows and panels in vectors: nothing but loads and products of bytes.
#pragma once
#include "linear_rows.h"

namespace octavo {

// Rows and panels whose sums fit the registers, with a register a panel for codes and one for inputs. Where all rows
// can be one tile of two panels or of one, codes are read once, evenly, while others are multiplied: from memory that
// is faster than a tile that reads and others that multiply what it has read.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kRowTileRows = 6, kRowTilePanels = 4, kOnceLeast = 5, kOncePairRows = 14, kOnceRows = 28,
              kStepsRows = 2; // fewer where steps need registers, too
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kRowTileRows = 5, kRowTilePanels = 1;
#elif defined(OCTAVO_ISA_NEON)
constexpr int kRowTileRows = 6, kRowTilePanels = 1;
#else
constexpr int kRowTileRows = 2, kRowTilePanels = 1;
#endif
#if !defined(OCTAVO_ISA_AVX512)
constexpr int kOnceLeast = 1, kOncePairRows = 0, kOnceRows = 0, kStepsRows = 0;
#endif
constexpr int kMostTileRows = kOnceRows > kRowTileRows ? kOnceRows : kRowTileRows;

// How codes are read: as bytes, again and again or once, or once with steps.
enum class CodesOf { tile, memory, steps };

template <int Rows, int Panels, CodesOf From> class RowSums {
public:
  OCTAVO_INLINE explicit RowSums(const RowTile& t) : t_(t) {}

  // sums: [Rows][lanes]
  OCTAVO_INLINE void run(int64_t lanes, int32_t* sums) {
    Sums sum;
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = load_words(reinterpret_cast<const uint8_t*>(t_.starts + p * kLanes));
    constexpr int64_t kRunUnits = kCodeRun / kUnit;
    for (int p = 0; kOnce && p < Panels; ++p) far_[p] = t_.panel(p) + kFar * kUnitBytes;
    for (int64_t run = 0; run < t_.units; run += kRunUnits) {
      const uint8_t* inputs = t_.inputs;
      const int64_t last = run + kRunUnits < t_.units ? run + kRunUnits : t_.units;
      for (int64_t unit = run; unit < last; ++unit) {
        fetch(unit);
        if constexpr (kSteps) {
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p) steps_[p] = load_steps(t_.steps + t_.panel_at(p));
          t_.steps += 2 * kLanes;
        }
        add<0>(inputs, sum);
        t_.codes += kUnitBytes;
        inputs += kUnit;
        for (int p = 0; kOnce && p < Panels; ++p) far_[p] += kUnitBytes;
      }
      t_.inputs += t_.run_stride;
    }
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        store_words(reinterpret_cast<uint8_t*>(sums + r * lanes + p * kLanes), sum[r][p]);
  }

private:
  using Sums = Int16[Rows][Panels];
  static constexpr bool kOnce = From != CodesOf::tile, kSteps = From == CodesOf::steps;
  static constexpr int64_t kUnitBytes = kSteps ? 256 : 512, kFar = 3072 / kUnitBytes; // units

  // A row's lines are far from the next one's, and few stores can wait: they are fetched one after the other.
  OCTAVO_INLINE void fetch(int64_t unit) {
    if (unit < Rows)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        if (p < t_.result_panels) fetch_for_writing(t_.results + unit * t_.result_stride + p * kLanes);
    if constexpr (kOnce) {
      if (unit == (t_.units > kFar ? t_.units - kFar : 0))
        for (int p = 0; p < Panels; ++p) far_[p] = t_.next_panel(p);
      return;
    }
    for (int64_t line = 0; line < t_.ahead_lines && t_.ahead < t_.ahead_end; ++line, t_.ahead += 64)
      __builtin_prefetch(t_.ahead, 0, 2);
  }

  // Steps are unrolled by name: a loop over them would keep the sums in memory.
  template <int Step> OCTAVO_INLINE void add(const uint8_t* inputs, Sums& sum) {
    Int16 codes[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      if constexpr (!kSteps) {
        codes[p] = load_once(t_.panel(p) + Step * 64);
      } else {
        const Int16 nibbles = load_once(t_.panel(p) + Step / 2 * 64);
        codes[p] = apply(steps_[p], keep_bits(Step % 2 ? shift_right<4>(nibbles) : nibbles, 0x0f0f0f0fu));
      }
      if constexpr (kOnce && !(kSteps && Step % 2)) __builtin_prefetch(far_[p] + Step * (kSteps ? 32 : 64), 0, 2);
    }
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
      int32_t four;
      memcpy(&four, inputs + r * kCodeRun + 4 * Step, sizeof four);
#if defined(OCTAVO_ISA_AVX512)
      const Int16 spread = set_words(four);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = dot_raised(sum[r][p], spread, codes[p]);
#else
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = add_four(sum[r][p], codes[p], four);
#endif
    }
    if constexpr (Step + 1 < 8) add<Step + 1>(inputs, sum);
  }

  RowTile t_;
  const uint8_t* far_[Panels];
  StepsOf<kSteps> steps_[Panels];
};

template <int Rows, int Panels, CodesOf From>
__attribute__((noinline)) void add_sums(const RowTile& tile, int64_t lanes, int32_t* sums) {
  RowSums<Rows, Panels, From>(tile).run(lanes, sums);
}

// Least .. Rows rows
template <int Rows, int Panels, CodesOf From = CodesOf::tile, int Least = 1>
void add_rows(const RowTile& tile, int rows, int64_t lanes, int32_t* sums) {
  if constexpr (Rows > Least)
    if (rows < Rows) return add_rows<Rows - 1, Panels, From, Least>(tile, rows, lanes, sums);
  add_sums<Rows, Panels, From>(tile, lanes, sums);
}

template <int Panels> void add_panels(const RowTile& tile, int rows, int panels, int64_t lanes, int32_t* sums) {
  if constexpr (Panels > 1)
    if (panels < Panels) return add_panels<Panels - 1>(tile, rows, panels, lanes, sums);
  add_rows<kRowTileRows, Panels>(tile, rows, lanes, sums);
}

struct NoRegisters {};
template <class Body> void with_registers(Body&& body) {
  NoRegisters none;
  body(none);
}

// Each panel's codes once, of two or of one at a time.
template <int Panels, int Most, int Least, CodesOf From>
void add_once(const RowTile& all, int rows, int panels, int32_t* sums) {
  RowTile tile = all;
  for (int panel = 0; panel < panels; panel += Panels) {
    const int count = panels - panel < Panels ? panels - panel : Panels;
    // Panels that follow are these ones' neighbours, or after the last of them the next strip's first.
    const int to = panel + Panels < panels ? panel + Panels : 0;
    const bool here = to > 0 || !all.next;
    tile.next = here ? all.panel(to) : all.next;
    tile.next_panel_stride = here ? all.panel_stride : all.next_panel_stride;
    if (count == Panels)
      add_rows<Most, Panels, From, Least>(tile, rows, panels * kLanes, sums + panel * kLanes);
    else
      add_rows<Most, 1, From, Least>(tile, rows, panels * kLanes, sums + panel * kLanes);
    tile.codes = all.panel(panel + Panels);
    if (all.steps) tile.steps = all.steps + all.panel_at(panel + Panels);
    tile.starts += Panels * kLanes;
    tile.results += Panels * kLanes;
    tile.result_panels -= Panels;
  }
}

template <CodesOf From> void add_all_once(const RowTile& all, int rows, int panels, int32_t* sums) {
  constexpr int kFewer = From == CodesOf::steps ? kStepsRows : 0, kPairs = kOncePairRows - kFewer;
  if (rows > kPairs) return add_once<1, kOnceRows - kFewer, kPairs + 1, From>(all, rows, panels, sums);
  add_once<2, kPairs, kOnceLeast, From>(all, rows, panels, sums);
}

// sums: [rows][panels][16] of at most kMostTileRows rows and kAllPanels panels
inline void add_tile(NoRegisters&, const RowTile& all, int rows, int panels, int32_t* sums) {
  if constexpr (kOnceRows > 0) {
    if (all.once && all.steps) return add_all_once<CodesOf::steps>(all, rows, panels, sums);
    if (all.once) return add_all_once<CodesOf::memory>(all, rows, panels, sums);
  }
  const int64_t lanes = panels * kLanes;
  if constexpr (kRowTilePanels == kAllPanels) return add_panels<kRowTilePanels>(all, rows, panels, lanes, sums);
  RowTile tile = all;
  for (int panel = 0; panel < panels; panel += kRowTilePanels) {
    const int count = panels - panel < kRowTilePanels ? panels - panel : kRowTilePanels;
    add_panels<kRowTilePanels>(tile, rows, count, lanes, sums + panel * kLanes);
    tile.codes = all.panel(panel + kRowTilePanels);
    tile.starts += kRowTilePanels * kLanes;
    tile.results += kRowTilePanels * kLanes;
    tile.result_panels -= kRowTilePanels;
    tile.ahead_lines = 0; // once a row's tile
  }
}

} // namespace octavo
