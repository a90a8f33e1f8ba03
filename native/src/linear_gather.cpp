#include "linear_gather.h"

#include <string.h>

#include "linear.h"
#include "linear_prepare.h"

namespace octavo {

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

bool same_order(const OctavoSegment& a, const OctavoSegment& b) {
  const int32_t *first = order_of(a), *second = order_of(b);
  if (!first || !second) return first == second;
  return memcmp(first, second, static_cast<size_t>(a.cols) * sizeof *first) == 0;
}

void gather(Team& team, const float* x, const int32_t* order, int64_t rows, int64_t cols, float* out) {
  team.parallel_ranges(rows, kWorthSharing / (cols + 1) + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t k = 0; k < cols; ++k) out[row * cols + k] = x[row * cols + order[k]];
  });
}

} // namespace octavo
