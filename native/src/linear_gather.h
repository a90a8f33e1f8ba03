// Inputs of products that do not take them row after row as they are.
#pragma once
#include <stdint.h>

#include "linear_quantize.h"
#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

// Each head's inputs as rows of their own: [heads][rows][depth].
const float* gather_heads(Team& team, const float* x, const OctavoInstruction& code, int64_t rows, float* out);

// What the inputs of a segment are rounded to when `asked` for.
Coding coding_of(const OctavoSegment& segment, Coding asked);

// Whether inputs prepared for one segment serve the other, too.
bool same_inputs(const OctavoSegment& a, const OctavoSegment& b, Coding asked);

// Whether a segment's inputs are written anew before they are prepared. Those coded by rows are rotated as they are coded.
bool are_placed(const OctavoSegment& segment, Coding coding);

// out: [rows, cols] as the segment takes them; x may be out where the segment is not ordered.
void place_inputs(Team& team, const OctavoSegment& segment, const float* x, int64_t rows, float* out);

} // namespace octavo
