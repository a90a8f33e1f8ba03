// From the projection to the cache: splits q, k and v, norms and rotates q and k, writes k and v to their blocks.
#include <string.h>

#include <algorithm>

#include "cache_types.h"
#include "head.h"
#include "octavo/abi.h"

namespace octavo {
namespace {

constexpr int64_t kFloatsOfTask = 8192;

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

// Two elements a byte, as cache_layout.h tells.
void store_nibbles(const uint8_t* codes, uint8_t* out, int64_t width) {
  int64_t at = 0;
  const auto run = [&](int64_t half) {
    for (int64_t i = 0; i < half; ++i) *out++ = static_cast<uint8_t>(codes[at + i] | codes[at + half + i] << 4);
    at += 2 * half;
  };
  while (at + 32 <= width) run(16);
  if (at + 16 <= width) run(8);
  while (at + 2 <= width) run(1);
  if (at < width) *out = static_cast<uint8_t>(codes[at] | 8 << 4);
}

// Where the parts of a head at one offset of a block are.
struct Place {
  uint8_t *keys, *values;
  uint16_t *key_scales, *value_scales;
  int64_t block_size, offset;

  Place(const CacheLayout& layout, uint8_t* layer, int64_t head, int64_t offset)
      : keys(layer + layout.keys_at(head)), values(layer + layout.values_at(head) + offset * layout.value_row()),
        key_scales(reinterpret_cast<uint16_t*>(layer + layout.key_scales_at(head)) + offset),
        value_scales(reinterpret_cast<uint16_t*>(layer + layout.value_scales_at(head)) + offset),
        block_size(layout.block_size), offset(offset) {}
};

// Codes of all groups of a row, and their scales, one block apart.
template <class Format>
void encode_row(const float* x, int64_t width, uint8_t* codes, uint16_t* scales, int64_t block_size) {
  const int64_t size = Format::kGrouped ? kScaleGroup : width;
  for (int64_t at = 0, group = 0; at < width; at += size, ++group) {
    const uint16_t scale = Format::encode(x + at, at + size < width ? size : width - at, codes + at);
    if constexpr (Format::kScaled) scales[group * block_size] = scale;
  }
}

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
    if constexpr (Format::kRotated) {
      rotate_by_hadamard(key, layout.key_width);
      rotate_by_hadamard(value, layout.value_width);
    }
    uint8_t* codes = reinterpret_cast<uint8_t*>(scratch);
    encode_row<Format>(key, layout.key_width, codes, place.key_scales, block);
    uint8_t* keys = place.keys + place.offset;
    if constexpr (Format::kPairs) {
      codes[layout.key_width] = 8; // 0, when the width is odd
      for (int64_t d = 0; d < layout.key_width; d += 2) {
        keys[d / 2 * block] = static_cast<uint8_t>(codes[d] | codes[d + 1] << 4);
      }
      encode_row<Format>(value, layout.value_width, codes, place.value_scales, block);
      store_nibbles(codes, place.values, layout.value_width);
    } else {
      for (int64_t d = 0; d < layout.key_width; ++d) keys[d * block] = codes[d];
      encode_row<Format>(value, layout.value_width, place.values, place.value_scales, block);
    }
  }
}

// The reverse, but for the rotation.
template <class Format> void read_head(const CacheLayout& layout, const Place& place, float* key, float* value) {
  using Type = typename Format::Type;
  const int64_t block = layout.block_size;
  const auto scale_of = [&](const uint16_t* scales, int64_t d) {
    if constexpr (!Format::kScaled) return 1.0f;
    return from_bf16(scales[Format::kGrouped ? d / kScaleGroup * block : 0]) * Format::kUnit;
  };
  const Type* keys = reinterpret_cast<const Type*>(place.keys);
  for (int64_t d = 0; d < layout.key_width; ++d) {
    const int64_t within = Format::kPairs ? d % 2 : 0;
    const Type* pair = sizeof(Type) > 1 && Format::kPairs ? keys + (d - within) * block + 2 * place.offset
                                                          : keys + (Format::kPairs ? d / 2 : d) * block + place.offset;
    key[d] = Format::load_rest(pair, within) * scale_of(place.key_scales, d);
  }
  const Type* values = reinterpret_cast<const Type*>(place.values);
  for (int64_t d = 0; d < layout.value_width; ++d) {
    float element;
    if constexpr (sizeof(Type) > 1 || !Format::kPairs) {
      element = Format::load_rest(values, d);
    } else {
      const int64_t run = d / 32 * 32;
      const int64_t left = layout.value_width - run;
      const int64_t within = d - run;
      if (left >= 32)
        element = Format::load_rest(Format::at(values, run) + within % 16, within / 16);
      else if (left >= 16 && within < 16)
        element = Format::load_rest(Format::at(values, run) + within % 8, within / 8);
      else
        element = Format::load_rest(Format::at(values, run), within);
    }
    value[d] = element * scale_of(place.value_scales, d);
  }
}

template <class Format>
void run(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Shape shape(code);
  const CacheLayer layer(*program.cache, code, shape.kv_heads, shape.head_dim);
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
        write_head<Format>(layer.layout, place, key, value, value + shape.head_dim);
      }
    }
  });
}

// use(type) with the type that a number stands for.
template <class F> void with_type(int32_t type, F&& use) {
  switch (type) {
  case OCTAVO_CACHE_F16: return use(CacheF16());
  case OCTAVO_CACHE_BF16: return use(CacheBf16());
  case OCTAVO_CACHE_INT8: return use(CacheInt8());
  case OCTAVO_CACHE_FP8_E4M3: return use(CacheE4m3());
  case OCTAVO_CACHE_FP8_E5M2: return use(CacheE5m2());
  case OCTAVO_CACHE_INT4: return use(CacheInt4());
  default: return use(CacheF32());
  }
}

} // namespace

void qkv_rope_cache(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  with_type(code.i[8], [&](auto type) { run<decltype(type)>(team, code, program, step, rows); });
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
  octavo::with_type(type, [&](auto kind) { octavo::read_head<decltype(kind)>(layout, place, keys, values); });
}

} // extern "C"
