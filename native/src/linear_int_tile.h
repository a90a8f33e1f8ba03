// The inner kernels of products of many rows with inputs in 8 bits.
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

struct IntTileKind {
  int group;
  bool mins, starts, is_signed;
};

// Rows of inputs against `panels` panels over `units` units of 32 inputs. What belongs to a group of inputs stands
// once a group; `cols` is the number of inputs of a whole row, which tells how far rows are apart.
struct IntTile {
  const uint8_t* codes; // [units][panels][8][64]
  int units;
  const uint8_t* inputs; // [rows], cols apart
  int64_t cols;
  const float* scales;       // [groups][panels][16]
  const float* mins;         // likewise
  const float* input_scales; // [rows], cols / 32 apart
  const float* sums;         // [rows], cols / group apart
  const int32_t* starts;     // likewise
  float* total;              // [rows][panels][16]
};

template <int Group, bool Mins, bool Starts, bool Signed> void run_int_tile(const IntTile& tile, int rows, int panels);

} // namespace octavo
