// Inputs of a product as integers: x = scale * code, one scale for a span of inputs of a row.
//
// scale = largest |x| of the span / largest code, code = x / scale to the nearest integer, ties to even. A row that
// holds a NaN or an infinity gets NaN for every scale, so that its results show it.
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

// What inputs are rounded to for the segments that can take it: nothing, 8 or 16 bits, or 8 bits with one scale for all
// of a row (code_row.h), which 8 bits are for some segments: coding_of() tells.
enum class Coding : int32_t { none = OCTAVO_CODING_EXACT, bytes = OCTAVO_CODING_INT8, words = OCTAVO_CODING_INT16, rows };

constexpr int code_bytes_of(Coding coding) { return coding == Coding::words ? 2 : 1; }

// Units of 32 inputs that share a scale; the last span of a row may have fewer. 8 bits are too few for an outlier and
// many others. For 16 bits one scale a row would do, but a product with a byte, summed over more, would not fit 32.
constexpr int span_units(Coding coding) { return coding == Coding::words ? 4 : 1; }
constexpr int64_t span_count(Coding coding, int64_t units) {
  return (units + span_units(coding) - 1) / span_units(coding);
}

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
constexpr int kCodeRun = 128; // whole spans

// What a sum of codes * inputs starts from where a format's codes are raised by an offset: -offset * sum of the input
// codes, over the inputs of a group.
struct Start {
  int offset, group;
};
constexpr Start kStarts[] = {{4, 16}, {32, 16}, {8, 32}, {16, 32}, {128, 32}};
constexpr int kStartCount = sizeof kStarts / sizeof *kStarts;
constexpr int start_index(int offset, int group) {
  int index = 0;
  while (index < kStartCount && !(kStarts[index].offset == offset && kStarts[index].group == group)) ++index;
  return index;
}

// For rows of `cols` inputs, a multiple of 32, as the layout says. Null: no format needs it. Per row:
struct CodedInputs {
  // [cols] signed, in the order that formats.h gives weights in: of eight inputs in 8 bits those at 0, 2, 4, 6, then at
  // 1, 3, 5, 7; in 16 bits at 0, 4, 2, 6, 1, 5, 3, 7
  uint8_t* codes;
  float* scales;                // [spans]
  float* sums16;                // [cols / 16] sums of codes
  float* sums32;                // [cols / 32]
  int32_t* starts[kStartCount]; // [cols / group]
  uint8_t raise;                // 128: codes of 8 bits are unsigned, code + 128
};

constexpr int kQuantizedRows = 8; // at once: numbers of a group of several rows stand together

// x: the first of `count` rows, at most kQuantizedRows, one after the other.
void quantize_rows(const float* x, Coding coding, const RowLayout& layout, int64_t row, int count,
                   const CodedInputs& out);

} // namespace octavo
