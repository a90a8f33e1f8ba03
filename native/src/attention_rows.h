// What attention is asked for, the rows of a task, and what is kept of each row over parts of its keys.
#pragma once
#include <math.h>
#include <string.h>

#include "attention_tile.h"
#include "kernels.h"

namespace octavo {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

constexpr float kLog2E = 1.44269504f;

// Scores are in units of log 2 throughout: weights are powers of two of them.
struct Attention {
  int64_t heads, kv_heads, head_dim, padded, group, window, chunk;
  int64_t query_width; // floats of a query as it is kept
  int64_t rotation;    // kept numbers are rotated in runs of so many; 1: they are not
  bool both_ways; // keys behind the query are seen, too
  float scale, softcap;
  const float *slopes, *sinks; // of each head; null: none
  const float* distances;      // of each head, by distance; null: none
  int64_t reach;               // the distance from which on it stays the same
  CacheLayer layer;
  const float* in;
  float* out;

  Attention(const Instruction& code, const Program& program)
      : heads(code.i[1]), kv_heads(code.i[2]), head_dim(code.i[3]), padded((head_dim + 15) / 16 * 16),
        group(heads / kv_heads), window(code.i[4]), chunk(code.i[7]), query_width(head_dim),
        rotation(1), both_ways(code.i[10] != 0),
        scale(code.f[0] * kLog2E), softcap(code.f[1] * kLog2E), slopes(static_cast<const float*>(code.p[0])),
        sinks(static_cast<const float*>(code.p[1])), distances(static_cast<const float*>(code.p[2])),
        reach(static_cast<int64_t>(code.f[2])), layer(*program.cache, code, kv_heads, head_dim, head_dim),
        in(program.buffer[code.in0]), out(program.buffer[code.out]) {
    if (layer.layout.coded) rotation = rotation_size(head_dim);
  }

  // Of latents (latent.h): one head of keys, whose first elements are the values.
  struct Latents {};
  Attention(Latents, const Instruction& code, const Program& program)
      : heads(code.i[1]), kv_heads(1), head_dim(code.i[4]), padded((head_dim + 15) / 16 * 16), group(heads), window(0),
        chunk(0), query_width((code.i[3] + head_dim + 15) / 16 * 16), rotation(1), both_ways(false),
        scale(code.f[0] * kLog2E), softcap(0.0f), slopes(nullptr), sinks(nullptr), distances(nullptr), reach(0),
        layer(*program.cache, code, 1, code.i[3] + head_dim, 0), in(program.buffer[code.in0]),
        out(program.buffer[code.out]) {
    if (layer.layout.coded) rotation = rotation_size(layer.layout.key_width);
    layer.layout.pairs = false; // elements stand in a row, in every type
  }

  // Never less for a later position.
  int64_t first_key(int64_t position) const {
    const int64_t in_window = window > 0 ? larger(0, position - window + 1) : 0;
    return chunk > 0 ? larger(in_window, position / chunk * chunk) : in_window;
  }
  int64_t first_part(int64_t position) const { return first_key(position) / kPart; }
  // The last key that is seen, of a context of `length` tokens. Never less for a later position.
  int64_t last_key(int64_t position, int64_t length) const {
    if (!both_ways) return position;
    return window > 0 ? smaller(length, position + window) - 1 : length - 1;
  }
  // Of what is saved of a row and head: largest score, sum of weights, weighted values.
  int64_t state_floats() const { return padded + 16; }
};

// A token of the step, whose heads of one group a task works for.
struct Row {
  int32_t token, position, slot;
  int32_t last_key; // that it sees
  int32_t common;   // leading tokens that lie in the same blocks as those of the row before it
  int32_t saved;    // 1: its states are saved part by part
};
constexpr int32_t kSameSequence = INT32_MAX; // in place of `common`

// A task: rows over a range of parts, for some kv heads.
struct Unit {
  int32_t first_row, rows;
  int32_t first_part, parts;
  int32_t first_head, heads;
  int32_t saved; // 1: as of its rows; 0: it sees all keys of its rows
};

// Largest score, sum of weights and weighted values of rows, over some of their keys.
struct States {
  float *values, *largest, *weight; // [rows][padded], [rows], [rows]

  static int64_t floats_needed(int64_t rows, int64_t padded) { return rows * padded + 2 * rounded(rows); }
  static int64_t rounded(int64_t rows) { return (rows + 15) / 16 * 16; }
  static States at(float* memory, int64_t rows, int64_t padded) {
    float* largest = memory + rows * padded;
    return {memory, largest, largest + rounded(rows)};
  }
};

// How a sum over the parts so far and one over another part become one, 16 of them: both are relative to their own
// largest score ("online softmax", Milakov & Gimelshein 2018, arXiv:1805.02867).
struct Joined {
  Vec16 largest, keep, take;

  Joined(Vec16 total, Vec16 part)
      : largest(max(part, total)), keep(exp2_down(total - largest)), take(exp2_down(part - largest)) {}
};

inline void join_values(float* total, const float* part, float keep, float take, int64_t padded) {
  for (int64_t at = 0; at < padded; at += 16) {
    store(total + at, fma(load(part + at), set1(take), load(total + at) * set1(keep)));
  }
}

inline float join_weights(float total, float part, float keep, float take) { return total * keep + part * take; }

// What is saved of a row and head: largest score and sum of weights before the values.
struct SavedState {
  float* values; // [padded]
  float& largest() const { return values[-2]; }
  float& weight() const { return values[-1]; }
};

// The output of one head of a token: value_at(d), 16 elements of its weighted values, times `factor`.
template <class F>
inline void write_values(const Attention& attention, int64_t token, int64_t head, Vec16 factor, F&& value_at) {
  const int64_t width = attention.head_dim;
  float* out = attention.out + (token * attention.heads + head) * width;
  int64_t at = 0;
  for (; attention.layer.layout.pairs && at + 32 <= width; at += 32) {
    Vec16 low;
    Vec16 high;
    zip(value_at(at) * factor, value_at(at + 16) * factor, low, high);
    store(out + at, low);
    store(out + at + 16, high);
  }
  for (; at < width; at += 16) store_up_to(out + at, value_at(at) * factor, width - at);
}

// Likewise, of what was kept of it. `values` may be changed.
inline void write_head(const Attention& attention, int64_t token, int64_t head, float* values, float largest,
                       float weight) {
  float keep = 1.0f;
  if (attention.sinks != nullptr) { // one more key, without a value
    const Joined joined(set1(largest), set1(attention.sinks[head] * kLog2E));
    keep = first_lane(joined.keep);
    weight = join_weights(weight, 1.0f, keep, first_lane(joined.take));
  }
  if (attention.rotation > 1) rotate_quickly(values, attention.head_dim, attention.rotation);
  const Vec16 factor = set1(keep / (weight * static_cast<float>(attention.rotation)));
  write_values(attention, token, head, factor, [&](int64_t at) { return load(values + at); });
}

} // namespace octavo
