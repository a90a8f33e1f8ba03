// How rows of floats become inputs of dot products with codes: queries, and weights times the scales of values.
#pragma once
#include <string.h>

#include "attention_scores.h"
#include "simd/fours.h"

namespace octavo {

// Floats as integers up to a bound, times one scale. Less than 2^-110 is nothing; when one is not finite the scale is
// NaN.
struct InputScale {
  float scale, factor;
  bool finite;

  // most: the largest magnitude.
  InputScale(float most, float bound) {
    finite = most < INFINITY;
    const bool any = finite && most > 0x1p-110f;
    factor = any ? bound / most : 0.0f;
    scale = any ? most / bound : finite ? 0.0f : NAN;
  }

  // Of `count` floats; inputs that are not finite are 0.
  InputSums round(const float* from, int64_t count, uint8_t* to) const {
    InputSums sums = no_inputs();
    if (!finite) {
      memset(to, 0, static_cast<size_t>((count + 15) / 16 * 16 * kInputBytes));
      return sums;
    }
    const Vec16 by = set1(factor);
    int64_t at = 0;
    for (; at + 32 <= count; at += 32) {
      store_inputs(to + at * kInputBytes, load(from + at) * by, load(from + at + 16) * by, sums);
    }
    for (; at < count; at += 16) store_inputs(to + at * kInputBytes, load_up_to(from + at, count - at) * by, sums);
    return sums;
  }
};

inline Vec16 largest_magnitudes(const float* from, int64_t count) {
  Vec16 most = zero();
  for (int64_t at = 0; at < count; at += 16) most = max_magnitude(load_up_to(from + at, count - at), most);
  return most;
}

// Weights below 2^-40 count for nothing: times a scale they could be subnormal, which is slow.
inline Vec16 scaled_weights(Vec16 weights, Vec16 scales) {
  return select_less(weights, set1(0x1p-40f), zero(), weights) * scales;
}

// What comes of a row's scores where values have scales. As of SeenScores, only vectors up to the last key that is seen
// are written.
struct CodedScores : SeenScores {
  void hide_others() const {
    for (int at = begin(); at < first; at += 16) hide(at, first, 16 + at, -INFINITY);
    if (last % 16 != 0) hide(last / 16 * 16, 0, last, -INFINITY);
  }

  // NaN is passed over; it comes back with the weights.
  Vec16 largest_lanes() const {
    Vec16 even = set1(-INFINITY), odd = even;
    int at = first / 16 * 16;
    for (; at + 16 < last; at += 32) {
      even = max(load(scores + at), even);
      odd = max(load(scores + at + 16), odd);
    }
    return at < last ? max(max(load(scores + at), even), odd) : max(even, odd);
  }

  struct Lanes {
    Vec16 sums, most;
  };

  // Scores become 2^(score - largest); the lanes of their sum are those of SeenScores::to_weights. With `Scaled` they
  // become weights times scales, of which those of keys that are not seen are 0, and the largest magnitudes are known.
  template <bool Scaled> Lanes to_weights(float largest, const float* scales) const {
    const Vec16 top = set1(largest);
    Vec16 sums[4] = {zero(), zero(), zero(), zero()}, most[2] = {zero(), zero()};
    const auto weigh = [&](int at, int place, auto whole) {
      const Vec16 weights = exp2_down(load(scores + at) - top);
      sums[place] = sums[place] + weights;
      if constexpr (Scaled) {
        Vec16 scaled = scaled_weights(weights, load(scales + at));
        if constexpr (!whole.value) scaled = seen_of(scaled, at, first, last, 0.0f);
        most[place % 2] = max_magnitude(scaled, most[place % 2]);
        store(scores + at, scaled);
      } else {
        store(scores + at, weights);
      }
    };
    for (int at = begin(); at < last; at += kStretch) {
      if (at >= first && at + kStretch <= last) {
#pragma GCC unroll 4
        for (int place = 0; place < 4; ++place) weigh(at + 16 * place, place, std::true_type{});
        continue;
      }
#pragma GCC unroll 4
      for (int place = 0; place < 4; ++place) {
        if (at + 16 * place < last) weigh(at + 16 * place, place, std::false_type{});
      }
    }
    return {(sums[0] + sums[1]) + (sums[2] + sums[3]), max_magnitude(most[0], most[1])};
  }

  // Weights times scales, written elsewhere; the largest magnitudes.
  Vec16 scale_to(float* to, const float* scales) const {
    Vec16 most = zero();
    for (int at = first / 16 * 16; at < last; at += 16) {
      Vec16 scaled = scaled_weights(load(scores + at), load(scales + at));
      if (at < first || at + 16 > last) scaled = seen_of(scaled, at, first, last, 0.0f);
      most = max_magnitude(scaled, most);
      store(to + at, scaled);
    }
    return most;
  }

private:
  // The lanes of keys from .. to - 1 of the vector at `at`.
  static Vec16 seen_of(Vec16 v, int at, int from, int to, float fill) {
    const auto lanes = [&](int key) { return key <= at ? 0 : key - at < 16 ? key - at : 16; };
    return keep_range(v, lanes(from), lanes(to), fill);
  }
  void hide(int at, int from, int to, float fill) const {
    store(scores + at, seen_of(load(scores + at), at, from, to, fill));
  }
};

} // namespace octavo
