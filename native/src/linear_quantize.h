// Inputs of a product as numbers of 8 bits: x = scale * code, one scale for every unit of 32 inputs of a row.
//
// scale = largest |x| / 127, code = x / scale to the nearest integer, ties to even. A row that holds a NaN or an
// infinity gets NaN for every scale, so that its results show it.
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

// How the numbers of `rows` rows stand. Kernels of few rows read one row after the other. Kernels of many rows read the
// same inputs of all rows, so these stand together, at a distance that is no power of two of memory: runs of kRun
// inputs of all rows, then the next runs.
struct RowLayout {
  int64_t rows, cols;
  bool in_runs;

  // The first of the inputs from k on, k a multiple of what is read at once; numbers of a run and of a row are counted.
  int64_t at(int64_t row, int64_t k, int64_t run) const {
    return in_runs ? (k / run * rows + row) * run + k % run : row * cols + k;
  }
  // Number `index` of `count` that a row has for its groups.
  int64_t of_group(int64_t row, int64_t index, int64_t count) const {
    return in_runs ? index * rows + row : row * count + index;
  }
  // How many a plane of inputs takes.
  int64_t size(int64_t run) const { return in_runs ? (cols + run - 1) / run * run * rows : rows * cols; }
};

constexpr int kFloatRun = 64; // inputs of a run in floats
constexpr int kCodeRun = 256;

constexpr int kOffsets = 8; // a format's dot_offset is a power of two below 2^kOffsets

// For rows of `cols` inputs, a multiple of 32, as the layout says. Null: no format needs it. Per row:
struct CodedInputs {
  uint8_t* codes;            // [cols] signed; in each eight inputs first those at 0, 2, 4, 6, then those at 1, 3, 5, 7
  float* scales;             // [cols / 32]
  float* sums16;             // [cols / 16] scale * sum of 16 codes
  float* sums32;             // [cols / 32] likewise of 32
  int32_t* starts[kOffsets]; // at log2 of a format's dot_offset: [cols / the format's group] -offset * sum of the codes
};

void quantize_row(const float* x, const RowLayout& layout, int64_t row, const CodedInputs& out);

// Inputs that share a start at log2 of an offset: groups of 16 or 32, told by the offset alone.
constexpr int start_group(int log_offset) { return log_offset == 2 || log_offset == 5 ? 16 : 32; }

} // namespace octavo
