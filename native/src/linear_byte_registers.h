// The products of linear_byte_rows.h in tile registers; linear_byte_tile.cpp makes them.
//
// A group's sum of products is exact in 32 bits however it is taken, and what follows are the steps of
// linear_byte_tile_body.h: results are those of that kernel and of the one for few rows, to the bit.
#pragma once
#include <string.h>

#include <type_traits>

#include "linear_byte_rows.h"
#include "linear_dot.h"
#include "tile_registers.h"

namespace octavo {

template <ByteKind const& Kind, int Panels, class Registers> class ByteRegisters {
  static constexpr int kGroups = kUnit / Kind.group; // of a unit

public:
  ByteRegisters(Registers& tiles, const ByteRows& t) : tiles_(tiles), t_(t) {}

  // At most kTileHeight rows. totals: [rows][lanes], zeros
  void run(int rows, float* totals) {
    rows_ = rows;
    tiles_.shape({rows, 0, Kind.group / 4});
    for (int64_t unit = 0; unit < t_.units; ++unit)
      for (int group = 0; group < kGroups; ++group) {
        multiply(unit, group);
        close(unit, group, totals);
      }
  }

private:
  template <int P> void multiply_panel(const uint8_t* codes) {
    tiles_.template load<6 + P>(codes, kTileBytes);
    tiles_.template zero<P>();
    tiles_.template add_bytes<P, 4, 6 + P, TileSigns::weights>();
    tiles_.template store<P>(sum_[P], kTileBytes);
  }

  void multiply(int64_t unit, int group) {
    constexpr int64_t kRunUnits = kCodeRun / kUnit;
    const uint8_t* inputs = t_.inputs + unit / kRunUnits * t_.run_stride + unit % kRunUnits * kUnit;
    tiles_.template load<4>(inputs + group * Kind.group, kCodeRun);
    const uint8_t* codes = t_.codes + unit * 8 * kTileBytes + group * Kind.group / 4 * kTileBytes;
    multiply_panel<0>(codes);
    if constexpr (Panels == 2) multiply_panel<1>(codes + t_.panel_stride);
  }

  void close(int64_t unit, int group, float* totals) {
    const int64_t number = unit * kGroups + group;
    for (int p = 0; p < Panels; ++p) {
      const int64_t at = number * t_.lanes + p * kLanes;
      const Vec16 scale = load(t_.scales + at), lower = scale * set1(-kRaised);
      const __m512i start = _mm512_loadu_si512(t_.starts + at);
      for (int r = 0; r < rows_; ++r) {
        const Vec16 raised = as_floats({_mm512_add_epi32(_mm512_load_si512(sum_[p][r]), start)});
        const Vec16 part = load(part_[p][r]);
        Vec16 next = group == 0 ? close_raised<Kind, true>(raised, scale, lower, part)
                                : close_raised<Kind, false>(raised, scale, lower, part);
        if constexpr (Kind.mins) next = fma(load(t_.mins + at), set1(t_.sums[number * t_.stride + r]), next);
        float* total = totals + r * t_.lanes + p * kLanes;
        if (group == kGroups - 1)
          store(total, fma(set1(t_.input_scales[unit * t_.stride + r]), next, load(total)));
        else
          store(part_[p][r], next);
      }
    }
  }

  Registers& tiles_;
  const ByteRows t_;
  int rows_ = 0;
  alignas(64) int32_t sum_[Panels][kTileHeight][kLanes];
  alignas(64) float part_[Panels][kTileHeight][kLanes] = {};
};

template <int Group, bool Mins, bool Short> struct ByteKinds { static constexpr ByteKind kind{Group, Mins, Short}; };

template <int Group, bool Mins, bool Short>
void run_byte_rows(const ByteRows& all, int64_t rows, int panels, const Results& results) {
  using Kinds = ByteKinds<Group, Mins, Short>;
  const int64_t half = (all.ahead_end - all.ahead) / 2;
  for (int64_t line = 0; line < all.ahead_end - all.ahead; line += 64)
    __builtin_prefetch(all.ahead + line + (all.apart && line >= half ? all.apart - half : 0), 0, 2);
  with_tiles([&](auto& tiles) {
    using Registers = typename std::remove_reference<decltype(tiles)>::type;
    alignas(64) float totals[kTileHeight * kAllPanels * kLanes];
    for (int64_t row = 0; row < rows; row += kTileHeight) {
      const int count = static_cast<int>(rows - row < kTileHeight ? rows - row : kTileHeight);
      memset(totals, 0, sizeof totals);
      for (int panel = 0; panel < panels; panel += 2) {
        const ByteRows from = all.from_row(row).from_panel(panel);
        if (panel + 1 < panels)
          ByteRegisters<Kinds::kind, 2, Registers>(tiles, from).run(count, totals + panel * kLanes);
        else
          ByteRegisters<Kinds::kind, 1, Registers>(tiles, from).run(count, totals + panel * kLanes);
      }
      write_results(results, row, count, panels, totals);
    }
  });
}

} // namespace octavo
