// Products of many rows with matrices of f32, f16 or bf16.
#pragma once
#include "linear_kernels.h"
#include "thread_team.h"

namespace octavo {

struct DenseProduct {
  const OctavoSegment* segments; // those of block formats are left out
  int segment_count;
  LinearInputs in;
  int64_t rows;          // of inputs that a segment reads
  int64_t set;           // segment s reads the rows from s * set on: 0 or `rows`
  int64_t first_output;  // the column of the first segment's first row
  const float* bias;     // null: none
  const float* residual; // null: none
  float* out;
  int64_t width;        // of a row of out; the segments' outputs follow each other
  const Gating* gating; // null: none; segments are its gate
};

void dense_rows(Team& team, const DenseProduct& product);

} // namespace octavo
