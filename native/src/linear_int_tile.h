// The inner kernels of products of many rows with inputs in 8 bits.
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

struct IntTileKind {
  int group;
  bool mins, starts, is_signed;
};

// Rows of inputs against `panels` panels over `units` units of 32 inputs, at most a run.
struct IntTile {
  const uint8_t* codes; // [units][panels][8][64]
  int units;
  const uint8_t* inputs;     // [rows], kCodeRun apart
  int64_t stride;            // how far groups are apart below
  const float* scales;       // [groups][panels][16]
  const float* mins;         // likewise
  const float* input_scales; // [units], stride apart, of [rows]
  const float* sums;         // [groups], stride apart, of [rows]
  const int32_t* starts;     // likewise
  float* total;              // [rows][panels][16]
};

template <int Group, bool Mins, bool Starts, bool Signed> void run_int_tile(const IntTile& tile, int rows, int panels);

} // namespace octavo
