// One task of attention: what a tile of query rows and one kv head does with its keys, part by part.
#pragma once
#include <math.h>
#include <string.h>

#include "attention_tile.h"
#include "cache_layout.h"
#include "kernels.h"

namespace octavo {

constexpr int64_t kPart = 256;        // keys
constexpr int64_t kTileQueries = 32;  // query rows of a task, heads of the group counted
constexpr int64_t kRowsToConvert = 8; // from here on a 16-bit block is converted once, not by each tile of rows

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
  int64_t heads, kv_heads, head_dim, padded, group, window;
  float scale, softcap;
  CacheLayer layer;
  const float* in;
  float* out;

  Attention(const Instruction& code, const Program& program)
      : heads(code.i[1]), kv_heads(code.i[2]), head_dim(code.i[3]), padded((head_dim + 15) / 16 * 16),
        group(heads / kv_heads), window(code.i[4]), scale(code.f[0]), softcap(code.f[1]),
        layer(*program.cache, code.i[5], code.i[6], kv_heads, head_dim), in(program.buffer[code.in0]),
        out(program.buffer[code.out]) {}

  int64_t tile_tokens() const { return larger(1, kTileQueries / group); }
  int64_t first_key(int64_t position) const { return window > 0 ? larger(0, position - window + 1) : 0; }
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
  const float top = part.largest() > total.largest() ? part.largest() : total.largest();
  const float keep = exp1(total.largest() - top);
  const float take = exp1(part.largest() - top);
  total.largest() = top;
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

  // Keys of the block at `begin` that the row sees.
  Range range_of(int64_t row, int64_t begin) const {
    const int64_t position = position_of(row);
    const int64_t first = larger(attention_.first_key(position) - begin, 0);
    const int64_t last = smaller(position + 1 - begin, kKeys);
    return {static_cast<int>(smaller(first, kKeys)), static_cast<int>(larger(last, 0))};
  }

  void write_output(int64_t row, RowState total) const {
    const int64_t token = tile_.first_token + row / attention_.group;
    const int64_t head = kv_head_ * attention_.group + row % attention_.group;
    const int64_t width = attention_.head_dim;
    float* out = attention_.out + (token * attention_.heads + head) * width;
    const Vec16 factor = set1(1.0f / total.weight());
    for (int64_t at = 0; at < width; at += 16) store_up_to(out + at, load(total.values + at) * factor, width - at);
  }

private:
  const Attention& attention_;
  const Tile& tile_;
  int64_t kv_head_;
};

template <class Format> class TileWork {
public:
  using Type = typename Format::Type;

  TileWork(const Attention& attention, const Tile& tile, int64_t kv_head, float* memory)
      : attention_(attention), tile_(tile), table_(attention.layer.table(tile.slot)), kv_head_(kv_head),
        tile_rows_(attention, tile, kv_head), rows_(tile_rows_.count()) {
    queries_ = memory;
    scores_ = queries_ + aligned(rows_ * attention.head_dim);
    converted_ = scores_ + rows_ * kKeys;
    load_queries();
  }

  static int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
  static int64_t floats_needed(const Attention& attention, int64_t rows) {
    return aligned(rows * attention.head_dim) + rows * kKeys + 2 * kKeys * attention.padded;
  }

  // states: [rows] of state_floats, written.
  void run_part(int64_t part, float* states) {
    states_ = states;
    for (int64_t row = 0; row < rows_; ++row) clear(state_at(states, row, attention_), attention_.padded);
    const int64_t begin = larger(part * kPart, attention_.first_key(tile_.position) / kKeys * kKeys);
    const int64_t end = smaller((part + 1) * kPart, tile_.position + tile_.tokens);
    for (int64_t key = begin; key < end; key += kKeys) run_block(key);
  }

  const TileRows& rows() const { return tile_rows_; }

private:
  using Range = TileRows::Range;

  void load_queries() {
    const int64_t width = attention_.heads * attention_.head_dim;
    const int64_t count = attention_.group * attention_.head_dim; // of one token, contiguous
    const Vec16 scale = set1(attention_.scale);
    for (int64_t token = 0; token < tile_.tokens; ++token) {
      const float* from = attention_.in + (tile_.first_token + token) * width + kv_head_ * count;
      for (int64_t at = 0; at < count; at += 16) {
        store_up_to(queries_ + token * count + at, load_up_to(from + at, count - at) * scale, count - at);
      }
    }
  }

  RowSet row_set() const {
    return {attention_.head_dim, queries_, scores_, states_ + 16, attention_.state_floats()};
  }

  void run_block(int64_t begin) {
    const int64_t seen = smaller(kKeys, tile_.position + tile_.tokens - begin);
    const int64_t unseen = larger(0, attention_.first_key(tile_.position) - begin);
    const bool in_chunks = attention_.layer.layout.block_size % 16 == 0;
    if (in_chunks && (rows_ < kRowsToConvert || sizeof(Type) == 4)) {
      return multiply(in_place(begin, unseen, seen), begin);
    }
    if (in_chunks) convert(in_place(begin, unseen, seen), unseen, seen);
    else gather(begin, unseen, seen);
    multiply(converted_block(), begin);
  }

  // Chunks outside of unseen .. seen - 1 may have no block: they borrow another's address, and their scores are dropped.
  KeyBlock<Format> in_place(int64_t begin, int64_t unseen, int64_t seen) const {
    const CacheLayout& layout = attention_.layer.layout;
    KeyBlock<Format> block;
    block.key_stride = layout.block_size;
    block.value_stride = layout.value_width;
    const int64_t first = unseen / 16;
    const int64_t last = (seen - 1) / 16;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = begin + 16 * smaller(larger(chunk, first), last);
      const int64_t offset = position % layout.block_size;
      const uint8_t* data = attention_.layer.block(table_[position / layout.block_size]);
      block.keys[chunk] = reinterpret_cast<const Type*>(data + layout.keys_at(kv_head_)) + offset;
      block.values[chunk] =
          reinterpret_cast<const Type*>(data + layout.values_at(kv_head_)) + offset * layout.value_width;
    }
    return block;
  }

  float* converted_keys() const { return converted_; }
  float* converted_values() const { return converted_ + kKeys * attention_.padded; }

  KeyBlock<CacheF32> converted_block() const {
    KeyBlock<CacheF32> block;
    block.key_stride = kKeys;
    block.value_stride = attention_.padded;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      block.keys[chunk] = converted_keys() + 16 * chunk;
      block.values[chunk] = converted_values() + 16 * chunk * attention_.padded;
    }
    return block;
  }

  void convert(const KeyBlock<Format>& block, int64_t unseen, int64_t seen) {
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      for (int64_t d = 0; d < attention_.head_dim; ++d) {
        const Vec16 keys = Format::load16(block.keys[chunk] + d * block.key_stride);
        store(converted_keys() + d * kKeys + 16 * chunk, keys);
      }
    }
    for (int64_t key = unseen; key < seen; ++key) {
      convert_value(block.values[key / 16] + (key % 16) * block.value_stride, key);
    }
  }

  void convert_value(const Type* value, int64_t key) {
    float* out = converted_values() + key * attention_.padded;
    int64_t at = 0;
    for (; at + 16 <= attention_.head_dim; at += 16) store(out + at, Format::load16(value + at));
    for (; at < attention_.head_dim; ++at) out[at] = Format::load1(value[at]);
  }

  // For block sizes that chunks of 16 do not fit.
  void gather(int64_t begin, int64_t unseen, int64_t seen) {
    const CacheLayout& layout = attention_.layer.layout;
    for (int64_t key = 0; key < kKeys; ++key) {
      float* column = converted_keys() + key;
      if (key < unseen || key >= seen) {
        for (int64_t d = 0; d < attention_.head_dim; ++d) column[d * kKeys] = 0.0f;
        continue;
      }
      const int64_t offset = (begin + key) % layout.block_size;
      const uint8_t* data = attention_.layer.block(table_[(begin + key) / layout.block_size]);
      const Type* keys = reinterpret_cast<const Type*>(data + layout.keys_at(kv_head_)) + offset;
      for (int64_t d = 0; d < attention_.head_dim; ++d) {
        column[d * kKeys] = Format::load1(keys[d * layout.block_size]);
      }
      const Type* values = reinterpret_cast<const Type*>(data + layout.values_at(kv_head_));
      convert_value(values + offset * layout.value_width, key);
    }
  }

  template <class Source> void multiply(const KeyBlock<Source>& block, int64_t begin) {
    const RowSet set = row_set();
    for_row_tiles(rows_, [&](int64_t row, auto count) { score_rows<Source, count.value>(set, block, row); });
    for (int64_t row = 0; row < rows_; ++row) weigh(row, tile_rows_.range_of(row, begin));
    for_row_tiles(rows_, [&](int64_t row, auto count) { add_values<Source, count.value>(set, block, row, begin); });
  }

  // Scores become weights; what the row holds so far is brought to the new largest score.
  void weigh(int64_t row, Range range) {
    if (range.first >= range.last) return;
    float* scores = scores_ + row * kKeys;
    Vec16 score[kChunks];
    Vec16 top = set1(-INFINITY);
    for (int c = 0; c < kChunks; ++c) {
      score[c] = load(scores + 16 * c);
      if (attention_.softcap > 0.0f) {
        score[c] = tanh(score[c] / set1(attention_.softcap)) * set1(attention_.softcap);
      }
      score[c] = keep_range(score[c], lane_of(range.first, c), lane_of(range.last, c), -INFINITY);
      top = max(score[c], top);
    }
    const RowState state = state_at(states_, row, attention_);
    const float block_top = largest(top);
    const float new_top = block_top > state.largest() ? block_top : state.largest();
    if (new_top > state.largest()) {
      const float keep = exp1(state.largest() - new_top);
      state.weight() *= keep;
      for (int64_t at = 0; at < attention_.padded; at += 16) {
        store(state.values + at, load(state.values + at) * set1(keep));
      }
      state.largest() = new_top;
    }
    Vec16 weight[kChunks];
    for (int c = 0; c < kChunks; ++c) {
      weight[c] = exp(score[c] - set1(new_top));
      store(scores + 16 * c, weight[c]);
    }
    state.weight() += sum((weight[0] + weight[1]) + (weight[2] + weight[3]));
  }

  static int lane_of(int key, int chunk) {
    const int lane = key - 16 * chunk;
    return lane < 0 ? 0 : (lane > 16 ? 16 : lane);
  }

  // Keys that all rows of the tile see are multiplied for all at once; the others row by row, for a row must not meet
  // the value of a key it does not see, not even with weight 0: that value may be infinite.
  template <class Source, int Rows>
  void add_values(const RowSet& set, const KeyBlock<Source>& block, int64_t row, int64_t begin) {
    Range ranges[Rows];
    Range common = {0, static_cast<int>(kKeys)};
    for (int r = 0; r < Rows; ++r) {
      ranges[r] = tile_rows_.range_of(row + r, begin);
      if (ranges[r].first > common.first) common.first = ranges[r].first;
      if (ranges[r].last < common.last) common.last = ranges[r].last;
    }
    if (common.first >= common.last) {
      for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, ranges[r].first, ranges[r].last);
      return;
    }
    for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, ranges[r].first, common.first);
    value_rows<Source, Rows>(set, block, row, common.first, common.last);
    for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, common.last, ranges[r].last);
  }

  template <class Source>
  void add_row_values(const RowSet& set, const KeyBlock<Source>& block, int64_t row, int first, int last) {
    if (first < last) value_rows<Source, 1>(set, block, row, first, last);
  }

  const Attention& attention_;
  const Tile& tile_;
  const int32_t* table_;
  int64_t kv_head_;
  TileRows tile_rows_;
  int64_t rows_;
  float* queries_;
  float* scores_;
  float* converted_; // keys [head_dim][kKeys], values [kKeys][padded]
  float* states_ = nullptr;
};

} // namespace octavo
