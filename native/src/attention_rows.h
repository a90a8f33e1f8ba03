// What attention is asked for, the query rows of a task, and what is kept of each row over parts of its keys.
#pragma once
#include <math.h>
#include <string.h>

#include "attention_tile.h"
#include "kernels.h"

namespace octavo {

constexpr int64_t kTileQueries = 32; // query rows of a task, heads of the group counted

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct Tile {
  int32_t first_token;
  int32_t tokens;
  int32_t position; // of the first token
  int32_t slot;
  int64_t first_part; // number of the first part any row sees
  int64_t parts;
  int64_t before; // parts of all tiles before this one
};

struct Attention {
  int64_t heads, kv_heads, head_dim, padded, group, window, chunk;
  float scale, softcap;
  CacheLayer layer;
  const float* in;
  float* out;

  Attention(const Instruction& code, const Program& program)
      : heads(code.i[1]), kv_heads(code.i[2]), head_dim(code.i[3]), padded((head_dim + 15) / 16 * 16),
        group(heads / kv_heads), window(code.i[4]), chunk(code.i[7]), scale(code.f[0]), softcap(code.f[1]),
        layer(*program.cache, code, kv_heads, head_dim), in(program.buffer[code.in0]),
        out(program.buffer[code.out]) {}

  int64_t tile_tokens() const { return larger(1, kTileQueries / group); }
  // Never less for a later position, so a tile's first row sees the first key of all.
  int64_t first_key(int64_t position) const {
    const int64_t in_window = window > 0 ? larger(0, position - window + 1) : 0;
    return chunk > 0 ? larger(in_window, position / chunk * chunk) : in_window;
  }
  // Per row: weighted values, the largest score, the sum of weights.
  int64_t state_floats() const { return padded + 16; }
};

// Largest score, sum of weights and weighted values of a row, over some of its keys.
struct RowState {
  float* values; // [padded]
  float& largest() const { return values[-2]; }
  float& weight() const { return values[-1]; }
};
inline RowState state_at(float* states, int64_t row, const Attention& attention) {
  return {states + row * attention.state_floats() + 16};
}

inline float exp1(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

inline void clear(RowState state, int64_t padded) {
  state.largest() = -INFINITY;
  state.weight() = 0.0f;
  memset(state.values, 0, static_cast<size_t>(padded) * sizeof(float));
}

// total = total and part, both relative to their own largest score.
inline void merge(RowState total, RowState part, int64_t padded) {
  const bool higher = part.largest() > total.largest();
  const float keep = higher ? exp1(total.largest() - part.largest()) : 1.0f;
  const float take = higher ? 1.0f : exp1(part.largest() - total.largest());
  if (higher) total.largest() = part.largest();
  total.weight() = total.weight() * keep + part.weight() * take;
  for (int64_t at = 0; at < padded; at += 16) {
    const Vec16 kept = load(total.values + at) * set1(keep);
    store(total.values + at, fma(load(part.values + at), set1(take), kept));
  }
}

// Rows of a tile for one kv head: (token, head of the group), token by token.
class TileRows {
public:
  struct Range {
    int first, last;
  };

  TileRows(const Attention& attention, const Tile& tile, int64_t kv_head)
      : attention_(attention), tile_(tile), kv_head_(kv_head) {}

  int64_t count() const { return tile_.tokens * attention_.group; }
  int64_t position_of(int64_t row) const { return tile_.position + row / attention_.group; }

  // Whether the row sees a key of this part.
  bool sees(int64_t row, int64_t part) const {
    const int64_t position = position_of(row);
    return attention_.first_key(position) < (part + 1) * kPart && position >= part * kPart;
  }

  // Those of the `count` keys from `begin` on that the row sees, counted from `begin`; first >= last when there is
  // none.
  Range range_of(int64_t row, int64_t begin, int64_t count) const {
    const int64_t position = position_of(row);
    const int64_t first = larger(attention_.first_key(position) - begin, 0);
    const int64_t last = smaller(position + 1 - begin, count);
    return {static_cast<int>(smaller(first, count)), static_cast<int>(larger(last, 0))};
  }

  // The values of `total` may be changed.
  void write_output(int64_t row, RowState total, bool rotated) const {
    const int64_t token = tile_.first_token + row / attention_.group;
    const int64_t head = kv_head_ * attention_.group + row % attention_.group;
    const int64_t width = attention_.head_dim;
    float* out = attention_.out + (token * attention_.heads + head) * width;
    if (rotated) rotate_quickly(total.values, width);
    const float turn = rotated ? static_cast<float>(rotation_size(width)) : 1.0f;
    const Vec16 factor = set1(1.0f / (total.weight() * turn));
    int64_t at = 0;
    for (; attention_.layer.layout.pairs && !rotated && at + 32 <= width; at += 32) {
      Vec16 low;
      Vec16 high;
      zip(load(total.values + at) * factor, load(total.values + at + 16) * factor, low, high);
      store(out + at, low);
      store(out + at + 16, high);
    }
    for (; at < width; at += 16) store_up_to(out + at, load(total.values + at) * factor, width - at);
  }

private:
  const Attention& attention_;
  const Tile& tile_;
  int64_t kv_head_;
};

} // namespace octavo
