// One product as its instruction tells it, and what its parts are to the files that deal it out.
#pragma once
#include "activation.h"
#include "linear_kernels.h"
#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

struct Product {
  const OctavoSegment* segments;
  int segment_count;
  LinearInputs in;
  int64_t first_input;   // the prepared row that is row 0 here
  int64_t first_output;  // the column of the first segment's first row
  const float* bias;     // null: none
  const float* residual; // null: none
  float* out;
  int64_t width;
  int64_t rows;
  Coding coding;
  const OctavoInstruction* after; // the product that comes next, or null
  const Gating* gating;           // null: none; the one segment is its gate
};

inline Strip strip_at(const OctavoSegment& segment, int64_t panel) {
  Strip strip{static_cast<const uint8_t*>(segment.data), panel_layout(segment.format, segment.cols)};
  strip.panels += panel * strip.layout.bytes;
  return strip;
}

// The product that comes next in the program, or in the next step.
const OctavoInstruction* product_after(const OctavoInstruction& instruction, const OctavoProgram& program);

// Whether gates and what they let through, of `width` each, have equal panels side by side or one after the other.
bool find_gating(const OctavoSegment* segments, int count, int64_t width, Gating& gating);

// Many rows of the segments whose kernels take all rows of a strip; others are left out.
void all_rows(Team& team, const Product& product);
// Likewise rows of a product of one segment, by one thread inside of a task; false when its kernel does not.
bool all_rows_of(Team& team, int thread, const Product& product, int64_t row, int64_t rows);

} // namespace octavo
