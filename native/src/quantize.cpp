// Rounds rows of plain numbers to blocks of 32, as a file of that format would hold them.
//
//   q8_0  d = largest |x| / 127, codes to nearest.
//   q4_1  x = d code + m. From several ranges, the widest that of the block itself, codes are rounded and d and m
//   fitted
//         to them by least squares, twice; the choice with the least squared error is kept. Ranges narrower than the
//         block's cut off its extremes, which pays where few numbers are far out.
//   e4m3  one scale a row: largest |x| / 448, codes to nearest.
//   int8  of a rotated row (code_row.h) one scale: largest |y| / 127, codes y * (127 / largest |y|) to nearest.
#include <math.h>
#include <string.h>

#include "code_row.h"
#include "formats.h"
#include "linear_codes.h"
#include "quantize_steps.h"
#include "octavo/abi.h"
#include "simd/math.h"
#include "square.h"
#include "thread_team.h"

namespace octavo {
namespace {

constexpr float kRanges[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.7f};
constexpr int kFits = 2;
constexpr float kLevels = 15.0f; // steps of a 4-bit code

struct Block {
  Vec16 low, high;
};

struct Line { // value = d code + m
  float d, m;
};

Block read_block(int32_t format, const uint8_t* row, int64_t first) {
  if (format == OCTAVO_F32) {
    float values[kUnit];
    memcpy(values, row + first * 4, sizeof values);
    return {load(values), load(values + 16)};
  }
  uint16_t halves[kUnit];
  memcpy(halves, row + first * 2, sizeof halves);
  if (format == OCTAVO_F16) return {load_f16(halves), load_f16(halves + 16)};
  return {load_bf16(halves), load_bf16(halves + 16)};
}

void write_half(float value, uint8_t* out) {
  const uint16_t bits = to_f16(value);
  memcpy(out, &bits, 2);
}

float through_half(float value) { return from_f16(to_f16(value)); }

float largest_of(const Block& b) { return largest(max(b.low, b.high)); }
float smallest_of(const Block& b) { return -largest(max(zero() - b.low, zero() - b.high)); }

void store_codes(const Block& codes, uint8_t (&out)[kUnit]) {
  float values[kUnit];
  store(values, codes.low);
  store(values + 16, codes.high);
  for (int k = 0; k < kUnit; ++k) out[k] = static_cast<uint8_t>(static_cast<int32_t>(values[k]));
}

Block codes_of_8(const Block& x, float inverse) {
  const Vec16 by = set1(inverse), limit = set1(127.0f);
  const auto code = [&](Vec16 v) { return max(min(round_int(v * by), limit), zero() - limit); };
  return {code(x.low), code(x.high)};
}

void write_q8_0(const Block& x, uint8_t* out) {
  const float most = largest(max(absolute(x.low), absolute(x.high)));
  const float d = through_half(most / 127.0f);
  uint8_t codes[kUnit];
  store_codes(codes_of_8(x, d > 0.0f ? 1.0f / d : 0.0f), codes);
  write_half(d, out);
  memcpy(out + 2, codes, sizeof codes);
}

Block codes_of(const Block& x, Line line) {
  const Vec16 inverse = set1(line.d != 0.0f ? 1.0f / line.d : 0.0f), m = set1(line.m);
  const auto code = [&](Vec16 v) { return max(min(round_int((v - m) * inverse), set1(kLevels)), zero()); };
  return {code(x.low), code(x.high)};
}

float error_of(const Block& x, const Block& codes, Line line) {
  const Vec16 d = set1(line.d), m = set1(line.m);
  const Vec16 low = x.low - fma(codes.low, d, m), high = x.high - fma(codes.high, d, m);
  return sum(fma(high, high, low * low));
}

// Least squares of x over the codes; `line` when they are all the same.
Line fit(const Block& x, const Block& codes, Line line) {
  constexpr float kCount = kUnit;
  const float q = sum(codes.low + codes.high), v = sum(x.low + x.high);
  const float qq = sum(fma(codes.high, codes.high, codes.low * codes.low));
  const float qv = sum(fma(codes.high, x.high, codes.low * x.low));
  const float spread = kCount * qq - q * q;
  if (!(spread > 0.0f)) return line;
  const float d = (kCount * qv - q * v) / spread;
  return {d, (v - d * q) / kCount};
}

void write_q4_1(const Block& x, uint8_t* out) {
  const float least = smallest_of(x), range = largest_of(x) - least;
  Line best{through_half(range / kLevels), through_half(least)}; // infinite if 16 bits do not hold it: packing refuses
  float best_error = INFINITY;
  for (const float share : kRanges) {
    Line line{range * share / kLevels, least + 0.5f * range * (1.0f - share)};
    for (int turn = 0; turn <= kFits; ++turn) {
      const Line stored{through_half(line.d), through_half(line.m)};
      const Block codes = codes_of(x, stored);
      const float error = error_of(x, codes, stored);
      if (error < best_error) best = stored, best_error = error;
      line = fit(x, codes, line);
    }
  }
  uint8_t codes[kUnit];
  store_codes(codes_of(x, best), codes);
  write_half(best.d, out);
  write_half(best.m, out + 2);
  for (int k = 0; k < 16; ++k) out[4 + k] = static_cast<uint8_t>(codes[k] | codes[k + 16] << 4);
}

// --- the same of sixteen blocks at once, one a lane: every sum in the order of a block alone, so the same bits ---

struct Lanes {
  Vec16 x[kUnit];
};

struct Lines {
  Vec16 d, m;
};

// Sums over the inputs of each block: squared errors, codes, their squares, and codes times values.
struct Sums {
  Vec16 error, q, qq, qv;
};

inline Sums operator+(const Sums& a, const Sums& b) { return {a.error + b.error, a.q + b.q, a.qq + b.qq, a.qv + b.qv}; }

// Adds half(0) to half(15), each that of inputs i and i + 16, in the order of sum().
template <int Apart = 1, class F> inline auto sum_halves(const F& half, int first = 0) {
  if constexpr (Apart == 16)
    return half(first);
  else
    return sum_halves<2 * Apart>(half, first) + sum_halves<2 * Apart>(half, first + Apart);
}

Vec16 through_half(Vec16 value) {
  uint16_t halves[kLanes];
  store_f16(halves, value);
  return load_f16(halves);
}

Vec16 as_vector(const Square<float>& square, int row) {
  float line[kLanes];
  memcpy(line, &square.row[row], sizeof line);
  return load(line);
}

void set_row(Square<float>& square, int row, Vec16 values) {
  float line[kLanes];
  store(line, values);
  memcpy(&square.row[row], line, sizeof line);
}

Lanes read_lanes(int32_t format, const uint8_t* source, int64_t first) {
  Square<float> low, high;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Block block = read_block(format, source, (first + lane) * kUnit);
    set_row(low, lane, block.low);
    set_row(high, lane, block.high);
  }
  turn(low);
  turn(high);
  Lanes all;
  for (int k = 0; k < kLanes; ++k) all.x[k] = as_vector(low, k), all.x[k + 16] = as_vector(high, k);
  return all;
}

Vec16 inverse_of(Lines line) { return select_less(zero(), absolute(line.d), set1(1.0f) / line.d, zero()); }

inline Vec16 code_of(Vec16 x, Lines line, Vec16 inverse) {
  return max(min(round_int((x - line.m) * inverse), set1(kLevels)), zero());
}

// Of a line that is not fitted again the error alone.
template <bool Fitted> Sums sums_of(const Lanes& all, Lines line) {
  const Vec16 inverse = inverse_of(line);
  const auto half = [&](int i) {
    const Vec16 x = all.x[i], y = all.x[i + 16];
    const Vec16 low = code_of(x, line, inverse), high = code_of(y, line, inverse);
    const Vec16 low_error = x - fma(low, line.d, line.m), high_error = y - fma(high, line.d, line.m);
    const Vec16 error = fma(high_error, high_error, low_error * low_error);
    if constexpr (Fitted)
      return Sums{error, low + high, fma(high, high, low * low), fma(high, y, low * x)};
    else
      return error;
  };
  if constexpr (Fitted)
    return sum_halves(half);
  else
    return {sum_halves(half), zero(), zero(), zero()};
}

// v: sums of the blocks' values.
Lines fit(const Sums& sums, Lines line, Vec16 v) {
  const Vec16 count = set1(kUnit), spread = count * sums.qq - sums.q * sums.q;
  const Vec16 d = (count * sums.qv - sums.q * v) / spread;
  const Vec16 m = (v - d * sums.q) * set1(1.0f / kUnit); // exactly what dividing gives: a power of two
  return {select_less(zero(), spread, d, line.d), select_less(zero(), spread, m, line.m)};
}

Lines best_lines(const Lanes& all) {
  const Vec16 v = sum_halves([&](int i) { return all.x[i] + all.x[i + 16]; });
  Vec16 least = zero() - all.x[0], most = all.x[0];
  for (int k = 1; k < kUnit; ++k) least = max(least, zero() - all.x[k]), most = max(most, all.x[k]);
  least = least * set1(-1.0f);
  const Vec16 range = most - least;
  constexpr int kChoices = sizeof kRanges / sizeof *kRanges;
  Lines tried[kChoices][kFits + 1];
  Vec16 errors[kChoices][kFits + 1];
  for (int choice = 0; choice < kChoices; ++choice) {
    const Vec16 share = set1(kRanges[choice]), width = range * share;
    tried[choice][0] = {width / set1(kLevels), least + set1(0.5f) * range * (set1(1.0f) - share)};
  }
  // Turn by turn, not choice by choice: what one choice is divided by is ready when its turn comes again.
  for (int turn = 0; turn <= kFits; ++turn) {
    for (int choice = 0; choice < kChoices; ++choice) {
      Lines& line = tried[choice][turn];
      const Lines wanted = line;
      line = {through_half(wanted.d), through_half(wanted.m)};
      const Sums sums = turn < kFits ? sums_of<true>(all, line) : sums_of<false>(all, line);
      errors[choice][turn] = sums.error;
      if (turn < kFits) tried[choice][turn + 1] = fit(sums, wanted, v);
    }
  }
  Lines best{through_half(range / set1(kLevels)), through_half(least)};
  Vec16 best_error = set1(INFINITY);
  for (int choice = 0; choice < kChoices; ++choice) {
    for (int turn = 0; turn <= kFits; ++turn) { // as a block alone is tried: of equals the first
      const Lines& line = tried[choice][turn];
      const Vec16 error = errors[choice][turn];
      best = {select_less(error, best_error, line.d, best.d), select_less(error, best_error, line.m, best.m)};
      best_error = select_less(error, best_error, error, best_error);
    }
  }
  return best;
}

void write_q4_1_lanes(const Lanes& all, uint8_t* out, int64_t stride) {
  const Lines best = best_lines(all);
  const Vec16 inverse = inverse_of(best);
  Square<float> bytes; // of two codes each
  for (int k = 0; k < kLanes; ++k) {
    const Vec16 low = code_of(all.x[k], best, inverse), high = code_of(all.x[k + 16], best, inverse);
    set_row(bytes, k, fma(high, set1(16.0f), low));
  }
  turn(bytes);
  uint16_t d[kLanes], m[kLanes];
  store_f16(d, best.d);
  store_f16(m, best.m);
  for (int lane = 0; lane < kLanes; ++lane, out += stride) {
    memcpy(out, d + lane, 2);
    memcpy(out + 2, m + lane, 2);
    float line[kLanes];
    memcpy(line, &bytes.row[lane], sizeof line);
    for (int k = 0; k < kLanes; ++k) out[4 + k] = static_cast<uint8_t>(static_cast<int32_t>(line[k]));
  }
}

// Scales of sixteen blocks at once; codes block by block.
void write_q8_0_lanes(int32_t format, const uint8_t* source, int64_t first, uint8_t* out) {
  Square<float> size;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Block x = read_block(format, source, (first + lane) * kUnit);
    set_row(size, lane, max(absolute(x.low), absolute(x.high)));
  }
  turn(size);
  Vec16 most = as_vector(size, 0);
  for (int k = 1; k < kLanes; ++k) most = max(most, as_vector(size, k));
  const Vec16 d = through_half(most / set1(127.0f));
  uint16_t halves[kLanes];
  float inverse[kLanes];
  store_f16(halves, d);
  store(inverse, select_less(zero(), d, set1(1.0f) / d, zero()));
  constexpr int64_t kBytes = format_of(OCTAVO_Q8_0).source_bytes;
  for (int lane = 0; lane < kLanes; ++lane) {
    uint8_t codes[kUnit];
    store_codes(codes_of_8(read_block(format, source, (first + lane) * kUnit), inverse[lane]), codes);
    memcpy(out + lane * kBytes, halves + lane, 2);
    memcpy(out + lane * kBytes + 2, codes, sizeof codes);
  }
}

// Blocks that follow each other in memory.
void write_q8_0_blocks(int32_t format, const uint8_t* source, int64_t count, uint8_t* out) {
  constexpr int64_t kBytes = format_of(OCTAVO_Q8_0).source_bytes;
  int64_t block = 0;
  for (; block + kLanes <= count; block += kLanes) write_q8_0_lanes(format, source, block, out + block * kBytes);
  for (; block < count; ++block) write_q8_0(read_block(format, source, block * kUnit), out + block * kBytes);
}

void write_q4_1_blocks(int32_t format, const uint8_t* source, int64_t count, uint8_t* out) {
  constexpr int64_t kBytes = format_of(OCTAVO_Q4_1).source_bytes;
  int64_t block = 0;
  for (; block + kLanes <= count; block += kLanes)
    write_q4_1_lanes(read_lanes(format, source, block), out + block * kBytes, kBytes);
  for (; block < count; ++block) write_q4_1(read_block(format, source, block * kUnit), out + block * kBytes);
}

// The nearest of the format's numbers, ties to even; |value| <= 448. Below 2^-6 they are multiples of 2^-9.
uint8_t to_e4m3(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t size = bits & 0x7fffffff;
  const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
  const auto small = static_cast<uint32_t>(nearbyintf(fabsf(value) * 512.0f));
  return static_cast<uint8_t>((size < 0x3c800000 ? small : normal) | bits >> 31 << 7);
}

constexpr float kLargestE4m3 = 448.0f;
constexpr int32_t kE4m3Rows = OCTAVO_E4M3 + OCTAVO_SCALE_F32 * OCTAVO_SCALE_TYPE + OCTAVO_WHOLE_ROW * OCTAVO_SPAN;

// Codes, then the scale: what makes the row's largest number the format's.
void write_e4m3_row(int32_t format, const uint8_t* row, int64_t cols, uint8_t* out) {
  Vec16 most = zero();
  for (int64_t k = 0; k < cols; k += kUnit) {
    const Block x = read_block(format, row, k);
    most = max(most, max(absolute(x.low), absolute(x.high)));
  }
  const float scale = largest(most) > 0.0f ? largest(most) / kLargestE4m3 : 1.0f;
  const Vec16 divisor = set1(scale), limit = set1(kLargestE4m3);
  for (int64_t k = 0; k < cols; k += kUnit) {
    const Block x = read_block(format, row, k);
    float values[kUnit];
    store(values, max(min(x.low / divisor, limit), zero() - limit));
    store(values + 16, max(min(x.high / divisor, limit), zero() - limit));
    for (int i = 0; i < kUnit; ++i) out[k + i] = to_e4m3(values[i]);
  }
  memcpy(out + cols, &scale, sizeof scale);
}

constexpr int32_t kInt8Rows =
    OCTAVO_INT8 + OCTAVO_SCALE_F32 * OCTAVO_SCALE_TYPE + OCTAVO_WHOLE_ROW * OCTAVO_SPAN + OCTAVO_ROTATED;

constexpr int32_t kSteppedRows =
    OCTAVO_INT4S + OCTAVO_SCALE_F32 * OCTAVO_SCALE_TYPE + OCTAVO_WHOLE_ROW * OCTAVO_SPAN + OCTAVO_ROTATED;

void read_rotated(int32_t format, const uint8_t* row, int64_t cols, float* y) {
  for (int64_t k = 0; k < cols; k += kUnit) {
    const Block x = read_block(format, row, k);
    store(y + k, x.low);
    store(y + k + kLanes, x.high);
  }
  rotate_row(y, cols, y);
}

// Codes, then the scale. y: [cols], rotated.
void write_int8_row(const float* y, int64_t cols, uint8_t* out) {
  Vec16 most16 = zero();
  for (int64_t k = 0; k < cols; k += kLanes) most16 = max(most16, absolute(load(y + k)));
  const float most = largest(most16), scale = most > 0.0f ? most / 127.0f : 1.0f;
  const Vec16 inverse = set1(most > 0.0f ? 127.0f / most : 0.0f), limit = set1(127.0f);
  for (int64_t k = 0; k < cols; k += kLanes) {
    float codes[kLanes];
    store(codes, max(min(round_int(load(y + k) * inverse), limit), zero() - limit));
    for (int i = 0; i < kLanes; ++i) out[k + i] = static_cast<uint8_t>(static_cast<int32_t>(codes[i]));
  }
  memcpy(out + cols, &scale, sizeof scale);
}

bool all_finite(const float* y, int64_t cols) {
  Vec16 probe = zero();
  for (int64_t k = 0; k < cols; k += kLanes) probe = fma(load(y + k), zero(), probe);
  return sum(probe) == 0.0f;
}

// A row whose numbers are too large to be rotated has a scale that is none: found when the row is packed.
// y: [cols], overwritten.
void write_rotated_row(int32_t format, const uint8_t* row, int64_t cols, int32_t target, float* y, uint8_t* out) {
  read_rotated(format, row, cols, y);
  if (!all_finite(y, cols)) {
    const float none = __builtin_nanf("");
    memset(out, 0, static_cast<size_t>(source_row_bytes(target, cols)));
    memcpy(out + (target == kInt8Rows ? cols : cols / 2), &none, sizeof none);
    return;
  }
  if (target == kInt8Rows)
    write_int8_row(y, cols, out);
  else
    write_stepped_row(y, cols, out);
}

} // namespace
} // namespace octavo

int32_t octavo_quantize(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, int32_t target,
                        void* blocks) {
  using namespace octavo;
  const Format from = format_of(format), to = format_of(target);
  const bool rotated = target == kInt8Rows || target == kSteppedRows, of_rows = target == kE4m3Rows || rotated;
  if (!from.known() || !from.dense() || (target != OCTAVO_Q8_0 && target != OCTAVO_Q4_1 && !of_rows)) return -1;
  if (cols % to.block) return -2;
  const int64_t row_bytes = cols * from.source_bytes, count = cols / to.block;
  auto& threads = *static_cast<Team*>(team);
  threads.parallel_ranges(rows, 65536 / cols + 1, [&](int64_t begin, int64_t end, int thread) {
    const uint8_t* first = static_cast<const uint8_t*>(source) + begin * row_bytes;
    uint8_t* out = static_cast<uint8_t*>(blocks);
    if (target == OCTAVO_Q4_1)
      return write_q4_1_blocks(format, first, (end - begin) * count, out + begin * count * to.source_bytes);
    if (target == OCTAVO_Q8_0)
      return write_q8_0_blocks(format, first, (end - begin) * count, out + begin * count * to.source_bytes);
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from_row = static_cast<const uint8_t*>(source) + row * row_bytes;
      uint8_t* to_row = out + row * source_row_bytes(target, cols);
      if (target == kE4m3Rows) {
        write_e4m3_row(format, from_row, cols, to_row);
        continue;
      }
      write_rotated_row(format, from_row, cols, target, threads.scratch(thread, static_cast<size_t>(cols)), to_row);
    }
  });
  return 0;
}
