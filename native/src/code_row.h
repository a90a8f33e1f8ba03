// Rows of inputs as signed bytes with one scale a row: what meets weights with one scale a row.
//
// y = H x for each 64 inputs where the weights are rotated (simd/hadamard.h; H / 8 is orthonormal), else y = x.
// code = y * (127 / largest |y|) to the nearest integer, ties to even; scale = largest |y| / 127, with a rotation / 8,
// so that H / 8 x = scale * code. A row that holds a NaN or an infinity has the scale NaN, so that its results show it.
// Outliers would take the precision of the whole row: the rotation spreads each over 64 numbers.
#pragma once
#include <stdint.h>

namespace octavo {

// Where rows' codes go: runs of kCodeRun inputs, run_stride bytes apart, each in the order of linear_quantize.h.
struct RowCodes {
  uint8_t* codes;
  int64_t run_stride, row_stride;
  uint8_t raise; // 128: code + 128, unsigned
};

// x: [count][cols], cols a multiple of 32, with a rotation of kRotated. turned: [2 cols] of memory. scales: [count].
void code_rows(const float* x, int64_t count, int64_t cols, bool rotated, float* turned, const RowCodes& to,
               float* scales);

// out = H x / 8 for each 64 inputs; it may be x.
void rotate_row(const float* x, int64_t cols, float* out);

} // namespace octavo
