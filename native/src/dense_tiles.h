// How the inputs of dense products with many rows stand: tiles of rows, the inputs outermost inside a tile.
#pragma once
#include <stdint.h>

namespace octavo {

// Accumulators that fit the registers: rows x panels of 16 lanes.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kDenseTall = 14, kDensePanels = 2;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kDenseTall = 6, kDensePanels = 1;
#else
constexpr int kDenseTall = 2, kDensePanels = 1;
#endif

// Rows in tiles as equal as can be, none taller than kDenseTall. A tile that begins with row r and is h tall has its
// words from r * words on, [words][h]: what one step of the inner loop reads stands together.
struct RowTiles {
  int64_t rows;

  int64_t count() const { return (rows + kDenseTall - 1) / kDenseTall; }
  int64_t first(int64_t tile) const {
    const int64_t tiles = count(), more = rows % tiles;
    return tile * (rows / tiles) + (tile < more ? tile : more);
  }
  int height(int64_t tile) const { return static_cast<int>(first(tile + 1) - first(tile)); }
};

// What a word of a tile is.
enum class TileWords {
  exact,   // an input
  rounded, // an input rounded to bf16; an odd row is followed by a 0
  pairs,   // two inputs in bf16, the first below; an odd row is followed by a 0
};

// A tile of `height` rows of x, [height, cols], from the tile's first row on.
void write_tile(const float* x, int64_t cols, TileWords kind, int height, float* out);

} // namespace octavo
