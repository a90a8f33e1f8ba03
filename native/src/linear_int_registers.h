// The tiles of linear_int_tile.h in tile registers; linear_word_tile.cpp makes them.
//
// A group's sum of products is exact in 32 bits however it is taken, and what follows is the arithmetic of
// linear_int_tile_body.h step by step: results are those of that kernel and of the one for few rows, to the bit. Inputs
// of 16 bits are 256 * their upper byte, which is signed, + their lower byte, which is not: two products.
#pragma once
#include "linear_dot.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"
#include "simd/vec.h"
#include "tile_registers.h"

namespace octavo {

// Pairs of words that hold numbers of 16 bits, as linear_dot.h orders them, to one of their lower bytes and one of
// their upper bytes, in the order of bytes.
inline void split_words(const uint8_t* from, int64_t pairs, uint8_t* low, uint8_t* high) {
  for (int64_t i = 0; i < pairs; ++i) {
    uint32_t words[2];
    memcpy(words, from + 8 * i, sizeof words);
    const uint32_t lower = (words[0] & 0x00ff00ffu) | (words[1] & 0x00ff00ffu) << 8;
    const uint32_t upper = (words[0] >> 8 & 0x00ff00ffu) | (words[1] & 0xff00ff00u);
    memcpy(low + 4 * i, &lower, sizeof lower);
    memcpy(high + 4 * i, &upper, sizeof upper);
  }
}

// The same of codes, which fit a byte: sixteen lanes of a word, then of the next.
inline void narrow_codes(const uint8_t* from, int64_t words, uint8_t* out) {
  for (int64_t i = 0; i < words; ++i) {
    const __m512i first = _mm512_loadu_si512(from + 128 * i), second = _mm512_loadu_si512(from + 128 * i + 64);
    const __m512i lower = _mm512_and_si512(first, _mm512_set1_epi32(0x00ff00ff));
    _mm512_store_si512(out + 64 * i, _mm512_or_si512(lower, _mm512_slli_epi16(second, 8)));
  }
}

// The operands of 16 bits as bytes.
struct ByteOperands {
  static constexpr int kUnitCodes = 8 * kTileBytes;
  const uint8_t *codes, *low, *high; // [units][panels][8 words][64]; [rows][kCodeRun]
  alignas(64) uint8_t made[kScratchUnits * kMostPanels * kUnitCodes + 2 * kMostCodedRows * kCodeRun];

  ByteOperands(const IntTile& t, int rows, int panels) {
    uint8_t* lower = made + kScratchUnits * kMostPanels * kUnitCodes;
    uint8_t* upper = lower + kMostCodedRows * kCodeRun;
    narrow_codes(t.codes, int64_t{t.units} * panels * 8, made);
    split_words(t.inputs, int64_t{rows} * kCodeRun / 4, lower, upper);
    codes = made;
    low = lower;
    high = upper;
  }
};

template <IntTileKind const& Kind, int Wide, class Registers> class IntRegisters {
  static constexpr int kSpan = span_units(Coding::words);
  static constexpr int kGroups = kUnit / Kind.group; // of a unit
  static constexpr int kInner = Kind.group / 4;
  static constexpr TileSigns kWhole = Kind.is_signed ? TileSigns::both : TileSigns::inputs;
  static constexpr TileSigns kLower = Kind.is_signed ? TileSigns::weights : TileSigns::none;

public:
  IntRegisters(Registers& tiles, const IntTile& t, const ByteOperands& bytes, int panels)
      : tiles_(tiles), t_(t), bytes_(bytes), panels_(panels) {}

  // Rows from `row` on, at most a register's, and Wide panels from `panel` on.
  void run(int row, int rows, int panel) {
    row_ = row;
    rows_ = rows;
    panel_ = panel;
    tiles_.shape({rows, rows, kInner});
    for (int64_t unit = 0, span = 0; unit < t_.units; ++span) {
      const int64_t last = unit + kSpan < t_.units ? unit + kSpan : t_.units;
      memset(part_, 0, sizeof part_);
      for (; unit < last; ++unit)
        for (int group = 0; group < kGroups; ++group) {
          multiply(unit, group);
          close(unit * kGroups + group);
        }
      close_span(span);
    }
  }

private:
  template <int P> void multiply_panel(const uint8_t* codes) {
    tiles_.template load<6 + P>(codes, kTileBytes);
    tiles_.template zero<P>();
    tiles_.template zero<2 + P>();
    tiles_.template add_bytes<P, 4, 6 + P, kLower>();
    tiles_.template add_bytes<2 + P, 5, 6 + P, kWhole>();
    tiles_.template store<2 + P>(upper_[P], kTileBytes);
    tiles_.template store<P>(sum_[P], kTileBytes);
  }

  void multiply(int64_t unit, int group) {
    const int64_t input = row_ * kCodeRun + unit * kUnit + group * Kind.group;
    tiles_.template load<4>(bytes_.low + input, kCodeRun);
    tiles_.template load<5>(bytes_.high + input, kCodeRun);
    const uint8_t* codes =
        bytes_.codes + (unit * panels_ + panel_) * ByteOperands::kUnitCodes + group * kInner * kTileBytes;
    multiply_panel<0>(codes);
    if constexpr (Wide == 2) multiply_panel<1>(codes + ByteOperands::kUnitCodes);
  }

  Vec16 sum_of(int r, int p, int32_t start) const {
    const __m512i upper = _mm512_slli_epi32(_mm512_load_si512(upper_[p][r]), 8);
    const __m512i lower = _mm512_add_epi32(_mm512_load_si512(sum_[p][r]), _mm512_set1_epi32(start));
    return to_float(Int16{_mm512_add_epi32(lower, upper)});
  }

  float* total_of(int r, int p) const { return t_.total + ((row_ + r) * panels_ + panel_ + p) * kLanes; }

  void close(int64_t group) {
    const int64_t row = group * t_.stride + row_;
    for (int p = 0; p < Wide; ++p) {
      const int64_t at = (group * panels_ + panel_ + p) * kLanes;
      const Vec16 scale = load(t_.scales + at);
      for (int r = 0; r < rows_; ++r) {
        const Vec16 sum = sum_of(r, p, Kind.starts ? t_.starts[row + r] : 0);
        Vec16 next = fma(scale, sum, load(part_[p][r]));
        if constexpr (Kind.mins) next = fma(load(t_.mins + at), set1(t_.sums[row + r]), next);
        store(part_[p][r], next);
      }
    }
  }

  void close_span(int64_t span) {
    for (int p = 0; p < Wide; ++p)
      for (int r = 0; r < rows_; ++r) {
        const Vec16 input = set1(t_.input_scales[span * t_.stride + row_ + r]);
        store(total_of(r, p), fma(input, load(part_[p][r]), load(total_of(r, p))));
      }
  }

  Registers& tiles_;
  const IntTile& t_;
  const ByteOperands& bytes_;
  const int panels_;
  int row_ = 0, rows_ = 0, panel_ = 0;
  alignas(64) int32_t sum_[Wide][kTileHeight][kLanes];
  alignas(64) int32_t upper_[Wide][kTileHeight][kLanes]; // of products with upper bytes
  alignas(64) float part_[Wide][kTileHeight][kLanes];
};

template <int Group, bool Mins, bool Starts, bool Signed> struct IntKinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed};
};

inline void fetch_ahead(const Ahead& ahead) {
  if (!ahead.first) return;
  for (int line = 0; line < ahead.most; ++line)
    __builtin_prefetch(
        ahead.first + (line >> ahead.lines) * ahead.stride + (line & ((1 << ahead.lines) - 1)) * kTileBytes, 0, 2);
}

template <IntTileKind const& Kind, class Registers>
void run_in_registers(Registers& tiles, const IntTile& tile, const ByteOperands& bytes, int rows, int panels) {
  IntRegisters<Kind, 1, Registers> one(tiles, tile, bytes, panels);
  IntRegisters<Kind, 2, Registers> two(tiles, tile, bytes, panels);
  for (int row = 0; row < rows; row += kTileHeight) {
    const int height = rows - row < kTileHeight ? rows - row : kTileHeight;
    if (panels == 1) one.run(row, height, 0);
    for (int panel = 0; panel + 2 <= panels; panel += 2) two.run(row, height, panel);
  }
}

template <Coding C, int Group, bool Mins, bool Starts, bool Signed>
void run_int_tile(const IntTile& tile, int rows, int panels) {
  static_assert(C == Coding::words, "linear_byte_registers.h has the bytes");
  using Kinds = IntKinds<Group, Mins, Starts, Signed>;
  const ByteOperands bytes(tile, rows, panels);
  fetch_ahead(tile.ahead);
  with_tiles([&](auto& tiles) { run_in_registers<Kinds::kind>(tiles, tile, bytes, rows, panels); });
}

} // namespace octavo
