// Choosing tokens of a row without sorting the vocabulary. "Better": the larger logit, then the smaller id.
#pragma once
#include <math.h>

#include <algorithm>

#include "simd/math.h"

namespace octavo {

struct Candidate {
  float value;
  int32_t id;
  double weight; // e^((value - largest) / temperature), where it is needed
};

inline bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// use(index) for every element above `threshold`, which use may raise.
template <class F> void for_above(const float* x, int64_t count, const float& threshold, F&& use) {
  for (int64_t at = 0; at < count; at += 16) {
    const int64_t left = count - at;
    const Vec16 values = load_up_to(x + at, left);
    uint32_t above = any_greater(values, set1(threshold));
    if (left < 16) above &= (1u << left) - 1u;
    while (above != 0) {
      const int64_t index = at + __builtin_ctz(above);
      above &= above - 1;
      if (x[index] > threshold) use(index);
    }
  }
}

inline int64_t top_capacity(int64_t k) { return 4 * k + 256; }

// The k best above -inf, in no order, to out [top_capacity(k)]; their number.
inline int64_t collect_top(const float* x, int64_t count, int64_t k, Candidate* out) {
  const int64_t capacity = top_capacity(k);
  float threshold = -INFINITY;
  int64_t found = 0;
  for_above(x, count, threshold, [&](int64_t index) {
    out[found++] = {x[index], static_cast<int32_t>(index), 0.0};
    if (found < capacity) return;
    std::nth_element(out, out + k - 1, out + found, better);
    found = k;
    threshold = out[k - 1].value; // a later equal has a larger id
  });
  if (found > k) {
    std::nth_element(out, out + k - 1, out + found, better);
    found = k;
  }
  return found;
}

// Of candidates in the order `ahead`, the last that is needed for their weights to reach `share` in sum. They are permuted.
template <class Ahead>
Candidate edge_of(Candidate* candidates, int64_t count, double share, const Ahead& ahead) {
  constexpr int64_t kFew = 64;
  int64_t low = 0;
  int64_t high = count;
  double before = 0.0; // weight of candidates[0 .. low), all ahead of the rest
  while (high - low > kFew) {
    const int64_t middle = (low + high) / 2;
    std::nth_element(candidates + low, candidates + middle, candidates + high, ahead);
    double half = 0.0;
    for (int64_t i = low; i < middle; ++i) half += candidates[i].weight;
    if (before + half < share) {
      before += half;
      low = middle;
    } else {
      high = middle;
    }
  }
  std::sort(candidates + low, candidates + high, ahead);
  int64_t edge = low;
  for (int64_t i = low; i < high && before < share; ++i) {
    edge = i;
    before += candidates[i].weight;
  }
  return candidates[edge];
}

} // namespace octavo
