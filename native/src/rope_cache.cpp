// From the projection to the cache: splits q, k and v, norms and rotates q and k, writes k and v to their blocks.
#include <string.h>

#include <algorithm>

#include "cache_types.h"
#include "head.h"
#include "octavo/abi.h"

namespace octavo {
namespace {

constexpr int64_t kFloatsOfTask = 2048;

struct Shape {
  int64_t heads, kv_heads, head_dim, rotary;
  float eps;
  const float *cos, *sin, *q_gain, *k_gain;

  explicit Shape(const Instruction& code)
      : heads(code.i[1]), kv_heads(code.i[2]), head_dim(code.i[3]), rotary(code.i[4]), eps(code.f[0]),
        cos(static_cast<const float*>(code.p[0])), sin(static_cast<const float*>(code.p[1])),
        q_gain(static_cast<const float*>(code.p[2])), k_gain(static_cast<const float*>(code.p[3])) {}
};

void prepare_head(const float* in, float* out, const float* gain, const Shape& shape, int64_t position) {
  memcpy(out, in, static_cast<size_t>(shape.head_dim) * sizeof(float));
  if (gain != nullptr) norm_head(out, gain, out, shape.head_dim, shape.eps);
  if (shape.rotary > 0) {
    const int64_t row = position * (shape.rotary / 2);
    rotate_head(out, shape.cos + row, shape.sin + row, shape.rotary);
  }
}

// Where the parts of a head at one offset of a block are.
struct Place {
  uint8_t *keys, *values; // coded values: of the four tokens of which this is one
  uint16_t *key_scales, *value_scales;
  int64_t block_size, offset;

  Place(const CacheLayout& layout, uint8_t* layer, int64_t head, int64_t offset)
      : keys(layer + layout.keys_at(head)),
        values(layer + layout.values_at(head) +
               (layout.coded ? offset / 4 * layout.value_quad() : offset * layout.value_row())),
        key_scales(reinterpret_cast<uint16_t*>(layer + layout.key_scales_at(head)) + offset),
        value_scales(reinterpret_cast<uint16_t*>(layer + layout.value_scales_at(head)) + offset),
        block_size(layout.block_size), offset(offset) {}

  // The byte that a code of dimension d is in.
  template <class Format> uint8_t* key_at(int64_t d) const {
    return keys + (d / (4 * Format::kPerByte) * block_size + offset) * 4 + d % 4;
  }
  template <class Format> uint8_t* value_at(int64_t d) const {
    const int64_t vector = Format::kPerByte == 1 ? d / 16 : d / 32;
    return values + 64 * vector + d % 16 * 4 + offset % 4;
  }
};

// Keys stand in a column of the block, values in a row. key, value: changed. scratch: as large as one of them.
template <class Format>
void write_head(const CacheLayout& layout, const Place& place, float* key, float* value, float* scratch) {
  using Type = typename Format::Type;
  const int64_t block = layout.block_size;
  if constexpr (sizeof(Type) > 1) {
    Type* keys = reinterpret_cast<Type*>(place.keys);
    Type* converted = reinterpret_cast<Type*>(scratch);
    store_row<Format>(key, converted, layout.key_width);
    for (int64_t d = 0; d < layout.key_width; ++d) {
      keys[Format::kPairs ? d / 2 * 2 * block + 2 * place.offset + d % 2 : d * block + place.offset] = converted[d];
    }
    store_row<Format>(value, reinterpret_cast<Type*>(place.values), layout.value_width);
  } else {
    uint8_t* codes = reinterpret_cast<uint8_t*>(scratch);
    encode_row<Format>(key, layout.key_width, codes, place.key_scales, block);
    uint8_t* keys = place.keys + place.offset;
    for (int64_t d = 0; d < layout.key_width; ++d) keys[d * block] = codes[d];
    encode_row<Format>(value, layout.value_width, place.values, place.value_scales, block);
  }
}

inline uint32_t four_codes(const uint8_t* codes) {
  uint32_t word;
  memcpy(&word, codes, 4);
  return word;
}

// Steps of a byte's dimensions, four of each half, together.
template <class Format> void write_key_codes(const Place& place, const uint8_t* codes, int64_t width) {
  constexpr int64_t kStep = 4 * Format::kPerByte;
  for (int64_t d = 0; d + kStep <= width; d += kStep) {
    uint32_t word = four_codes(codes + d);
    if (Format::kPerByte == 2) word |= four_codes(codes + d + 4) << 4;
    memcpy(place.key_at<Format>(d), &word, 4);
  }
}

// One byte of four: the others are other tokens'.
template <class Format> void write_value_codes(const Place& place, const uint8_t* codes, int64_t width) {
  constexpr int64_t kStep = 16 * Format::kPerByte;
  for (int64_t d = 0; d + kStep <= width; d += kStep) {
    uint8_t* to = place.value_at<Format>(d);
    for (int i = 0; i < 16; ++i) {
      to[4 * i] = static_cast<uint8_t>(codes[d + i] | (Format::kPerByte == 2 ? codes[d + i + 16] << 4 : 0));
    }
  }
}

// codes: of elements 0 .. width - 1; behind them, as far as a byte goes, those of 0.
template <class Format>
void write_codes(const CacheLayout& layout, const Place& place, const uint8_t* codes, bool keys) {
  const int64_t width = keys ? layout.key_width : layout.value_width;
  const int64_t apart = keys ? 4 : 16; // of the two in a byte
  if (keys) write_key_codes<Format>(place, codes, width);
  if (!keys) write_value_codes<Format>(place, codes, width);
  const int64_t step = apart * Format::kPerByte;
  for (int64_t d = width / step * step; d < width; ++d) {
    uint8_t* byte = keys ? place.key_at<Format>(d) : place.value_at<Format>(d);
    if (Format::kPerByte == 1) {
      *byte = codes[d];
    } else if (d % (2 * apart) < apart) {
      *byte = static_cast<uint8_t>(codes[d] | (d + apart < width ? codes[d + apart] : Format::kRaised) << 4);
    }
  }
}

template <class Format>
void write_coded(const CacheLayout& layout, const Place& place, float* key, float* value, float* scratch) {
  uint8_t* codes = reinterpret_cast<uint8_t*>(scratch);
  rotate_by_hadamard(key, layout.key_width);
  rotate_by_hadamard(value, layout.value_width);
  encode_row<Format>(key, layout.key_width, codes, place.key_scales, layout.block_size);
  write_codes<Format>(layout, place, codes, true);
  encode_row<Format>(value, layout.value_width, codes, place.value_scales, layout.block_size);
  write_codes<Format>(layout, place, codes, false);
}

// The reverse, but for the rotation.
template <class Format> void read_head(const CacheLayout& layout, const Place& place, float* key, float* value) {
  using Type = typename Format::Type;
  const int64_t block = layout.block_size;
  float key_scale = 1.0f, value_scale = 1.0f;
  if constexpr (Format::kScaled) {
    key_scale = from_bf16(*place.key_scales) * Format::kUnit;
    value_scale = from_bf16(*place.value_scales) * Format::kUnit;
  }
  const Type* keys = reinterpret_cast<const Type*>(place.keys);
  for (int64_t d = 0; d < layout.key_width; ++d) {
    const int64_t within = Format::kPairs ? d % 2 : 0;
    const Type* from =
        Format::kPairs ? keys + (d - within) * block + 2 * place.offset : keys + d * block + place.offset;
    key[d] = Format::load_rest(from, within) * key_scale;
  }
  const Type* values = reinterpret_cast<const Type*>(place.values);
  for (int64_t d = 0; d < layout.value_width; ++d) value[d] = Format::load_rest(values, d) * value_scale;
}

template <class Format> void read_coded(const CacheLayout& layout, const Place& place, float* key, float* value) {
  const auto number = [&](uint8_t byte, bool high, const uint16_t* scales, int64_t d) {
    const int code = Format::kPerByte == 1 ? byte : byte >> (high ? 4 : 0) & 15;
    const float scale = from_bf16(scales[Format::kGrouped ? d / kScaleGroup * layout.block_size : 0]);
    return static_cast<float>(code - Format::kRaised) * scale;
  };
  for (int64_t d = 0; d < layout.key_width; ++d) {
    key[d] = number(*place.key_at<Format>(d), d % 8 >= 4, place.key_scales, d);
  }
  for (int64_t d = 0; d < layout.value_width; ++d) {
    value[d] = number(*place.value_at<Format>(d), d % 32 >= 16, place.value_scales, d);
  }
}

template <class Format>
void run(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Shape shape(code);
  const CacheLayer layer(*program.cache, code, shape.kv_heads, shape.head_dim, shape.head_dim);
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t q_width = shape.heads * shape.head_dim;
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  const int64_t block_size = layer.layout.block_size;
  // Neighbours in a block share cache lines: threads that write to the same ones would wait for each other.
  const int64_t whole = std::min(block_size, rows / team.threads());
  const int64_t least = std::max((kFloatsOfTask + width - 1) / width, whole);
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int thread) {
    float* key = team.scratch(thread, static_cast<size_t>(3 * shape.head_dim + 1));
    float* value = key + shape.head_dim;
    int64_t sequence = sequence_of(step, begin);
    for (int64_t token = begin; token < end; ++token) {
      while (token >= step.query_starts[sequence + 1]) ++sequence;
      const int64_t position = step.positions[token];
      const float* row = in + token * width;
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t at = head * shape.head_dim;
        prepare_head(row + at, out + token * q_width + at, shape.q_gain, shape, position);
      }
      uint8_t* block = layer.block(layer.table(step.slots[sequence])[position / block_size]);
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        prepare_head(row + q_width + head * shape.head_dim, key, shape.k_gain, shape, position);
        const float* from = row + q_width + (shape.kv_heads + head) * shape.head_dim;
        memcpy(value, from, static_cast<size_t>(shape.head_dim) * sizeof(float));
        const Place place(layer.layout, block, head, position % block_size);
        if constexpr (Format::kCoded) {
          write_coded<Format>(layer.layout, place, key, value, value + shape.head_dim);
        } else {
          write_head<Format>(layer.layout, place, key, value, value + shape.head_dim);
        }
      }
    }
  });
}

} // namespace

void qkv_rope_cache(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  with_cache_type(code.i[8], [&](auto type) { run<decltype(type)>(team, code, program, step, rows); });
}

} // namespace octavo

extern "C" {

int64_t octavo_cache_layer_bytes(int32_t type, int32_t kv_heads, int32_t key_width, int32_t value_width,
                                 int32_t block_size) {
  return octavo::CacheLayout(type, kv_heads, key_width, value_width, block_size).layer_bytes;
}

void octavo_cache_read(int32_t type, int32_t kv_heads, int32_t width, int32_t block_size, const void* layer,
                       int32_t head, int32_t offset, float* keys, float* values) {
  const octavo::CacheLayout layout(type, kv_heads, width, width, block_size);
  uint8_t* start = static_cast<uint8_t*>(const_cast<void*>(layer));
  const octavo::Place place(layout, start, head, offset);
  octavo::with_cache_type(type, [&](auto kind) {
    if constexpr (decltype(kind)::kCoded) {
      octavo::read_coded<decltype(kind)>(layout, place, keys, values);
    } else {
      octavo::read_head<decltype(kind)>(layout, place, keys, values);
    }
  });
}

} // extern "C"
