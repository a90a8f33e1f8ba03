// From the projection to the cache: splits q, k and v, norms and rotates q and k, writes k and v to their blocks.
#include <math.h>

#include "cache_layout.h"
#include "kernels.h"
#include "octavo/abi.h"
#include "simd/math.h"

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

// In place.
void norm_head(float* x, const float* gain, int64_t width, float eps) {
  Vec16 squares = zero();
  for (int64_t at = 0; at < width; at += 16) {
    const Vec16 values = load_up_to(x + at, width - at);
    squares = fma(values, values, squares);
  }
  const Vec16 factor = set1(1.0f / sqrtf(sum(squares) / static_cast<float>(width) + eps));
  for (int64_t at = 0; at < width; at += 16) {
    const int64_t left = width - at;
    store_up_to(x + at, load_up_to(x + at, left) * factor * load_up_to(gain + at, left), left);
  }
}

// In place: pairs (i, i + rotary / 2).
void rotate_head(float* x, const float* cos, const float* sin, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t at = 0; at < half; at += 16) {
    const int64_t count = half - at;
    const Vec16 c = load_up_to(cos + at, count);
    const Vec16 s = load_up_to(sin + at, count);
    const Vec16 left = load_up_to(x + at, count);
    const Vec16 right = load_up_to(x + half + at, count);
    store_up_to(x + at, left * c - right * s, count);
    store_up_to(x + half + at, right * c + left * s, count);
  }
}

void prepare_head(const float* in, float* out, const float* gain, const Shape& shape, int64_t position) {
  memcpy(out, in, static_cast<size_t>(shape.head_dim) * sizeof(float));
  if (gain != nullptr) norm_head(out, gain, shape.head_dim, shape.eps);
  if (shape.rotary > 0) {
    const int64_t row = position * (shape.rotary / 2);
    rotate_head(out, shape.cos + row, shape.sin + row, shape.rotary);
  }
}

struct AsF32 {
  using Type = float;
  static float from(float x) { return x; }
  static void store16(float* p, Vec16 v) { store(p, v); }
};
struct AsF16 {
  using Type = uint16_t;
  static uint16_t from(float x) { return to_f16(x); }
  static void store16(uint16_t* p, Vec16 v) { store_f16(p, v); }
};
struct AsBf16 {
  using Type = uint16_t;
  static uint16_t from(float x) { return to_bf16(x); }
  static void store16(uint16_t* p, Vec16 v) { store_bf16(p, v); }
};

template <class Format> void store_row(const float* x, typename Format::Type* out, int64_t width) {
  int64_t at = 0;
  for (; at + 16 <= width; at += 16) Format::store16(out + at, load(x + at));
  for (; at < width; ++at) out[at] = Format::from(x[at]);
}

// Keys stand in a column of the block, values in a row.
template <class Format>
void write_head(const CacheLayer& layer, uint8_t* block, int64_t head, int64_t offset, const float* key,
                const float* value, float* scratch) {
  using Type = typename Format::Type;
  const CacheLayout& layout = layer.layout;
  Type* keys = reinterpret_cast<Type*>(block + layout.keys_at(head));
  Type* values = reinterpret_cast<Type*>(block + layout.values_at(head)) + offset * layout.value_width;
  Type* converted = reinterpret_cast<Type*>(scratch);
  store_row<Format>(key, converted, layout.key_width);
  for (int64_t at = 0; at < layout.key_width; ++at) keys[layout.key_at(at, offset)] = converted[at];
  store_row<Format>(value, values, layout.value_width);
}

int64_t sequence_of(const Step& step, int64_t token) {
  int64_t low = 0;
  int64_t high = step.sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (step.query_starts[middle] <= token)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class Format>
void run(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Shape shape(code);
  const CacheLayer layer(*program.cache, code.i[5], code.i[6], shape.kv_heads, shape.head_dim);
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t q_width = shape.heads * shape.head_dim;
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  const int64_t block_size = layer.layout.block_size;
  team.parallel_ranges(rows, (kFloatsOfTask + width - 1) / width, [&](int64_t begin, int64_t end, int thread) {
    float* key = team.scratch(thread, static_cast<size_t>(2 * shape.head_dim));
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
        const float* value = row + q_width + (shape.kv_heads + head) * shape.head_dim;
        write_head<Format>(layer, block, head, position % block_size, key, value, key + shape.head_dim);
      }
    }
  });
}

} // namespace

void qkv_rope_cache(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  switch (program.cache->format) {
  case OCTAVO_F16: return run<AsF16>(team, code, program, step, rows);
  case OCTAVO_BF16: return run<AsBf16>(team, code, program, step, rows);
  default: return run<AsF32>(team, code, program, step, rows);
  }
}

} // namespace octavo

extern "C" int64_t octavo_cache_layer_bytes(int32_t format, int32_t kv_heads, int32_t key_width, int32_t value_width,
                                            int32_t block_size) {
  return octavo::CacheLayout(format, kv_heads, key_width, value_width, block_size).layer_bytes;
}
