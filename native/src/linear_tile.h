// The inner kernels of products of many rows: a tile of accumulators over one group of inputs.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "linear_quantize.h"

namespace octavo {

// For each of `rows` rows and `panels` panels: total = fma(scale, sum over the group, total), and the min's part.
struct FloatTile {
  const float* weights; // [panels] of [count][16], panel_stride floats apart
  int64_t panel_stride;
  int64_t count;       // inputs of the group
  const float* inputs; // [rows], kFloatRun apart
  const float* scales; // [panels][16], or null: 1
  const float* mins;   // [panels][16], or null: 0
  const float* sums;   // [rows]: the group's sum of inputs
  float* total;        // [rows][panels][16]
};

void run_float_tile(const FloatTile& tile, int rows, int panels);

} // namespace octavo
