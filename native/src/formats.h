// What every weight format looks like in a file and in a packed panel. One table; nothing else knows these numbers.
#pragma once
#include <cstdint>

#include "octavo/instruction.h"

namespace octavo {

constexpr int kLanes = 16;       // output rows of a panel
constexpr int kUnit = 32;        // inputs that are encoded together in the planes of a block format
constexpr int kSuperblock = 256; // inputs that share a K-quant's d and dmin

enum class Scale {
  none,     // a dense format
  half,     // one f16 a group
  exponent, // one E8M0 byte a group: 2^(e - 128)
  bytes,    // two levels: f16 d a superblock, one unsigned byte a group
  signed_bytes,
  nibbles, // two levels: one byte a group holds scale (low) and min (high)
  span,    // one number for a span of inputs, which groups share; with mins a byte that is the span's zero point
};

enum class Values { integers, iq4_nl, mxfp4, e4m3 };

// A packed panel is 16 rows, lane by lane. Its planes follow each other, each over all inputs:
//   dense:  [cols][16] of f32 or f16; bf16 as [cols / 2][16][2]
//   blocks: low codes, high codes, d, dmin, scales, mins or zero points, sums of codes; those a format lacks take nothing;
//           of zero points that are steps and starts those of a unit stand together, [2][16]
// and the panel is padded to 64 bytes. In a unit of 32 inputs the codes stand so:
//   8 bits  [4][2][16] words, input k of 8 at byte k / 2 of word k % 2
//   4 bits  [4][16] words, input k of 8 at bit 4 k
//   2 bits  [2][16] words, input k of 16 at bit 8 (k % 8 / 2) + 2 (2 (k / 8) + k % 2)
//   1 bit   [1][16] words, input k of 32 at bit 8 (k % 8 / 2) + 2 (k / 8) + k % 2
// so that a shift and a mask of a whole register give four inputs a lane, one a byte: those at 8 i + 2 byte + parity.
// Inputs in 8 bits stand in the same order, so that a lane's four are one word: see linear_quantize.h.
struct Format {
  int block;        // inputs of a source block; with spans: that rows are a multiple of
  int source_bytes; // of a source block; with spans: of the codes alone
  int low_bits;     // of an element when dense
  int high_bits;
  int group; // inputs that share a scale
  Scale scale;
  bool mins;
  int offset; // a code stands for code - offset
  Values values;

  constexpr bool known() const { return block != 0; }
  constexpr bool dense() const { return scale == Scale::none; }
  constexpr bool two_level() const {
    return scale == Scale::bytes || scale == Scale::signed_bytes || scale == Scale::nibbles;
  }
  // Whether products with inputs in 8 bits exist: codes must be integers.
  constexpr bool codable() const { return !dense() && values != Values::e4m3; }
};

// The parts of a number above its format. formats.h and instruction.h alone know where they are.
constexpr int32_t base_of(int32_t number) { return number & (OCTAVO_SCALE_TYPE - 1); }
constexpr int scale_type_of(int32_t number) { return number / OCTAVO_SCALE_TYPE % (OCTAVO_SPAN / OCTAVO_SCALE_TYPE); }
constexpr int span_of(int32_t number) { return number / OCTAVO_SPAN % (OCTAVO_ORDERED / OCTAVO_SPAN); }
constexpr bool is_ordered(int32_t number) { return number / OCTAVO_ORDERED % 2; }
constexpr bool is_rotated(int32_t number) { return number / OCTAVO_ROTATED % 2; }
constexpr int kRotated = 64; // inputs that are rotated together
constexpr int kMostSpan = 5; // 1024 inputs

// A span's code bytes for its inputs; a row is a multiple of them.
constexpr Format span_format(int32_t number, int bits, bool zeros, int offset, Values values) {
  const int span = span_of(number), type = scale_type_of(number);
  const bool rotated = is_rotated(number), turnable = values == Values::integers && !is_ordered(number);
  const bool known = number >= 0 && number < 2 * OCTAVO_ROTATED && type <= OCTAVO_SCALE_SHARED &&
                     (span <= kMostSpan || span == OCTAVO_WHOLE_ROW) && !(zeros && type == OCTAVO_SCALE_SHARED) &&
                     (!rotated || (turnable && span > 0));
  const int block = span != OCTAVO_WHOLE_ROW ? kUnit << span : rotated ? kRotated : kUnit;
  return known ? Format{block, block * bits / 8, bits, 0, kUnit, Scale::span, zeros, offset, values} : Format{};
}

// Kernels are made for the bare number.
constexpr Format stepped_format(int32_t number) {
  const bool whole = span_of(number) == OCTAVO_WHOLE_ROW && scale_type_of(number) == OCTAVO_SCALE_F32;
  const bool known = number == OCTAVO_INT4S || (whole && !is_ordered(number));
  return known ? span_format(number, 4, true, 0, Values::integers) : Format{};
}
// Whether each unit has a step and a start that make bytes of its codes.
constexpr bool has_steps(int32_t number) { return base_of(number) == OCTAVO_INT4S; }

constexpr Format format_of(int32_t number) {
  switch (base_of(number)) {
  case OCTAVO_INT4: return span_format(number, 4, false, 8, Values::integers);
  case OCTAVO_INT4Z: return span_format(number, 4, true, 0, Values::integers);
  case OCTAVO_INT8: return span_format(number, 8, false, 0, Values::integers);
  case OCTAVO_INT8Z: return span_format(number, 8, true, 0, Values::integers);
  case OCTAVO_E4M3: return span_format(number, 8, false, 0, Values::e4m3);
  case OCTAVO_INT4S: return stepped_format(number);
  default: break;
  }
  switch (number) {
  case OCTAVO_F32: return {1, 4, 32, 0, 0, Scale::none, false, 0, Values::integers};
  case OCTAVO_F16: return {1, 2, 16, 0, 0, Scale::none, false, 0, Values::integers};
  case OCTAVO_BF16: return {1, 2, 16, 0, 0, Scale::none, false, 0, Values::integers};
  case OCTAVO_Q4_0: return {32, 18, 4, 0, 32, Scale::half, false, 8, Values::integers};
  case OCTAVO_Q4_1: return {32, 20, 4, 0, 32, Scale::half, true, 0, Values::integers};
  case OCTAVO_Q5_0: return {32, 22, 4, 1, 32, Scale::half, false, 16, Values::integers};
  case OCTAVO_Q5_1: return {32, 24, 4, 1, 32, Scale::half, true, 0, Values::integers};
  case OCTAVO_Q8_0: return {32, 34, 8, 0, 32, Scale::half, false, 0, Values::integers};
  case OCTAVO_Q2_K: return {256, 84, 2, 0, 16, Scale::nibbles, true, 0, Values::integers};
  case OCTAVO_Q3_K: return {256, 110, 2, 1, 16, Scale::signed_bytes, false, 4, Values::integers};
  case OCTAVO_Q4_K: return {256, 144, 4, 0, 32, Scale::bytes, true, 0, Values::integers};
  case OCTAVO_Q5_K: return {256, 176, 4, 1, 32, Scale::bytes, true, 0, Values::integers};
  case OCTAVO_Q6_K: return {256, 210, 4, 2, 16, Scale::signed_bytes, false, 32, Values::integers};
  case OCTAVO_IQ4_NL: return {32, 18, 4, 0, 32, Scale::half, false, 0, Values::iq4_nl};
  case OCTAVO_MXFP4: return {32, 17, 4, 0, 32, Scale::exponent, false, 0, Values::mxfp4};
  default: return {};
  }
}

// The values of 4-bit codes that are not integers in order. Source: GGUF (ggml-common.h, kvalues) and OCP MX 1.0,
// 5.3.3 (E2M1, doubled; the scale is halved).
constexpr float kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Signed bytes with one scale a row: they meet inputs with one scale a row, see linear_rows.h. Behind a panel's scales
// stand int32 [16], the sums of the rows' codes.
constexpr bool has_row_sums(int32_t number) {
  return (base_of(number) == OCTAVO_INT8 && span_of(number) == OCTAVO_WHOLE_ROW) || has_steps(number);
}

// Byte offsets of the planes of one panel, and the panel's size; of formats with spans, what their scales are and how
// far a group's number is shifted to get its span's.
struct PanelLayout {
  int64_t low, high, super_scale, super_min, scale, min, sums, bytes;
  int scale_type, shift;
};

// Bytes of the scale of a span of 16 rows.
constexpr int64_t span_scale_bytes(int type) {
  return type == OCTAVO_SCALE_SHARED ? 4 : type == OCTAVO_SCALE_F32 ? 4 * kLanes : 2 * kLanes;
}

constexpr int64_t span_count(int32_t number, int64_t cols) {
  return span_of(number) == OCTAVO_WHOLE_ROW ? 1 : cols / (kUnit << span_of(number));
}

// Of a row in its source that belong to spans beside their scales: zero points, or steps and starts.
constexpr int64_t zero_bytes(int32_t number, int64_t cols) {
  if (has_steps(number)) return cols / kUnit * 2;
  return format_of(number).mins ? span_count(number, cols) : 0;
}

// Of a row in its source.
constexpr int64_t source_row_bytes(int32_t number, int64_t cols) {
  const Format f = format_of(number);
  const int64_t codes = cols / f.block * f.source_bytes;
  if (f.scale != Scale::span) return codes;
  const int type = scale_type_of(number);
  const int64_t scale = type == OCTAVO_SCALE_F16 || type == OCTAVO_SCALE_BF16 ? 2 : 4;
  return codes + span_count(number, cols) * scale + zero_bytes(number, cols);
}

constexpr PanelLayout panel_layout(int32_t number, int64_t cols) {
  const Format f = format_of(number);
  const int64_t even = number == OCTAVO_BF16 ? cols + cols % 2 : cols;
  const bool spans = f.scale == Scale::span;
  const int64_t groups = f.dense() ? 0 : spans ? span_count(number, cols) : cols / f.group;
  const int64_t super_bytes = f.two_level() ? cols / kSuperblock * kLanes * 2 : 0;
  const int64_t scale_bytes =
      spans ? groups * span_scale_bytes(scale_type_of(number)) : groups * kLanes * (f.scale == Scale::half ? 2 : 1);
  const int64_t min_bytes = f.mins && f.scale != Scale::nibbles ? (spans ? zero_bytes(number, cols) * kLanes : scale_bytes) : 0;
  PanelLayout layout{};
  layout.high = layout.low + even * kLanes / 8 * f.low_bits;
  layout.super_scale = layout.high + even * kLanes / 8 * f.high_bits;
  layout.super_min = layout.super_scale + super_bytes;
  layout.scale = layout.super_min + (f.mins ? super_bytes : 0);
  layout.min = layout.scale + scale_bytes;
  layout.sums = layout.min + min_bytes;
  layout.bytes = (layout.sums + (has_row_sums(number) ? 4 * kLanes : 0) + 63) / 64 * 64;
  layout.scale_type = scale_type_of(number);
  layout.shift = span_of(number) == OCTAVO_WHOLE_ROW ? 62 : span_of(number);
  return layout;
}

constexpr int64_t panel_count(int64_t rows) { return (rows + kLanes - 1) / kLanes; }

// Where the order of the inputs of an ordered segment stands, in bytes.
constexpr int64_t order_offset(int32_t number, int64_t rows, int64_t cols) {
  return panel_count(rows) * panel_layout(number, cols).bytes;
}

// The value of a code of OCTAVO_E4M3, times 2^8 as kernels take it: exponent and fraction at a float's place, where a
// set bit makes up for the bias; codes without exponent are plain multiples of 2^-9.
inline float e4m3_times_256(uint32_t code) {
  const uint32_t size = code & 127;
  const uint32_t bits = 0x40000000u | size << 20;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  if (size < 8) value = 0.5f * static_cast<float>(size);
  return code & 128 ? -value : value;
}
constexpr bool is_e4m3_nan(uint8_t code) { return (code & 127) == 127; }

} // namespace octavo
