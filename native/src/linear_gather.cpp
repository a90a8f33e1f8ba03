#include "linear_gather.h"

#include <string.h>

#include "code_row.h"
#include "linear.h"
#include "linear_prepare.h"

namespace octavo {
namespace {

constexpr int64_t kMostRowInputs = 65536; // products of 255 and 128 of so many fit 32 bits

bool same_order(const OctavoSegment& a, const OctavoSegment& b) {
  const int32_t *first = order_of(a), *second = order_of(b);
  if (!first || !second) return first == second;
  return memcmp(first, second, static_cast<size_t>(a.cols) * sizeof *first) == 0;
}

} // namespace


const float* gather_heads(Team& team, const float* x, const OctavoInstruction& code, int64_t rows, float* out) {
  const int64_t heads = code.i[1], stride = code.i[2], depth = code.depth;
  const auto copy = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t head = 0; head < heads; ++head)
        memcpy(out + (head * rows + row) * depth, x + (row * heads + head) * stride,
               static_cast<size_t>(depth) * sizeof(float));
  };
  team.parallel_ranges(rows, kWorthSharing / (heads * depth) + 1, copy);
  return out;
}

Coding coding_of(const OctavoSegment& segment, Coding asked) {
  const bool rows = asked == Coding::bytes && has_row_sums(segment.format) && segment.cols <= kMostRowInputs;
  return rows ? Coding::rows : asked;
}

bool same_inputs(const OctavoSegment& a, const OctavoSegment& b, Coding asked) {
  return coding_of(a, asked) == coding_of(b, asked) && is_rotated(a.format) == is_rotated(b.format) && same_order(a, b);
}

bool are_placed(const OctavoSegment& segment, Coding coding) {
  return is_ordered(segment.format) || (is_rotated(segment.format) && coding != Coding::rows);
}

void place_inputs(Team& team, const OctavoSegment& segment, const float* x, int64_t rows, float* out) {
  const int64_t cols = segment.cols;
  const int32_t* order = order_of(segment);
  team.parallel_ranges(rows, kWorthSharing / (cols + 1) + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (!order)
        rotate_row(x + row * cols, cols, out + row * cols);
      else
        for (int64_t k = 0; k < cols; ++k) out[row * cols + k] = x[row * cols + order[k]];
    }
  });
}

} // namespace octavo
