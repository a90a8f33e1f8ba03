// What is done to one head of a token: its norm, its rotation, and how its numbers become those of the cache.
#pragma once
#include <math.h>
#include <stdint.h>

#include "kernels.h"
#include "simd/math.h"

namespace octavo {

// out = norm(x) * gain; a null gain is 1. In place is fine.
inline void norm_head(const float* x, const float* gain, float* out, int64_t width, float eps) {
  Vec16 squares = zero();
  for (int64_t at = 0; at < width; at += 16) {
    const Vec16 values = load_up_to(x + at, width - at);
    squares = fma(values, values, squares);
  }
  const Vec16 factor = set1(1.0f / sqrtf(sum(squares) / static_cast<float>(width) + eps));
  for (int64_t at = 0; at < width; at += 16) {
    const int64_t left = width - at;
    Vec16 values = load_up_to(x + at, left) * factor;
    if (gain != nullptr) values = values * load_up_to(gain + at, left);
    store_up_to(out + at, values, left);
  }
}

// In place: pairs (i, i + rotary / 2).
inline void rotate_head(float* x, const float* cos, const float* sin, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t at = 0; at < half; at += 16) {
    const int64_t count = half - at;
    const Vec16 c = load_up_to(cos + at, count);
    const Vec16 s = load_up_to(sin + at, count);
    const Vec16 left = load_up_to(x + at, count);
    const Vec16 right = load_up_to(x + half + at, count);
    store_up_to(x + at, left * c - right * s, count);
    store_up_to(x + half + at, right * c + left * s, count);
  }
}

// Format: one of cache_types.h whose elements are floats.
template <class Format> void store_row(const float* x, typename Format::Type* out, int64_t width) {
  int64_t at = 0;
  for (; at + 16 <= width; at += 16) Format::store16(out + at, load(x + at));
  for (; at < width; ++at) out[at] = Format::from(x[at]);
}

// Codes of all groups of a row, and their scales, one block apart.
template <class Format>
void encode_row(const float* x, int64_t width, uint8_t* codes, uint16_t* scales, int64_t block_size) {
  const int64_t size = Format::kGrouped ? kScaleGroup : width;
  for (int64_t at = 0, group = 0; at < width; at += size, ++group) {
    const uint16_t scale = Format::encode(x + at, at + size < width ? size : width - at, codes + at);
    if constexpr (Format::kScaled) scales[group * block_size] = scale;
  }
}

// The sequence of the step that a token belongs to.
inline int64_t sequence_of(const Step& step, int64_t token) {
  int64_t low = 0;
  int64_t high = step.sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (step.query_starts[middle] <= token)
      low = middle;
    else
      high = middle;
  }
  return low;
}

} // namespace octavo
