// The tiles of linear_int_tile.h in tile registers; linear_byte_tile.cpp and linear_word_tile.cpp make them.
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

// Pairs of words that hold numbers of 16 bits, as linear_dot.h orders them, to one of their lower bytes and one of their
// upper bytes, in the order of bytes.
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

// The operands as bytes: as they are, or made of 16 bits.
template <Coding C> struct ByteOperands {
  static constexpr bool kSplit = C == Coding::words;
  static constexpr int kUnitCodes = 8 * kTileBytes;
  const uint8_t* codes; // [units][panels][8 words][64]
  const uint8_t* low;   // [rows][kCodeRun]
  const uint8_t* high = nullptr;
  alignas(64) uint8_t made[kSplit ? kScratchUnits * kMostPanels * kUnitCodes + 2 * kMostCodedRows * kCodeRun : 64];

  ByteOperands(const IntTile& t, int rows, int panels) : codes(t.codes), low(t.inputs) {
    if constexpr (kSplit) {
      uint8_t* lower = made + kScratchUnits * kMostPanels * kUnitCodes;
      uint8_t* upper = lower + kMostCodedRows * kCodeRun;
      narrow_codes(t.codes, int64_t{t.units} * panels * 8, made);
      split_words(t.inputs, int64_t{rows} * kCodeRun / 4, lower, upper);
      codes = made;
      low = lower;
      high = upper;
    }
  }
};

template <Coding C, IntTileKind const& Kind, int Wide, class Registers> class IntRegisters {
  static constexpr int kGroups = kUnit / Kind.group; // of a unit
  static constexpr bool kOne = kGroups * span_units(C) == 1;
  static constexpr bool kSplit = C == Coding::words;
  static constexpr int kInner = Kind.group / 4;
  static constexpr bool kSignedCodes = kSplit && Kind.is_signed; // those of bytes are raised, see kRaise
  static constexpr TileSigns kWhole = kSignedCodes ? TileSigns::both : TileSigns::inputs;
  static constexpr TileSigns kLower = kSignedCodes ? TileSigns::weights : TileSigns::none;
  static_assert(kRaise == 128, "codes meet signed inputs as unsigned bytes");

public:
  IntRegisters(Registers& tiles, const IntTile& t, const ByteOperands<C>& bytes, int panels)
      : tiles_(tiles), t_(t), bytes_(bytes), panels_(panels) {}

  // Rows from `row` on, at most a register's, and Wide panels from `panel` on.
  void run(int row, int rows, int panel) {
    constexpr int kSpan = span_units(C);
    row_ = row;
    rows_ = rows;
    panel_ = panel;
    tiles_.shape({rows, kSplit ? rows : 0, kInner});
    for (int64_t unit = 0, span = 0; unit < t_.units; ++span) {
      const int64_t last = unit + kSpan < t_.units ? unit + kSpan : t_.units;
      if constexpr (!kOne) memset(part_, 0, sizeof part_);
      for (; unit < last; ++unit)
        for (int group = 0; group < kGroups; ++group) {
          multiply(unit, group);
          close(unit * kGroups + group);
        }
      if constexpr (!kOne) close_span(span);
    }
  }

private:
  template <int P> void multiply_panel(const uint8_t* codes) {
    tiles_.template load<6 + P>(codes, kTileBytes);
    tiles_.template zero<P>();
    if constexpr (kSplit) {
      tiles_.template zero<2 + P>();
      tiles_.template add_bytes<P, 4, 6 + P, kLower>();
      tiles_.template add_bytes<2 + P, 5, 6 + P, kWhole>();
      tiles_.template store<2 + P>(upper_[P], kTileBytes);
    } else {
      tiles_.template add_bytes<P, 4, 6 + P, kWhole>();
    }
    tiles_.template store<P>(sum_[P], kTileBytes);
  }

  void multiply(int64_t unit, int group) {
    const int64_t input = row_ * kCodeRun + unit * kUnit + group * Kind.group;
    tiles_.template load<4>(bytes_.low + input, kCodeRun);
    if constexpr (kSplit) tiles_.template load<5>(bytes_.high + input, kCodeRun);
    const uint8_t* codes = bytes_.codes + (unit * panels_ + panel_) * ByteOperands<C>::kUnitCodes +
                           group * kInner * kTileBytes;
    multiply_panel<0>(codes);
    if constexpr (Wide == 2) multiply_panel<1>(codes + ByteOperands<C>::kUnitCodes);
  }

  Vec16 sum_of(int r, int p, int32_t start) const {
    __m512i sum = _mm512_add_epi32(_mm512_load_si512(sum_[p][r]), _mm512_set1_epi32(start));
    if constexpr (kSplit) sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_load_si512(upper_[p][r]), 8));
    return to_float(Int16{sum});
  }

  float* total_of(int r, int p) const { return t_.total + ((row_ + r) * panels_ + panel_ + p) * kLanes; }

  void close(int64_t group) {
    const int64_t row = group * t_.stride + row_;
    for (int p = 0; p < Wide; ++p) {
      const int64_t at = (group * panels_ + panel_ + p) * kLanes;
      const Vec16 scale = load(t_.scales + at);
      for (int r = 0; r < rows_; ++r) {
        const Vec16 sum = sum_of(r, p, Kind.starts ? t_.starts[row + r] : 0);
        Vec16 next = fma(scale, sum, kOne ? zero() : load(part_[p][r]));
        if constexpr (Kind.mins) next = fma(load(t_.mins + at), set1(t_.sums[row + r]), next);
        if constexpr (kOne)
          store(total_of(r, p), fma(set1(t_.input_scales[row + r]), next, load(total_of(r, p))));
        else
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
  const ByteOperands<C>& bytes_;
  const int panels_;
  int row_ = 0, rows_ = 0, panel_ = 0;
  alignas(64) int32_t sum_[Wide][kTileHeight][kLanes];
  alignas(64) int32_t upper_[kSplit ? Wide : 1][kTileHeight][kLanes]; // of products with upper bytes
  alignas(64) float part_[Wide][kTileHeight][kLanes];
};

template <int Group, bool Mins, bool Starts, bool Signed> struct IntKinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed, false}; // conversions cost little here
};

inline void fetch_ahead(const Ahead& ahead) {
  if (!ahead.first) return;
  for (int line = 0; line < ahead.most; ++line)
    __builtin_prefetch(ahead.first + (line >> ahead.lines) * ahead.stride +
                           (line & ((1 << ahead.lines) - 1)) * kTileBytes, 0, 2);
}

template <Coding C, IntTileKind const& Kind, class Registers>
void run_in_registers(Registers& tiles, const IntTile& tile, const ByteOperands<C>& bytes, int rows, int panels) {
  IntRegisters<C, Kind, 1, Registers> one(tiles, tile, bytes, panels);
  IntRegisters<C, Kind, 2, Registers> two(tiles, tile, bytes, panels);
  for (int row = 0; row < rows; row += kTileHeight) {
    const int height = rows - row < kTileHeight ? rows - row : kTileHeight;
    if (panels == 1) one.run(row, height, 0);
    for (int panel = 0; panel + 2 <= panels; panel += 2) two.run(row, height, panel);
  }
}

template <Coding C, int Group, bool Mins, bool Starts, bool Signed, bool>
void run_int_tile(const IntTile& tile, int rows, int panels) {
  using Kinds = IntKinds<Group, Mins, Starts, Signed>;
  const ByteOperands<C> bytes(tile, rows, panels);
  fetch_ahead(tile.ahead);
  with_tiles([&](auto& tiles) {
    run_in_registers<C, Kinds::kind>(tiles, tile, bytes, rows, panels);
  });
}

} // namespace octavo
