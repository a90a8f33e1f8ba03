// The ops that read packed matrices.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

// Which input each column of a segment belongs to; null: its own.
inline const int32_t* order_of(const OctavoSegment& segment) {
  if (!is_ordered(segment.format)) return nullptr;
  const auto* data = static_cast<const uint8_t*>(segment.data);
  return reinterpret_cast<const int32_t*>(data + order_offset(segment.format, segment.rows, segment.cols));
}

// out = in0 @ w^T, then + bias, then + residual; out may be the residual's buffer. The order of every sum depends on
// the format and the depth alone: a row has the same bits whatever `rows` and the team are.
void linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep& step,
            int64_t rows);

// out = act(gate) * up, the halves of in0 @ w^T (+ bias), to the bits that linear() and act_mul() give.
void gated_linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program,
                  const OctavoStep& step, int64_t rows);

// out[:, h] = in0[:, h, :depth] @ w_h^T for every head h: rows of in0 hold i[2] elements a head, and w_h is segment h.
void head_linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep& step,
                 int64_t rows);

// out[t] = row ids[t] of the table, each value as GGUF defines it: (d * scale) * code + min, rounded at each step.
void embed(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep& step,
           int64_t rows);

} // namespace octavo
