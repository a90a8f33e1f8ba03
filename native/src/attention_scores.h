// What becomes of a row's scores over one part: capped, leant by distance, hidden where not seen, and made weights.
#pragma once
#include <math.h>

#include "attention_tile.h"
#include "simd/math.h"

namespace octavo {

// Numbers of at most 1 to the eight digits of bf16, in three operations (Dekker 1971, doi:10.1007/BF01397083; halves go
// either way). What is not a number stays so.
inline Vec16 rounded_weights(Vec16 exact) {
  const Vec16 spread = exact * set1(65537.0f);
  return spread - (spread - exact);
}

// scores: of the kPart keys of a part; the row sees first .. last - 1 of them, at least one. All of the kStretch keys
// around these are written. Lanes are always those of the part, so sums are in an order that depends on what the row
// sees alone.
struct SeenScores {
  static constexpr int kStretch = 64;
  float* scores;
  int first, last;

  int begin() const { return first / kStretch * kStretch; }
  int end() const { return (last + kStretch - 1) / kStretch * kStretch; }

  void cap(float limit) const {
    for (int at = begin(); at < end(); at += 16) {
      store(scores + at, tanh(load(scores + at) / set1(limit)) * set1(limit));
    }
  }

  // Adds slope times how far the key is from the query, which is negative; `distance` is the part's first key's.
  void lean(float slope, int64_t distance) const {
    static const float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int at = begin(); at < end(); at += 16) {
      const Vec16 far = load(kLanes) + set1(static_cast<float>(distance + at));
      store(scores + at, fma(far, set1(slope), load(scores + at)));
    }
  }

  // numbers: what is added, times `unit`, for a key at -reach - 16 .. reach + 15 from the query; `distance` as for `lean`.
  void add_by_distance(const float* numbers, float unit, int64_t reach, int64_t distance) const {
    for (int at = begin(); at < end(); at += 16) {
      int64_t far = distance + at;
      if (far > reach) far = reach;
      if (far < -reach - 16) far = -reach - 16;
      store(scores + at, fma(load(numbers + far + reach + 16), set1(unit), load(scores + at)));
    }
  }

  // Hides what is not seen, of the vectors that to_weights makes weights; the largest score of each lane. NaN is passed
  // over; it comes back with the weights.
  Vec16 largest_lanes() const {
    if (first > 0) hide_others();
    const Vec16 none = set1(-INFINITY);
    Vec16 most[4] = {none, none, none, none};
    int at = begin();
    for (; at + kStretch <= last; at += kStretch) {
#pragma GCC unroll 4
      for (int place = 0; place < 4; ++place) most[place] = max(load(scores + at + 16 * place), most[place]);
    }
    for (; at + 16 <= last; at += 16) most[0] = max(load(scores + at), most[0]);
    if (at < last) {
      if (first == 0) hide(at, 0, last - at);
      most[1] = max(load(scores + at), most[1]);
    }
    return max(max(most[0], most[1]), max(most[2], most[3]));
  }

  // Scores become 2^(score - largest), rounded to bf16 or not; returns their sums, lane by lane. Vectors after the last
  // key that is seen are left as they are. Packed: rounded ones become bf16, key by key from where the scores began.
  template <bool Rounded, bool Packed = false> Vec16 to_weights(float largest) const {
    const Vec16 top = set1(largest);
    Vec16 sums[4] = {zero(), zero(), zero(), zero()};
    const auto weigh = [&](int at, int place) {
      const Vec16 exact = exp2_down(load(scores + at) - top);
      const Vec16 weights = Rounded ? rounded_weights(exact) : exact;
      if constexpr (Packed) {
        store_bf16_again(reinterpret_cast<uint16_t*>(scores) + at, weights);
      } else {
        store(scores + at, weights);
      }
      sums[place] = sums[place] + weights;
    };
    int at = begin();
    for (; at + kStretch <= last; at += kStretch) {
#pragma GCC unroll 4
      for (int place = 0; place < 4; ++place) weigh(at + 16 * place, place);
    }
#pragma GCC unroll 4
    for (int place = 0; place < 4; ++place) {
      if (at + 16 * place < last) weigh(at + 16 * place, place);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

private:
  void hide_others() const {
    for (int at = begin(); at < first; at += 16) hide(at, first - at < 16 ? first - at : 16, 16);
    if (last % 16 != 0) hide(last / 16 * 16, 0, last % 16);
  }

  // Keeps lanes first .. last - 1.
  void hide(int at, int keep_first, int keep_last) const {
    store(scores + at, keep_range(load(scores + at), keep_first, keep_last, -INFINITY));
  }
};

} // namespace octavo
