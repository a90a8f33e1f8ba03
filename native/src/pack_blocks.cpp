#include "pack_blocks.h"

#include <cstring>

namespace octavo {
namespace {

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// Two codes a byte: the low nibbles are the first 16 inputs of a block, the high ones the other 16.
void read_nibbles(const uint8_t* p, int lane, BlockLanes& out) {
  for (int i = 0; i < 16; ++i) {
    out.code[i][lane] = p[i] & 15;
    out.code[i + 16][lane] = p[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* p, int lane, BlockLanes& out) {
  for (int i = 0; i < 32; ++i) out.code[i][lane] |= static_cast<uint8_t>((p[i / 8] >> (i % 8) & 1) << 4);
}

// Q2_K, Q3_K: four codes a byte; byte i of a run of 32 holds inputs i, i + 32, i + 64, i + 96.
void read_pairs_of_bits(const uint8_t* p, int lane, BlockLanes& out) {
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 32; ++i) out.code[half * 128 + part * 32 + i][lane] = p[half * 32 + i] >> (2 * part) & 3;
}

// Q4_K, Q5_K: byte i of a run of 32 holds inputs i and i + 32.
void read_k_nibbles(const uint8_t* p, int lane, BlockLanes& out) {
  for (int run = 0; run < 4; ++run)
    for (int i = 0; i < 32; ++i) {
      out.code[run * 64 + i][lane] = p[run * 32 + i] & 15;
      out.code[run * 64 + 32 + i][lane] = p[run * 32 + i] >> 4;
    }
}

// Bit j of byte i belongs to input 32 j + i.
void add_k_bit(const uint8_t* p, int shift, int lane, BlockLanes& out) {
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i) out.code[32 * j + i][lane] |= static_cast<uint8_t>((p[i] >> j & 1) << shift);
}

// Q4_K, Q5_K: eight 6-bit scales and eight 6-bit mins in 12 bytes.
void read_k_scales(const uint8_t* p, int lane, BlockLanes& out) {
  for (int j = 0; j < 4; ++j) {
    out.scale[j][lane] = p[j] & 63;
    out.min[j][lane] = p[4 + j] & 63;
    out.scale[4 + j][lane] = static_cast<uint8_t>((p[8 + j] & 15) | (p[j] >> 6 << 4));
    out.min[4 + j][lane] = static_cast<uint8_t>((p[8 + j] >> 4) | (p[4 + j] >> 6 << 4));
  }
}

void read_q3_scales(const uint8_t* p, int lane, BlockLanes& out) {
  for (int j = 0; j < 16; ++j) {
    const int low = p[j % 8] >> (4 * (j / 8)) & 15;
    const int high = p[8 + j % 4] >> (2 * (j / 4)) & 3;
    out.scale[j][lane] = static_cast<uint8_t>((low | high << 4) - 32);
  }
}

void read_q6(const uint8_t* p, int lane, BlockLanes& out) {
  const uint8_t *low = p, *high = p + 128;
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 128; ++i) {
      const int nibble = low[half * 64 + i % 64] >> (4 * (i / 64)) & 15;
      const int bits = high[half * 32 + i % 32] >> (2 * (i / 32)) & 3;
      out.code[half * 128 + i][lane] = static_cast<uint8_t>(nibble | bits << 4);
    }
  for (int j = 0; j < 16; ++j) out.scale[j][lane] = p[192 + j];
}

// Of an input of a unit in a plane of 8 bits.
int byte_position(int k, int lane) { return ((k / 8 * 2 + k % 2) * kLanes + lane) * 4 + k % 8 / 2; }
int two_bit_position(int k) { return 8 * (k % 8 / 2) + 2 * (2 * (k / 8) + k % 2); }
int one_bit_position(int k) { return 8 * (k % 8 / 2) + 2 * (k / 8) + k % 2; }

// Words of 16 lanes; `inputs` codes a word, `position` says where each stands.
template <class Position>
void write_plane(const uint8_t (*code)[kLanes], int inputs, int shift, uint32_t mask, Position position, uint8_t* out) {
  for (int row = 0; row < kUnit / inputs; ++row) {
    uint32_t word[kLanes] = {};
    for (int k = 0; k < inputs; ++k) {
      const int at = position(k);
      for (int lane = 0; lane < kLanes; ++lane)
        word[lane] |= (static_cast<uint32_t>(code[row * inputs + k][lane]) >> shift & mask) << at;
    }
    std::memcpy(out + row * sizeof word, word, sizeof word);
  }
}

} // namespace

void read_block(int32_t format, const uint8_t* p, int lane, BlockLanes& out) {
  switch (format) {
  case OCTAVO_Q4_0:
  case OCTAVO_IQ4_NL: out.d[lane] = half_at(p); return read_nibbles(p + 2, lane, out);
  case OCTAVO_MXFP4: out.d[lane] = p[0]; return read_nibbles(p + 1, lane, out);
  case OCTAVO_Q4_1:
    out.d[lane] = half_at(p);
    out.dmin[lane] = half_at(p + 2);
    return read_nibbles(p + 4, lane, out);
  case OCTAVO_Q5_0:
    out.d[lane] = half_at(p);
    read_nibbles(p + 6, lane, out);
    return add_fifth_bits(p + 2, lane, out);
  case OCTAVO_Q5_1:
    out.d[lane] = half_at(p);
    out.dmin[lane] = half_at(p + 2);
    read_nibbles(p + 8, lane, out);
    return add_fifth_bits(p + 4, lane, out);
  case OCTAVO_Q8_0:
    out.d[lane] = half_at(p);
    for (int i = 0; i < 32; ++i) out.code[i][lane] = p[2 + i];
    return;
  case OCTAVO_Q2_K:
    for (int j = 0; j < 16; ++j) out.scale[j][lane] = p[j];
    out.d[lane] = half_at(p + 80);
    out.dmin[lane] = half_at(p + 82);
    return read_pairs_of_bits(p + 16, lane, out);
  case OCTAVO_Q3_K:
    out.d[lane] = half_at(p + 108);
    read_q3_scales(p + 96, lane, out);
    read_pairs_of_bits(p + 32, lane, out);
    return add_k_bit(p, 2, lane, out);
  case OCTAVO_Q4_K:
  case OCTAVO_Q5_K:
    out.d[lane] = half_at(p);
    out.dmin[lane] = half_at(p + 2);
    read_k_scales(p + 4, lane, out);
    if (format == OCTAVO_Q4_K) return read_k_nibbles(p + 16, lane, out);
    read_k_nibbles(p + 48, lane, out);
    return add_k_bit(p + 16, 4, lane, out);
  case OCTAVO_Q6_K: out.d[lane] = half_at(p + 208); return read_q6(p, lane, out);
  default: return;
  }
}

void write_unit(const Format& format, const uint8_t (*code)[kLanes], uint8_t* low, uint8_t* high) {
  if (format.low_bits == 8)
    for (int k = 0; k < kUnit; ++k)
      for (int lane = 0; lane < kLanes; ++lane) low[byte_position(k, lane)] = code[k][lane];
  if (format.low_bits == 4)
    write_plane(
        code, 8, 0, 15, [](int k) { return 4 * k; }, low);
  if (format.low_bits == 2) write_plane(code, 16, 0, 3, two_bit_position, low);
  if (format.high_bits == 2) write_plane(code, 16, format.low_bits, 3, two_bit_position, high);
  if (format.high_bits == 1) write_plane(code, 32, format.low_bits, 1, one_bit_position, high);
}

} // namespace octavo
