// One row of a packed table as floats: the values of one lane of a panel.
#include <string.h>

#include "code_row.h"
#include "formats.h"
#include "linear.h"
#include "simd/convert.h"

namespace octavo {
namespace {

uint32_t word_at(const uint8_t* plane, int64_t index, int lane) {
  uint32_t word;
  memcpy(&word, plane + (index * kLanes + lane) * 4, 4);
  return word;
}

float half_at(const uint8_t* plane, int64_t index, int lane) {
  uint16_t bits;
  memcpy(&bits, plane + (index * kLanes + lane) * 2, 2);
  return from_f16(bits);
}

// Where input k stands in a word of 1-bit and 2-bit codes; formats.h draws it.
int bit_position(int bits, int64_t k) {
  const int byte = static_cast<int>(8 * (k % 8 / 2)), odd = static_cast<int>(k % 2);
  return bits == 1 ? byte + static_cast<int>(2 * (k % 32 / 8)) + odd
                   : byte + 2 * (2 * static_cast<int>(k % 16 / 8) + odd);
}

uint32_t plane_code(const uint8_t* plane, int bits, int64_t k, int lane) {
  if (bits == 8) return plane[((k / 8 * 2 + k % 2) * kLanes + lane) * 4 + k % 8 / 2];
  if (bits == 4) return word_at(plane, k / 8, lane) >> (4 * (k % 8)) & 15;
  return word_at(plane, k / (32 / bits), lane) >> bit_position(bits, k) & ((1u << bits) - 1);
}

float value_of_code(const Format& f, uint32_t code) {
  if (f.values == Values::iq4_nl) return kIq4Nl[code];
  if (f.values == Values::mxfp4) return kMxfp4[code];
  if (f.values == Values::e4m3) return e4m3_times_256(code) * 0x1p-8f;
  if (f.low_bits == 8) return static_cast<float>(static_cast<int8_t>(code));
  return static_cast<float>(static_cast<int>(code) - f.offset);
}

float span_scale(const PanelLayout& at, const uint8_t* panel, int64_t span, int lane) {
  if (at.scale_type == OCTAVO_SCALE_F16) return half_at(panel + at.scale, span, lane);
  if (at.scale_type == OCTAVO_SCALE_BF16) {
    uint16_t bits;
    memcpy(&bits, panel + at.scale + (span * kLanes + lane) * 2, 2);
    return from_bf16(bits);
  }
  float scale;
  memcpy(&scale, panel + at.scale + (at.scale_type == OCTAVO_SCALE_SHARED ? span : span * kLanes + lane) * 4, 4);
  return scale;
}

// What a code stands for before the scale: the zero point is taken off first, so that scales in 16 bits lose nothing.
float zero_of_span(const Format& f, const PanelLayout& at, const uint8_t* panel, int64_t span, int lane) {
  if (!f.mins) return 0.0f;
  const uint8_t byte = panel[at.min + span * kLanes + lane];
  return f.low_bits == 8 ? static_cast<float>(static_cast<int8_t>(byte)) : static_cast<float>(byte);
}

struct Steps {
  float step, start;
};

Steps steps_of_unit(int32_t format, const PanelLayout& at, const uint8_t* panel, int64_t unit, int lane) {
  if (!has_steps(format)) return {1.0f, -zero_of_span(format_of(format), at, panel, unit >> at.shift, lane)};
  const uint8_t* bytes = panel + at.min + unit * 2 * kLanes + lane;
  return {static_cast<float>(bytes[0]), static_cast<float>(static_cast<int8_t>(bytes[kLanes]))};
}

float scale_of_group(const Format& f, const PanelLayout& at, const uint8_t* panel, int64_t group, int lane) {
  if (f.scale == Scale::half) return half_at(panel + at.scale, group, lane);
  const uint8_t byte = panel[at.scale + group * kLanes + lane];
  if (f.scale == Scale::exponent) return byte < 2 ? float_of(0x00200000u << byte) : float_of((byte - 1u) << 23);
  const float d = half_at(panel + at.super_scale, group / (kSuperblock / f.group), lane);
  if (f.scale == Scale::signed_bytes) return d * static_cast<float>(static_cast<int8_t>(byte));
  return d * static_cast<float>(f.scale == Scale::nibbles ? byte & 15 : byte);
}

float min_of_group(const Format& f, const PanelLayout& at, const uint8_t* panel, int64_t group, int lane) {
  if (f.scale == Scale::half) return half_at(panel + at.min, group, lane);
  const float d = half_at(panel + at.super_min, group / (kSuperblock / f.group), lane);
  const int byte =
      f.scale == Scale::nibbles ? panel[at.scale + group * kLanes + lane] >> 4 : panel[at.min + group * kLanes + lane];
  return -(d * static_cast<float>(byte));
}

void span_lane(int32_t format, const uint8_t* panel, int lane, int64_t cols, const int32_t* order, float* out) {
  const Format f = format_of(format);
  const PanelLayout at = panel_layout(format, cols);
  for (int64_t group = 0; group < cols / kUnit; ++group) {
    const float scale = span_scale(at, panel, group >> at.shift, lane);
    const Steps steps = steps_of_unit(format, at, panel, group, lane);
    for (int64_t k = group * kUnit; k < (group + 1) * kUnit; ++k) {
      const uint32_t code = plane_code(panel + at.low, f.low_bits, k, lane);
      const float value = value_of_code(f, code) * steps.step + steps.start;
      out[order ? order[k] : k] = scale * value;
    }
  }
  if (is_rotated(format)) rotate_row(out, cols, out); // the rotation is its own inverse
}

void block_lane(int32_t format, const uint8_t* panel, int lane, int64_t cols, float* out) {
  const Format f = format_of(format);
  const PanelLayout at = panel_layout(format, cols);
  for (int64_t group = 0; group < cols / f.group; ++group) {
    const float scale = scale_of_group(f, at, panel, group, lane);
    const float min = f.mins ? min_of_group(f, at, panel, group, lane) : 0.0f;
    for (int64_t k = group * f.group; k < (group + 1) * f.group; ++k) {
      uint32_t code = plane_code(panel + at.low, f.low_bits, k, lane);
      if (f.high_bits) code |= plane_code(panel + at.high, f.high_bits, k, lane) << f.low_bits;
      const float product = scale * value_of_code(f, code);
      out[k] = f.mins ? product + min : product;
    }
  }
}

void read_lane(int32_t format, const uint8_t* panel, int lane, int64_t cols, float* out) {
  uint16_t bits;
  switch (format) {
  case OCTAVO_F32:
    for (int64_t k = 0; k < cols; ++k) memcpy(out + k, panel + (k * kLanes + lane) * 4, 4);
    return;
  case OCTAVO_F16:
    for (int64_t k = 0; k < cols; ++k) out[k] = half_at(panel, k, lane);
    return;
  case OCTAVO_BF16:
    for (int64_t k = 0; k < cols; ++k) {
      memcpy(&bits, panel + (k / 2 * kLanes + lane) * 4 + k % 2 * 2, 2);
      out[k] = from_bf16(bits);
    }
    return;
  default: return block_lane(format, panel, lane, cols, out);
  }
}

} // namespace

void embed(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep& step,
           int64_t rows) {
  const auto* segments = static_cast<const OctavoSegment*>(instruction.p[0]);
  const int32_t* const sources[] = {step.token_ids, step.positions, step.token_types};
  const int32_t* ids = sources[instruction.i[2]];
  float* out = program.buffer[instruction.out];
  const int64_t least = 8192 / (instruction.width > 0 ? instruction.width : 1) + 1; // rows worth a task
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t id = ids[t];
      const OctavoSegment* segment = segments;
      for (; id >= segment->rows; ++segment) id -= segment->rows;
      const uint8_t* panel =
          static_cast<const uint8_t*>(segment->data) + id / kLanes * panel_layout(segment->format, segment->cols).bytes;
      const int lane = static_cast<int>(id % kLanes);
      if (format_of(segment->format).scale == Scale::span)
        span_lane(segment->format, panel, lane, segment->cols, order_of(*segment), out + t * instruction.width);
      else
        read_lane(segment->format, panel, lane, segment->cols, out + t * instruction.width);
    }
  });
}

} // namespace octavo
