#include "quantize_steps.h"

#include <math.h>
#include <string.h>

#include "formats.h"
#include "simd/math.h"
#include "simd/vec.h"

namespace octavo {
namespace {

constexpr float kLargest = 127.0f, kFine = 16.0f, kLevels = 15.0f;
constexpr int kSteps = 3;                        // that are tried for a group
constexpr int kStarts[] = {0, -2, -1, 1, 2};     // that are tried for each: fifths of a step from the middle

// Sixteen groups, one a lane.
struct Groups {
  Vec16 x[kUnit]; // sixteenths
};
struct Line { // byte = step code + start
  Vec16 step, start;
};

float largest_of_row(const float* y, int64_t cols) {
  Vec16 most = zero();
  for (int64_t k = 0; k < cols; k += kLanes) most = max(most, absolute(load(y + k)));
  return largest(most);
}

Groups read_groups(const float* y, int count) {
  Groups groups;
  for (int k = 0; k < kUnit; ++k) {
    float lane[kLanes];
    for (int i = 0; i < kLanes; ++i) lane[i] = y[(i < count ? i : 0) * kUnit + k];
    groups.x[k] = load(lane);
  }
  return groups;
}

// The largest integer that is not above a multiple of 1 / parts, both exact.
Vec16 floor_parts(Vec16 numerator, float parts) {
  return round_int((numerator - set1(0.5f * (parts - 1.0f))) / set1(parts));
}

inline Vec16 code_of(Vec16 x, Line line, Vec16 inverse) {
  return max(min(round_int((x - line.start * set1(kFine)) * inverse), set1(kLevels)), zero());
}
Vec16 inverse_of(Line line) { return set1(1.0f) / (line.step * set1(kFine)); }

Vec16 error_of(const Groups& groups, Line line) {
  const Vec16 inverse = inverse_of(line);
  Vec16 error = zero();
  for (int k = 0; k < kUnit; ++k) {
    const Vec16 byte = fma(code_of(groups.x[k], line, inverse), line.step, line.start);
    const Vec16 rest = groups.x[k] - byte * set1(kFine);
    error = fma(rest, rest, error);
  }
  return error;
}

Line best_line(const Groups& groups) {
  Vec16 most = groups.x[0], least = groups.x[0];
  for (int k = 1; k < kUnit; ++k) most = max(most, groups.x[k]), least = min(least, groups.x[k]);
  const Vec16 up = zero() - floor_parts(least - most, kLevels * kFine);
  const Vec16 widest = min(max(up, set1(1.0f)), set1(17.0f));
  Line best{widest, widest};
  Vec16 best_error = set1(INFINITY);
  for (int smaller = 0; smaller < kSteps; ++smaller) {
    const Vec16 step = max(widest - set1(static_cast<float>(smaller)), set1(1.0f));
    const Vec16 middle = floor_parts(most + least - step * set1(kLevels * kFine) + set1(kFine), 2.0f * kFine);
    for (const int fifths : kStarts) {
      const Vec16 moved = middle + floor_parts(step * set1(static_cast<float>(2 * fifths)) + set1(5.0f), 10.0f);
      const Line line{step, max(min(moved, set1(kLargest) - step * set1(kLevels)), set1(-128.0f))};
      const Vec16 error = error_of(groups, line);
      best = {select_less(error, best_error, line.step, best.step),
              select_less(error, best_error, line.start, best.start)};
      best_error = select_less(error, best_error, error, best_error);
    }
  }
  return best;
}

void write_groups(const Groups& groups, int count, uint8_t* codes, uint8_t* steps, uint8_t* starts) {
  const Line line = best_line(groups);
  const Vec16 inverse = inverse_of(line);
  float code[kUnit][kLanes], step[kLanes], start[kLanes];
  for (int k = 0; k < kUnit; ++k) store(code[k], code_of(groups.x[k], line, inverse));
  store(step, line.step);
  store(start, line.start);
  for (int lane = 0; lane < count; ++lane) {
    for (int k = 0; k < kUnit; k += 2)
      *codes++ = static_cast<uint8_t>(static_cast<int>(code[k][lane]) | static_cast<int>(code[k + 1][lane]) << 4);
    steps[lane] = static_cast<uint8_t>(step[lane]);
    starts[lane] = static_cast<uint8_t>(static_cast<int>(start[lane]));
  }
}

} // namespace

void write_stepped_row(float* y, int64_t cols, uint8_t* out) {
  const float most = largest_of_row(y, cols), scale = most / kLargest > 0.0f ? most / kLargest : 1.0f;
  const Vec16 divisor = set1(scale);
  for (int64_t k = 0; k < cols; k += kLanes) store(y + k, round_int(load(y + k) / divisor * set1(kFine)));
  const int64_t groups = cols / kUnit;
  uint8_t* const steps = out + cols / 2 + sizeof scale;
  memcpy(out + cols / 2, &scale, sizeof scale);
  for (int64_t group = 0; group < groups; group += kLanes) {
    const int count = static_cast<int>(groups - group < kLanes ? groups - group : kLanes);
    write_groups(read_groups(y + group * kUnit, count), count, out + group * kUnit / 2, steps + group,
                 steps + groups + group);
  }
}

} // namespace octavo
