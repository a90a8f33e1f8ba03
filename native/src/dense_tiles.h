// How the inputs of dense products with many rows stand: tiles of rows, the inputs outermost inside a tile.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "simd/vec.h"

namespace octavo {

// Accumulators that fit the registers: rows x panels of 16 lanes.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kDenseTall = 14, kDensePanels = 2;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kDenseTall = 6, kDensePanels = 1;
#else
constexpr int kDenseTall = 2, kDensePanels = 1;
#endif

#if defined(OCTAVO_VARIANT_AMX)
constexpr bool kBf16InTiles = true; // bf16 is multiplied in the processor's tile registers
#else
constexpr bool kBf16InTiles = false;
#endif
constexpr int kBf16Tall = kBf16InTiles ? 32 : kDenseTall; // two registers of rows

// Rows in tiles as equal as can be, none taller than `tall`. A tile that begins with row r and is h tall has its
// words from r * words on, [words][h]: what one step of the inner loop reads stands together.
struct RowTiles {
  int64_t rows;
  int tall = kDenseTall;

  int64_t count() const { return (rows + tall - 1) / tall; }
  int64_t first(int64_t tile) const {
    const int64_t tiles = count(), more = rows % tiles;
    return tile * (rows / tiles) + (tile < more ? tile : more);
  }
  int height(int64_t tile) const { return static_cast<int>(first(tile + 1) - first(tile)); }
};

// What a word of a tile is.
enum class TileWords {
  exact,   // an input
  rounded, // an input rounded to bf16, as round_exchanged() orders them; an odd row is followed by a 0
  pairs,   // two inputs in bf16, the first below; an odd row is followed by a 0
  rows,    // pairs, but row after row as they come, each filled with 0 to words_in_tiles()
};

// Sixteen inputs rounded to bf16, of each two the second first: the order in which VDPBF16PS adds their products.
inline Vec16 round_exchanged(Vec16 inputs) {
#if defined(OCTAVO_ISA_AVX512)
  return {_mm512_castsi512_ps(_mm512_shuffle_epi32(
      _mm512_and_si512(round_upper_half(inputs), _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))),
      _MM_PERM_CDAB))};
#else
  uint16_t rounded[kLanes];
  store_bf16(rounded, inputs);
  for (int i = 0; i < kLanes; i += 2) {
    const uint16_t first = rounded[i];
    rounded[i] = rounded[i + 1];
    rounded[i + 1] = first;
  }
  return load_bf16(rounded);
#endif
}

// Words of a row of pairs that tile registers read: whole ones.
constexpr int64_t words_in_tiles(int64_t cols) { return (cols + 31) / 32 * 16; }

// A tile of `height` rows of x, [height, cols], from the tile's first row on.
void write_tile(const float* x, int64_t cols, TileWords kind, int height, float* out);

} // namespace octavo
