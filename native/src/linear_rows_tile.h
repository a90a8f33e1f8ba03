// The sums of linear_rows.h for a tile of rows and panels in vectors: nothing but loads and products of bytes.
#pragma once
#include "linear_rows.h"

namespace octavo {

// Rows and panels whose sums fit the registers, with a register a panel for codes and one for inputs.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kRowTileRows = 6, kRowTilePanels = 4;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kRowTileRows = 5, kRowTilePanels = 1;
#elif defined(OCTAVO_ISA_NEON)
constexpr int kRowTileRows = 6, kRowTilePanels = 1;
#else
constexpr int kRowTileRows = 2, kRowTilePanels = 1;
#endif

template <int Rows, int Panels> class RowSums {
public:
  OCTAVO_INLINE explicit RowSums(const RowTile& t) : t_(t) {}

  // sums: [Rows][lanes]
  OCTAVO_INLINE void run(int64_t lanes, int32_t* sums) {
    Sums sum;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = load_words(reinterpret_cast<const uint8_t*>(t_.starts + p * kLanes));
    constexpr int64_t kRunUnits = kCodeRun / kUnit;
    for (int64_t run = 0; run < t_.units; run += kRunUnits) {
      const uint8_t* inputs = t_.inputs;
      const int64_t last = run + kRunUnits < t_.units ? run + kRunUnits : t_.units;
      for (int64_t unit = run; unit < last; ++unit) {
        fetch(unit);
        add<0>(inputs, sum);
        t_.codes += 512;
        inputs += kUnit;
      }
      t_.inputs += t_.run_stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        store_words(reinterpret_cast<uint8_t*>(sums + r * lanes + p * kLanes), sum[r][p]);
  }

private:
  using Sums = Int16[Rows][Panels];

  // A row's lines are far from the next one's, and few stores can wait: they are fetched one after the other.
  OCTAVO_INLINE void fetch(int64_t unit) {
    if (unit < Rows)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        if (p < t_.result_panels) fetch_for_writing(t_.results + unit * t_.result_stride + p * kLanes);
    for (int64_t line = 0; line < t_.ahead_lines && t_.ahead < t_.ahead_end; ++line, t_.ahead += 64)
      __builtin_prefetch(t_.ahead, 0, 2);
  }

  // Steps are unrolled by name: a loop over them would keep the sums in memory.
  template <int Step> OCTAVO_INLINE void add(const uint8_t* inputs, Sums& sum) {
    Int16 codes[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) codes[p] = load_once(t_.panel(p) + Step * 64);
#pragma GCC unroll 16
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
};

template <int Rows, int Panels>
__attribute__((noinline)) void add_sums(const RowTile& tile, int64_t lanes, int32_t* sums) {
  RowSums<Rows, Panels>(tile).run(lanes, sums);
}

template <int Rows, int Panels> void add_rows(const RowTile& tile, int rows, int64_t lanes, int32_t* sums) {
  if constexpr (Rows > 1)
    if (rows < Rows) return add_rows<Rows - 1, Panels>(tile, rows, lanes, sums);
  add_sums<Rows, Panels>(tile, lanes, sums);
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

// sums: [rows][panels][16] of at most kRowTileRows rows and kAllPanels panels
inline void add_tile(NoRegisters&, const RowTile& all, int rows, int panels, int32_t* sums) {
  RowTile tile = all;
  const int64_t lanes = panels * kLanes;
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
