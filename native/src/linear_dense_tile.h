// The inner kernel of dense products with many rows: a tile of accumulators over one group of inputs.
#pragma once
#include <stdint.h>

#include "dense_tiles.h"

namespace octavo {

// sum = one chain of multiply-adds from 0 over `count` words; then sum + total (null: 0) goes to `out`, after bias and
// residual where there are any. Pointers to float of the first row and lane.
struct DenseTile {
  const uint8_t* weights; // [panels] of [count][16] words, panel_stride bytes apart
  int64_t panel_stride;
  float* widened; // null, or where the weights are written as floats: [panels], kDenseGroup * 16 apart, of [count][16]
  int64_t count;
  const void* inputs;    // [count][rows] words; in tiles [rows], input_words apart, of [count filled with 0]
  int64_t input_words;
  const float* total;    // [rows][panels][16], or null
  const float* bias;     // [panels][16], or null
  const float* residual; // as out, or null
  float* out;            // [rows], row_stride apart, of [panels][16]
  int64_t row_stride;
  const uint8_t* ahead; // what will be read soon: [panels], panel_bytes apart, from here on
  int64_t panel_bytes;
  int64_t ahead_bytes; // of a panel, for each word of this call
};

// As what weights are read, and so what their words and those of the inputs are.
enum class DenseWeights {
  floats,
  f16,   // floats in the end
  bf16,  // likewise; an even count
  pairs, // of bf16, multiplied two at a time: only with AVX-512 BF16
  tiles, // likewise, by run_register_tile()
};

void run_dense_tile(const DenseTile& tile, DenseWeights weights, int rows, int panels);

} // namespace octavo
