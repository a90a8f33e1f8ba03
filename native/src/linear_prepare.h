// The inputs of a product in the forms that its segments' kernels read.
#pragma once
#include "linear_kernels.h"
#include "thread_team.h"

namespace octavo {

constexpr int64_t kWorthSharing = 16384; // elements that one thread prepares as fast as the team

// Whether these many rows are few for the segments: dense products, and those in strips, take tiles of rows earlier.
bool are_few(const OctavoSegment* segments, int count, int64_t rows, Coding coding);

// What the segments' formats need beside the inputs themselves.
struct Needs {
  bool values = false, exact = false, bf16 = false, sums16 = false, sums32 = false;
  Coding coding = Coding::none;
  bool rotated = false; // with Coding::rows
  bool code_sums16 = false, code_sums32 = false;
  unsigned starts = 0; // bits of indices of kStarts
};

Needs needs_of(const OctavoSegment* segments, int count, Coding coding);

// How much memory prepared inputs take; a multiple of 16.
int64_t prepared_floats(const Needs& needs, const RowLayout& layout);

// x: [layout.rows, layout.cols], row after row, `sets` products' rows one after the other; a tile's rows are of one
// set. memory: prepared_floats(...), 64-byte aligned.
LinearInputs prepare(Team& team, const Needs& needs, const float* x, const RowLayout& layout, int64_t sets,
                     float* memory);

} // namespace octavo
