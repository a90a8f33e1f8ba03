// Inputs of products that do not take them row after row as they are.
#pragma once
#include <stdint.h>

#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

// Each head's inputs as rows of their own: [heads][rows][depth].
const float* gather_heads(Team& team, const float* x, const OctavoInstruction& code, int64_t rows, float* out);

// Whether two segments take their inputs in the same order.
bool same_order(const OctavoSegment& a, const OctavoSegment& b);

// Rows of x, [rows, cols], in such an order.
void gather(Team& team, const float* x, const int32_t* order, int64_t rows, int64_t cols, float* out);

} // namespace octavo
