// Activations of gates: what ACT and ACT_MUL apply, and products whose results are gates and what they let through.
#pragma once
#include <stdint.h>

#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

// A product of two matrices of the same shape and format, of which only act(gate) * up is written. Panel by panel:
// the same panels of both belong to one task.
struct Gating {
  OctavoSegment gate, up;
  int32_t activation;

  int64_t apart() const { return static_cast<const uint8_t*>(up.data) - static_cast<const uint8_t*>(gate.data); }
};

// Rows of totals, those of gate and of up `stride` apart, and where act(gate) * up goes, rows out_stride apart.
struct GatedRows {
  float *gate, *up;
  int64_t stride;
  float* out;
  int64_t out_stride;
  int64_t rows, width;

  void add_bias(const float* gate_bias, const float* up_bias) const;
  void write(int32_t activation) const;
};

// ACT_MUL of rows [gate | up].
void gate_halves(Team& team, int32_t activation, const float* in, float* out, int64_t rows, int64_t width);

} // namespace octavo
