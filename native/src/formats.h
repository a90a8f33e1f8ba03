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
};

enum class Values { integers, iq4_nl, mxfp4 };

// A packed panel is 16 rows, lane by lane. Its planes follow each other, each over all inputs:
//   dense:  [cols][16] of f32 or f16; bf16 as [cols / 2][16][2]
//   blocks: low codes, high codes, d, dmin, group scales, group mins; those a format lacks take nothing
// and the panel is padded to 64 bytes. In a unit of 32 inputs the codes stand so:
//   8 bits  [4][2][16] words, input k of 8 at byte k / 2 of word k % 2
//   4 bits  [4][16] words, input k of 8 at bit 4 k
//   2 bits  [2][16] words, input k of 16 at bit 8 (k % 8 / 2) + 2 (2 (k / 8) + k % 2)
//   1 bit   [1][16] words, input k of 32 at bit 8 (k % 8 / 2) + 2 (k / 8) + k % 2
// so that a shift and a mask of a whole register give four inputs a lane, one a byte: those at 8 i + 2 byte + parity.
// Inputs in 8 bits stand in the same order, so that a lane's four are one word: see linear_quantize.h.
struct Format {
  int block;        // inputs of a source block
  int source_bytes; // of a source block
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
};

constexpr Format format_of(int32_t format) {
  switch (format) {
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

// Byte offsets of the planes of one panel, and the panel's size.
struct PanelLayout {
  int64_t low, high, super_scale, super_min, scale, min, bytes;
};

constexpr PanelLayout panel_layout(int32_t number, int64_t cols) {
  const Format f = format_of(number);
  const int64_t even = number == OCTAVO_BF16 ? cols + cols % 2 : cols;
  const int64_t groups = f.dense() ? 0 : cols / f.group;
  const int64_t super_bytes = f.two_level() ? cols / kSuperblock * kLanes * 2 : 0;
  const int64_t scale_bytes = groups * kLanes * (f.scale == Scale::half ? 2 : 1);
  const int64_t min_bytes = f.mins && f.scale != Scale::nibbles ? scale_bytes : 0;
  PanelLayout layout{};
  layout.high = layout.low + even * kLanes / 8 * f.low_bits;
  layout.super_scale = layout.high + even * kLanes / 8 * f.high_bits;
  layout.super_min = layout.super_scale + super_bytes;
  layout.scale = layout.super_min + (f.mins ? super_bytes : 0);
  layout.min = layout.scale + scale_bytes;
  layout.bytes = (layout.min + min_bytes + 63) / 64 * 64;
  return layout;
}

constexpr int64_t panel_count(int64_t rows) { return (rows + kLanes - 1) / kLanes; }

} // namespace octavo
