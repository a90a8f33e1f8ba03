// RMS norm, layer norm, and the residual addition fused with an RMS norm. A row is always one thread's: its sums have
// one order, given by the width alone.
#include <math.h>

#include "kernels.h"
#include "simd/math.h"

namespace octavo {
namespace {

constexpr int64_t kFloatsOfTask = 16384;

// f(row) for all rows, in parallel when that is worth waking anyone.
template <class F> void for_rows(Team& team, int64_t rows, int64_t width, F&& f) {
  const int64_t least = (kFloatsOfTask + width - 1) / width;
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

// The sum of term(vector, first column, columns) over the row, in four interleaved accumulators.
template <class F> float sum_row(int64_t width, F&& term) {
  Vec16 sums[4] = {zero(), zero(), zero(), zero()};
  int64_t column = 0;
  for (; column + 64 <= width; column += 64) {
    for (int i = 0; i < 4; ++i) sums[i] = term(column + 16 * i, int64_t{16}, sums[i]);
  }
  for (int i = 0; column < width; column += 16, ++i) sums[i] = term(column, width - column, sums[i]);
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float sum_of_squares(const float* x, int64_t width) {
  return sum_row(width, [=](int64_t column, int64_t left, Vec16 total) {
    const Vec16 values = load_up_to(x + column, left);
    return fma(values, values, total);
  });
}

// out = x * factor * gain; a null gain is 1.
void scale_by_gain(const float* x, float factor, const float* gain, float* out, int64_t width) {
  const Vec16 factors = set1(factor);
  for (int64_t column = 0; column < width; column += 16) {
    const int64_t left = width - column;
    Vec16 values = load_up_to(x + column, left) * factors;
    if (gain != nullptr) values = values * load_up_to(gain + column, left);
    store_up_to(out + column, values, left);
  }
}

float inverse_rms(float squares, int64_t width, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

void layer_norm_row(const float* x, const float* gain, const float* bias, float eps, float* out, int64_t width) {
  const float mean =
      sum_row(width, [=](int64_t column, int64_t left, Vec16 total) { return total + load_up_to(x + column, left); }) /
      static_cast<float>(width);
  const Vec16 means = set1(mean);
  const float squares = sum_row(width, [=](int64_t column, int64_t left, Vec16 total) {
    Vec16 values = load_up_to(x + column, left) - means;
    if (left < 16) values = keep_range(values, 0, static_cast<int>(left), 0.0f);
    return fma(values, values, total);
  });
  const Vec16 factor = set1(inverse_rms(squares, width, eps));
  for (int64_t column = 0; column < width; column += 16) {
    const int64_t left = width - column;
    Vec16 values = (load_up_to(x + column, left) - means) * factor;
    if (gain != nullptr) values = values * load_up_to(gain + column, left);
    if (bias != nullptr) values = values + load_up_to(bias + column, left);
    store_up_to(out + column, values, left);
  }
}

} // namespace

void rms_norm(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const int64_t width = code.width;
  const float* in = program.buffer[code.in0];
  const float* gain = static_cast<const float*>(code.p[0]);
  float* out = program.buffer[code.out];
  for_rows(team, rows, width, [&](int64_t row) {
    const float* x = in + row * width;
    scale_by_gain(x, inverse_rms(sum_of_squares(x, width), width, code.f[0]), gain, out + row * width, width);
  });
}

void layer_norm(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const int64_t width = code.width;
  const float* in = program.buffer[code.in0];
  const float* gain = static_cast<const float*>(code.p[0]);
  const float* bias = static_cast<const float*>(code.p[1]);
  float* out = program.buffer[code.out];
  for_rows(team, rows, width,
           [&](int64_t row) { layer_norm_row(in + row * width, gain, bias, code.f[0], out + row * width, width); });
}

void gated_norm(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const int64_t width = code.width / code.i[1];
  const float* in = program.buffer[code.in0];
  const float* gates = program.buffer[code.in1] + code.i[2];
  const float* gain = static_cast<const float*>(code.p[0]);
  float* out = program.buffer[code.out];
  for_rows(team, rows * code.i[1], width, [&](int64_t part) {
    const int64_t row = part / code.i[1];
    const int64_t first = part % code.i[1] * width;
    const float* x = in + row * code.width + first;
    const float* gate = gates + row * code.i[3] + first;
    float* products = out + row * code.width + first;
    const float squares = sum_row(width, [=](int64_t column, int64_t count, Vec16 total) {
      const Vec16 g = load_up_to(gate + column, count);
      const Vec16 values = load_up_to(x + column, count) * (g / (set1(1.0f) + exp(zero() - g)));
      store_up_to(products + column, values, count);
      return fma(values, values, total);
    });
    scale_by_gain(products, inverse_rms(squares, width, code.f[0]), gain == nullptr ? gain : gain + first, products,
                  width);
  });
}

void add_rms_norm(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const int64_t width = code.width;
  const float* left_in = program.buffer[code.in0];
  const float* right_in = program.buffer[code.in1];
  const float* gain = static_cast<const float*>(code.p[0]);
  float* sums_out = program.buffer[code.out2];
  float* out = program.buffer[code.out];
  for_rows(team, rows, width, [&](int64_t row) {
    const float* left = left_in + row * width;
    const float* right = right_in + row * width;
    float* sums = sums_out + row * width;
    const float squares = sum_row(width, [=](int64_t column, int64_t count, Vec16 total) {
      const Vec16 values = load_up_to(left + column, count) + load_up_to(right + column, count);
      store_up_to(sums + column, values, count);
      return fma(values, values, total);
    });
    scale_by_gain(sums, inverse_rms(squares, width, code.f[0]), gain, out + row * width, width);
  });
}

} // namespace octavo
