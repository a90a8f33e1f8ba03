#include "tile_registers.h"

#include "simd/convert.h"
#include "simd/vec.h"

namespace octavo {
namespace {

inline float without_subnormals(float value) {
  const uint32_t bits = bits_of(value);
  return float_of((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}

inline int32_t widen(uint8_t byte, bool is_signed) {
  return is_signed ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte);
}

inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

// The lower or upper bf16 of a word.
inline float half_of_word(uint32_t word, bool upper) {
  return without_subnormals(float_of(upper ? word & 0xffff0000u : word << 16));
}

} // namespace

void EmulatedTiles::add_pairs(Data& to, const Data& inputs, const Data& weights, int rows) const {
  for (int r = 0; r < rows; ++r) {
    float first[kTileInner] = {}, second[kTileInner] = {};
    for (int k = 0; k < shape_.inner; ++k) {
      const uint32_t input = word_at(inputs[r] + 4 * k);
      const float low = half_of_word(input, false), high = half_of_word(input, true);
      for (int n = 0; n < kTileInner; ++n) {
        const uint32_t weight = word_at(weights[k] + 4 * n);
        first[n] = without_subnormals(__builtin_fmaf(low, half_of_word(weight, false), first[n]));
        second[n] = without_subnormals(__builtin_fmaf(high, half_of_word(weight, true), second[n]));
      }
    }
    float total[kTileInner];
    memcpy(total, to[r], sizeof total);
    for (int n = 0; n < kTileInner; ++n)
      total[n] = without_subnormals(without_subnormals(total[n]) + without_subnormals(first[n] + second[n]));
    memcpy(to[r], total, sizeof total);
  }
}

void EmulatedTiles::add_fours(Data& to, const Data& inputs, const Data& weights, int rows, bool signed_inputs,
                              bool signed_weights) const {
  for (int r = 0; r < rows; ++r) {
    uint32_t total[kTileInner]; // as in the register, sums wrap
    memcpy(total, to[r], sizeof total);
    for (int k = 0; k < 4 * shape_.inner; ++k) {
      const int32_t input = widen(inputs[r][k], signed_inputs);
      for (int n = 0; n < kTileInner; ++n)
        total[n] += static_cast<uint32_t>(input * widen(weights[k / 4][4 * n + k % 4], signed_weights));
    }
    memcpy(to[r], total, sizeof total);
  }
}

} // namespace octavo
