// Inputs of a product as numbers of 8 bits: x = scale * code, one scale for every unit of 32 inputs of a row.
//
// scale = largest |x| / 127, code = x / scale to the nearest integer, ties to even. A row that holds a NaN or an
// infinity gets NaN for every scale, so that its results show it.
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

constexpr int kOffsets = 8; // a format's dot_offset is a power of two below 2^kOffsets

// One block of memory for rows of `cols` inputs, a multiple of 32. Null: no format needs it. Per row:
struct CodedInputs {
  uint8_t* codes;            // [cols] signed; in each eight inputs first those at 0, 2, 4, 6, then those at 1, 3, 5, 7
  float* scales;             // [cols / 32]
  float* sums16;             // [cols / 16] scale * sum of 16 codes
  float* sums32;             // [cols / 32] likewise of 32
  int32_t* starts[kOffsets]; // at log2 of a format's dot_offset: [cols / the format's group] -offset * sum of the codes
};

void quantize_row(const float* x, int64_t cols, int64_t row, const CodedInputs& out);

// Inputs that share a start at log2 of an offset: groups of 16 or 32, told by the offset alone.
constexpr int start_group(int log_offset) { return log_offset == 2 || log_offset == 5 ? 16 : 32; }

} // namespace octavo
