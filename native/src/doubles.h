// Eight numbers of double precision at a time, in one order on every instruction set: the compiler's own vectors, of
// which it makes what the target has. By reference: how vectors are passed depends on the target.
#pragma once
#include <stdint.h>
#include <string.h>

namespace octavo {

constexpr int64_t kDoubles = 8;

typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));
typedef int64_t Longs __attribute__((vector_size(kDoubles * sizeof(int64_t))));
typedef float Floats __attribute__((vector_size(kDoubles * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(kDoubles * sizeof(int32_t))));
typedef uint16_t Shorts __attribute__((vector_size(kDoubles * sizeof(uint16_t))));

inline void read(Doubles& to, const double* from) { memcpy(&to, from, sizeof(to)); }

inline void read(Doubles& to, const float* from) {
  Floats narrow;
  memcpy(&narrow, from, sizeof(narrow));
  to = __builtin_convertvector(narrow, Doubles);
}

// The first `count` < kDoubles, and `rest` behind them.
template <class Number> void read_some(Doubles& to, const Number* from, int64_t count, double rest) {
  double lanes[kDoubles];
  for (int64_t i = 0; i < kDoubles; ++i) lanes[i] = i < count ? static_cast<double>(from[i]) : rest;
  memcpy(&to, lanes, sizeof(to));
}

inline double sum_of(const Doubles& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// In place, e^x to about 1 ulp for x <= 0; 0 below -708, whose results would be subnormal. By 2^n e^r, |r| <= ln 2 / 2,
// and the series of e^r to its 13th power.
inline void exp_down(Doubles& x) {
  constexpr double kRound = 0x1.8p52; // added and taken away it rounds to integers, which its lowest bits then are
  const Doubles none = {};
  const Doubles least = none - 708.0;
  const Doubles bounded = x < least ? least : x;
  const Doubles shifted = bounded * 1.4426950408889634 + kRound;
  const Doubles n = shifted - kRound;
  const Doubles r = (bounded - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; // ln 2 in two parts
  Doubles p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  Longs bits;
  memcpy(&bits, &shifted, sizeof(bits));
  Longs exponent;
  memcpy(&exponent, &p, sizeof(exponent));
  exponent += bits << 52;
  Doubles scaled;
  memcpy(&scaled, &exponent, sizeof(scaled));
  x = x < least ? none : scaled;
}

} // namespace octavo
