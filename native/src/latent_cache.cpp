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

template <class Format>
void run(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Shape shape(code);
  const LatentCache cache(*program.cache, code, shape.rank, shape.rope);
  const int64_t head = shape.nope + shape.rope;
  const int64_t q_width = shape.heads * head;
  const float* q_in = program.buffer[code.in0];
  const float* kv_in = program.buffer[code.in1];
  float* out = program.buffer[code.out];
  const int64_t least = (kFloatsOfTask + q_width + cache.width - 1) / (q_width + cache.width);
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int thread) {
    float* row = team.scratch(thread, static_cast<size_t>(cache.width));
    int64_t sequence = sequence_of(step, begin);
    for (int64_t token = begin; token < end; ++token) {
      while (token >= step.query_starts[sequence + 1]) ++sequence;
      const int64_t position = step.positions[token];
      float* q = out + token * q_width;
      memcpy(q, q_in + token * q_width, static_cast<size_t>(q_width) * sizeof(float));
      for (int64_t h = 0; h < shape.heads; ++h) shape.rotate(q + h * head + shape.nope, position);
      const float* kv = kv_in + token * cache.width;
      norm_head(kv, shape.gain, row, shape.rank, shape.eps);
      memcpy(row + shape.rank, kv + shape.rank, static_cast<size_t>(shape.rope) * sizeof(float));
      shape.rotate(row + shape.rank, position);
      store_row<Format>(row, cache.row<typename Format::Type>(step.slots[sequence], position), cache.width);
    }
  });
}

} // namespace

void latent_cache(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  switch (code.i[8]) {
  case OCTAVO_CACHE_F16: return run<CacheF16>(team, code, program, step, rows);
  case OCTAVO_CACHE_BF16: return run<CacheBf16>(team, code, program, step, rows);
  default: return run<CacheF32>(team, code, program, step, rows);
  }
}

} // namespace octavo
