// The sums of linear_rows.h for a tile of rows and panels in tile registers: 16 inputs of four bytes at a time.
#pragma once
#include "linear_rows.h"
#include "tile_registers.h"

namespace octavo {

constexpr int kRowTileRows = 2 * kTileHeight, kMostTileRows = kRowTileRows, kOnceLeast = 1, kOnceRows = 0,
              kStepsRows = 0;

// One or two panels, against one or two blocks of 16 rows.
template <int Panels, class Registers> class RowRegisters {
public:
  RowRegisters(Registers& tiles, const RowTile& t, int rows) : tiles_(tiles), t_(t) {
    rows_ = rows < kTileHeight ? rows : kTileHeight;
    more_ = rows - rows_;
  }

  // sums: [rows][lanes], to which products are added
  void run(int64_t lanes, int32_t* sums) {
    const int64_t pairs = t_.units / 2;
    add(0, pairs, kTileInner, lanes, sums);
    if (t_.units % 2) add(2 * pairs, 1, kTileInner / 2, lanes, sums);
  }

private:
  // `count` times `inner` words from a unit on.
  void add(int64_t unit, int64_t count, int inner, int64_t lanes, int32_t* sums) {
    if (count == 0) return;
    tiles_.shape({rows_, more_, inner});
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    if (more_) tiles_.template zero<2>();
    if (more_) tiles_.template zero<3>();
    for (int64_t turn = 0; turn < count; ++turn, unit += 2) multiply(unit);
    take<0>(0, rows_, lanes, sums);
    if constexpr (Panels == 2) take<1>(1, rows_, lanes, sums);
    if (more_) take<2>(0, more_, lanes, sums + kTileHeight * lanes);
    if constexpr (Panels == 2)
      if (more_) take<3>(1, more_, lanes, sums + kTileHeight * lanes);
  }

  void multiply(int64_t unit) {
    constexpr int64_t kRunUnits = kCodeRun / kUnit;
    const uint8_t* inputs = t_.inputs + unit / kRunUnits * t_.run_stride + unit % kRunUnits * kUnit;
    const uint8_t* codes = t_.codes + unit * 512;
    tiles_.template load<4>(inputs, kCodeRun);
    tiles_.template load<6>(codes, kTileBytes);
    tiles_.template add_bytes<0, 4, 6, TileSigns::weights>();
    if constexpr (Panels == 2) {
      tiles_.template load<7>(codes + t_.panel_stride, kTileBytes);
      tiles_.template add_bytes<1, 4, 7, TileSigns::weights>();
    }
    if (!more_) return;
    tiles_.template load<5>(inputs + kTileHeight * kCodeRun, kCodeRun);
    tiles_.template add_bytes<2, 5, 6, TileSigns::weights>();
    if constexpr (Panels == 2) tiles_.template add_bytes<3, 5, 7, TileSigns::weights>();
  }

  template <int C> void take(int panel, int rows, int64_t lanes, int32_t* sums) {
    alignas(64) int32_t got[kTileHeight][kLanes];
    tiles_.template store<C>(got, kTileBytes);
    for (int r = 0; r < rows; ++r) {
      auto* at = reinterpret_cast<uint8_t*>(sums + r * lanes + panel * kLanes);
      store_words(at, {_mm512_add_epi32(load_words(at).v, _mm512_load_si512(got[r]))});
    }
  }

  Registers& tiles_;
  const RowTile& t_;
  int rows_, more_;
};

template <class Body> void with_registers(Body&& body) { with_tiles(body); }

// sums: [rows][panels][16] of at most kRowTileRows rows and kAllPanels panels
template <class Registers>
void add_tile(Registers& tiles, RowTile tile, int rows, int panels, int32_t* sums) {
  const int64_t lanes = panels * kLanes, lines = tile.units * tile.ahead_lines;
  for (int64_t line = 0; line < lines && tile.ahead < tile.ahead_end; ++line, tile.ahead += 64)
    __builtin_prefetch(tile.ahead, 0, 2);
  for (int r = 0; r < rows; ++r) memcpy(sums + r * lanes, tile.starts, static_cast<size_t>(lanes) * sizeof *sums);
  for (int panel = 0; panel < panels; panel += 2, tile.codes += tile.pair_stride) {
    if (panel + 1 < panels)
      RowRegisters<2, Registers>(tiles, tile, rows).run(lanes, sums + panel * kLanes);
    else
      RowRegisters<1, Registers>(tiles, tile, rows).run(lanes, sums + panel * kLanes);
  }
}

} // namespace octavo
