// Conversions between float32 and the 16-bit floats, one value at a time; to 16 bits always to nearest even.
#pragma once
#include <stdint.h>
#include <string.h>

namespace octavo {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline float from_bf16(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

inline uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u); // a NaN stays one
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_f16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t rest = value & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | ((rest & 0x3ffu) << 13)); // infinity, NaN
  // Placed as if float32 had the same bias, then scaled by 2^112: exact, and right for subnormals too.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline uint16_t to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u); // rounds past 65504
  if (magnitude < 0x38800000u) {                                              // subnormal: units of 2^-24
    const float rounded = float_of(magnitude) + 0.5f;                         // the adder rounds to 2^-24
    return static_cast<uint16_t>(sign | (bits_of(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

} // namespace octavo
