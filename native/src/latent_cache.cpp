// From the projections of latent attention to the cache: rotates the queries, norms the latent, rotates the shared key.
#include <string.h>

#include "cache_types.h"
#include "head.h"
#include "latent.h"

namespace octavo {
namespace {

constexpr int64_t kFloatsOfTask = 8192;

struct Shape {
  int64_t heads, nope, rope, rank;
  float eps;
  const float *cos, *sin, *gain;

  explicit Shape(const Instruction& code)
      : heads(code.i[1]), nope(code.i[2]), rope(code.i[3]), rank(code.i[4]), eps(code.f[0]),
        cos(static_cast<const float*>(code.p[0])), sin(static_cast<const float*>(code.p[1])),
        gain(static_cast<const float*>(code.p[2])) {}

  void rotate(float* x, int64_t position) const {
    if (cos != nullptr) rotate_head(x, cos + position * (rope / 2), sin + position * (rope / 2), rope);
  }
};

// row: changed; codes: of a byte each, room for as many.
template <class Format> void write_latent(const CacheLayout& layout, const LatentPlace& place, float* row, uint8_t* codes) {
  const int64_t width = layout.key_width;
  if constexpr (sizeof(typename Format::Type) > 1) {
    store_row<Format>(row, reinterpret_cast<typename Format::Type*>(place.row), width);
  } else if constexpr (!Format::kCoded) {
    encode_row<Format>(row, width, place.row, place.scales, layout.block_size);
  } else {
    rotate_by_hadamard(row, width);
    encode_row<Format>(row, width, codes, place.scales, layout.block_size);
    if (Format::kPerByte == 1) {
      memcpy(place.row, codes, static_cast<size_t>(width));
    } else {
      for (int64_t d = 0; d < width; d += 2) {
        const int upper = d + 1 < width ? codes[d + 1] : Format::kRaised;
        place.row[d / 2] = static_cast<uint8_t>(codes[d] | upper << 4);
      }
    }
  }
}

template <class Format>
void run(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Shape shape(code);
  const int64_t width = shape.rank + shape.rope;
  const CacheLayer layer(*program.cache, code, 1, width, 0);
  const int64_t head = shape.nope + shape.rope;
  const int64_t q_width = shape.heads * head;
  const float* q_in = program.buffer[code.in0];
  const float* kv_in = program.buffer[code.in1];
  float* out = program.buffer[code.out];
  const int64_t least = (kFloatsOfTask + q_width + width - 1) / (q_width + width);
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int thread) {
    float* row = team.scratch(thread, static_cast<size_t>(2 * width));
    int64_t sequence = sequence_of(step, begin);
    for (int64_t token = begin; token < end; ++token) {
      while (token >= step.query_starts[sequence + 1]) ++sequence;
      const int64_t position = step.positions[token];
      float* q = out + token * q_width;
      memcpy(q, q_in + token * q_width, static_cast<size_t>(q_width) * sizeof(float));
      for (int64_t h = 0; h < shape.heads; ++h) shape.rotate(q + h * head + shape.nope, position);
      const float* kv = kv_in + token * width;
      norm_head(kv, shape.gain, row, shape.rank, shape.eps);
      memcpy(row + shape.rank, kv + shape.rank, static_cast<size_t>(shape.rope) * sizeof(float));
      shape.rotate(row + shape.rank, position);
      const LatentPlace place(layer, step.slots[sequence], position);
      write_latent<Format>(layer.layout, place, row, reinterpret_cast<uint8_t*>(row + width));
    }
  });
}

} // namespace

void latent_cache(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  with_cache_type(code.i[8], [&](auto type) { run<decltype(type)>(team, code, program, step, rows); });
}

} // namespace octavo
