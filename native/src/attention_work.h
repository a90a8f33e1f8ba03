// One task of attention: what a tile of query rows and one kv head does with its keys, part by part.
#pragma once
#include "attention_rows.h"
#include "attention_tile.h"

namespace octavo {

constexpr int64_t kRowsToConvert = 8; // from here on a block is converted to float32 once, not by each tile of rows

// The scores of a part first, then its weights, then its values: one largest score a part, and keys and values are
// never in the way of each other.
template <class Format> class TileWork {
public:
  using Type = typename Format::Type;

  TileWork(const Attention& attention, const Tile& tile, int64_t kv_head, float* memory)
      : attention_(attention), layout_(attention.layer.layout), tile_(tile), table_(attention.layer.table(tile.slot)),
        kv_head_(kv_head), tile_rows_(attention, tile, kv_head), rows_(tile_rows_.count()),
        in_chunks_(layout_.block_size % 16 == 0),
        converts_(!in_chunks_ || (sizeof(Type) != 4 && rows_ >= kRowsToConvert)) {
    queries_ = memory;
    scores_ = queries_ + aligned(rows_ * attention.head_dim);
    converted_ = scores_ + rows_ * kPart;
    weights_ = converted_ + kKeys * attention.padded;
    scales_ = reinterpret_cast<uint16_t*>(weights_ + rows_ * groups() * kKeys);
    load_queries();
  }

  static int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
  static int64_t floats_needed(const Attention& attention, int64_t rows) {
    const int64_t groups = attention.layer.layout.groups(attention.head_dim);
    const int64_t scales = groups * kKeys / 2; // of 16 bits
    return aligned(rows * attention.head_dim) + rows * kPart + kKeys * attention.padded + rows * groups * kKeys + scales;
  }

  // states: [rows] of state_floats, written.
  void run_part(int64_t part, float* states) {
    for (int64_t row = 0; row < rows_; ++row) clear(state_at(states, row, attention_), attention_.padded);
    const int64_t begin = part * kPart;
    const int64_t first_seen = attention_.first_key(tile_.position) - begin;
    const int64_t first = larger(0, first_seen / kKeys);
    const int64_t end = smaller(kPart, tile_.position + tile_.tokens - begin);
    first_ = first;
    last_ = (end - 1) / kKeys;
    for (int64_t block = first; block <= last_; ++block) score_block(begin + block * kKeys, block, states);
    for (int64_t row = 0; row < rows_; ++row) weigh(row, begin, state_at(states, row, attention_));
    for (int64_t block = first; block <= last_; ++block) add_block(begin + block * kKeys, block, states);
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
    if constexpr (Format::kRotated) {
      for (int64_t row = 0; row < rows_; row += 16) rotate_queries(row, smaller(16, rows_ - row));
    }
  }

  // H q . H k = size q . k, and size is a power of two. Rows are turned as lanes, with the converted block's room.
  void rotate_queries(int64_t first, int64_t count) {
    const int64_t width = attention_.head_dim;
    const float part = 1.0f / static_cast<float>(rotation_size(width));
    float* queries = queries_ + first * width;
    for (int64_t d = 0; d < width; ++d) {
      for (int64_t row = 0; row < count; ++row) converted_[16 * d + row] = queries[row * width + d] * part;
      for (int64_t row = count; row < 16; ++row) converted_[16 * d + row] = 0.0f;
    }
    rotate_lanes(converted_, width);
    for (int64_t d = 0; d < width; ++d) {
      for (int64_t row = 0; row < count; ++row) queries[row * width + d] = converted_[16 * d + row];
    }
  }

  int64_t groups() const { return Format::kScaled ? layout_.groups(attention_.head_dim) : 0; }

  RowSet row_set(int64_t block, float* states) const {
    float* scores = scores_ + block * kKeys;
    RowSet set = {attention_.head_dim, queries_, scores, scores, kPart, states + 16, attention_.state_floats()};
    if constexpr (Format::kScaled) {
      set.weights = weights_;
      set.weight_stride = groups() * kKeys;
    }
    return set;
  }

  // Keys of the block at `begin` that any row sees.
  Range seen(int64_t begin) const {
    return {static_cast<int>(larger(0, attention_.first_key(tile_.position) - begin)),
            static_cast<int>(smaller(kKeys, tile_.position + tile_.tokens - begin))};
  }

  const uint8_t* block_of(int64_t position) const {
    return attention_.layer.block(table_[position / layout_.block_size]);
  }

  // Chunks that nobody sees may have no cache block: they borrow another's address, and their scores are dropped.
  int64_t seen_position(int64_t begin, int64_t chunk) const {
    const Range range = seen(begin);
    return begin + 16 * smaller(larger(chunk, range.first / 16), (range.last - 1) / 16);
  }

  KeyBlock<Format> in_place(int64_t begin) const {
    KeyBlock<Format> block{};
    block.key_stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    block.value_stride = layout_.value_row() / static_cast<int64_t>(sizeof(Type));
    block.scale_stride = layout_.block_size;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = seen_position(begin, chunk);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = block_of(position);
      block.keys[chunk] = reinterpret_cast<const Type*>(data + layout_.keys_at(kv_head_)) + key_offset(offset);
      block.values[chunk] =
          reinterpret_cast<const Type*>(data + layout_.values_at(kv_head_)) + offset * block.value_stride;
      if constexpr (Format::kScaled) {
        block.key_scales[chunk] = reinterpret_cast<const uint16_t*>(data + layout_.key_scales_at(kv_head_)) + offset;
        block.value_scales[chunk] =
            reinterpret_cast<const uint16_t*>(data + layout_.value_scales_at(kv_head_)) + offset;
      }
    }
    return block;
  }

  // Where the key at `offset` of a block begins.
  static int64_t key_offset(int64_t offset) { return Format::kPairs && sizeof(Type) == 2 ? 2 * offset : offset; }

  // The converted block's keys are [head_dim][kKeys], its values [kKeys][padded], one at a time. Scales stay where they
  // are, or were gathered.
  KeyBlock<Converted<Format>> converted_block(const KeyBlock<Format>* place) const {
    KeyBlock<Converted<Format>> block{};
    if constexpr (Format::kScaled) {
      block.scale_stride = place == nullptr ? kKeys : place->scale_stride;
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        block.key_scales[chunk] = place == nullptr ? scales_ + 16 * chunk : place->key_scales[chunk];
        block.value_scales[chunk] = place == nullptr ? scales_ + 16 * chunk : place->value_scales[chunk];
      }
    }
    block.key_stride = kKeys;
    block.value_stride = attention_.padded;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      block.keys[chunk] = converted_ + 16 * chunk;
      block.values[chunk] = converted_ + 16 * chunk * attention_.padded;
    }
    return block;
  }

  void score_block(int64_t begin, int64_t block, float* states) {
    const RowSet set = row_set(block, states);
    if (!converts_) {
      KeyBlock<Format> here = in_place(begin);
      look_ahead_of_scores(here, begin, block);
      return score(set, here);
    }
    if (!in_chunks_) {
      gather_keys(begin);
      return score(set, converted_block(nullptr));
    }
    const KeyBlock<Format> here = in_place(begin);
    convert_keys(here);
    score(set, converted_block(&here));
  }

  // After a part's last keys come its first values.
  void look_ahead_of_scores(KeyBlock<Format>& here, int64_t begin, int64_t block) const {
    const bool more = block < last_;
    const KeyBlock<Format> next = in_place(more ? begin + kKeys : begin - (last_ - first_) * kKeys);
    for (int c = 0; c < kChunks; ++c) here.ahead[c] = more ? next.keys[c] : next.values[c];
    here.ahead_step = more ? here.key_stride : 16;
  }

  // After a part's last values come the next part's keys, then those of the next head, which may well be this thread's
  // next task. Keys are fetched as a stretch, 16 head_dim elements a chunk.
  void look_ahead_of_values(KeyBlock<Format>& here, int64_t begin, int64_t block) const {
    if (block < last_) {
      const KeyBlock<Format> next = in_place(begin + kKeys);
      for (int c = 0; c < kChunks; ++c) here.ahead[c] = next.values[c];
      return;
    }
    const bool same_head = begin + kKeys < tile_.position + tile_.tokens;
    const int64_t head = same_head ? kv_head_ : smaller(kv_head_ + 1, attention_.kv_heads - 1);
    const int64_t next = same_head ? begin + kKeys : attention_.first_key(tile_.position) / kKeys * kKeys;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = seen_position(next, chunk);
      const Type* keys = reinterpret_cast<const Type*>(block_of(position) + layout_.keys_at(head));
      here.ahead[chunk] = keys + position % layout_.block_size * here.value_stride;
    }
  }

  template <class Source> void score(const RowSet& set, const KeyBlock<Source>& block) {
    for_row_tiles(rows_, [&](int64_t row, auto count) { score_rows<Source, count.value>(set, block, row); });
  }

  void convert_keys(const KeyBlock<Format>& block) {
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      float* out = converted_ + 16 * chunk;
      for (int64_t d = 0; d < attention_.head_dim; d += Format::kPairs ? 2 : 1) {
        const Type* keys = block.keys[chunk] + d * block.key_stride;
        if constexpr (Format::kPairs) {
          Vec16 even;
          Vec16 odd;
          Format::load32(keys, even, odd);
          store(out + d * kKeys, even);
          if (d + 1 < attention_.head_dim) store(out + (d + 1) * kKeys, odd);
        } else {
          store(out + d * kKeys, Format::load16(keys));
        }
      }
    }
  }

  // For block sizes that chunks of 16 do not fit.
  void gather_keys(int64_t begin) {
    const Range range = seen(begin);
    const int64_t stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    for (int64_t key = 0; key < kKeys; ++key) {
      float* column = converted_ + key;
      const bool in_range = key >= range.first && key < range.last;
      const int64_t position = begin + (in_range ? key : range.first);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = block_of(position);
      const Type* keys = reinterpret_cast<const Type*>(data + layout_.keys_at(kv_head_)) + key_offset(offset);
      for (int64_t d = 0; d < attention_.head_dim; ++d) {
        const int64_t within = Format::kPairs ? d % 2 : 0;
        column[d * kKeys] = Format::load_rest(keys + (d - within) * stride, within);
      }
      gather_scales(data + layout_.key_scales_at(kv_head_), offset, key);
    }
  }

  void gather_scales(const uint8_t* data, int64_t offset, int64_t key) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(data) + offset;
    for (int64_t group = 0; group < groups(); ++group) scales_[group * kKeys + key] = scales[group * layout_.block_size];
  }

  // The row's scores become weights e^(score - largest).
  void weigh(int64_t row, int64_t begin, RowState state) {
    const Range range = tile_rows_.range_of(row, begin, kPart);
    if (range.first >= range.last) return;
    float* scores = scores_ + row * kPart;
    const int first = range.first / 16 * 16;
    Vec16 tops[4] = {set1(-INFINITY), set1(-INFINITY), set1(-INFINITY), set1(-INFINITY)};
    for (int at = first; at < range.last; at += 16) {
      Vec16 score = load(scores + at);
      if (attention_.softcap > 0.0f) {
        score = tanh(score / set1(attention_.softcap)) * set1(attention_.softcap);
      }
      score = keep_seen(score, at, range);
      store(scores + at, score);
      tops[at / 16 % 4] = max(score, tops[at / 16 % 4]);
    }
    state.largest() = largest(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
    const Vec16 top = set1(state.largest());
    Vec16 sums[4] = {zero(), zero(), zero(), zero()};
    for (int at = first; at < range.last; at += 16) {
      const Vec16 weight = exp(load(scores + at) - top);
      store(scores + at, weight);
      sums[at / 16 % 4] = sums[at / 16 % 4] + weight;
    }
    state.weight() = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  static Vec16 keep_seen(Vec16 score, int at, Range range) {
    if (range.first <= at && at + 16 <= range.last) return score;
    const int first = range.first > at ? range.first - at : 0;
    const int last = range.last < at + 16 ? range.last - at : 16;
    return keep_range(score, first, last, -INFINITY);
  }

  void add_block(int64_t begin, int64_t block, float* states) {
    const RowSet set = row_set(block, states);
    if (!converts_) {
      KeyBlock<Format> here = in_place(begin);
      look_ahead_of_values(here, begin, block);
      scale_weights(set, here);
      return add(set, here, begin);
    }
    if (!in_chunks_) {
      gather_values(begin);
      const KeyBlock<Converted<Format>> block = converted_block(nullptr);
      scale_weights(set, block);
      return add(set, block, begin);
    }
    const KeyBlock<Format> here = in_place(begin);
    convert_values(here, seen(begin));
    scale_weights(set, here);
    add(set, converted_block(&here), begin);
  }

  // Weights times the scales of the values, group by group. Those of keys that nobody sees are anything.
  template <class Source> void scale_weights(const RowSet& set, const KeyBlock<Source>& block) {
    if constexpr (Format::kScaled) {
      for (int64_t group = 0; group < groups(); ++group) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const Vec16 scale = load_bf16(block.value_scales[chunk] + group * block.scale_stride) * set1(Format::kUnit);
          for (int64_t row = 0; row < rows_; ++row) {
            const Vec16 weight = load(set.scores + row * kPart + 16 * chunk);
            store(weights_ + (row * groups() + group) * kKeys + 16 * chunk, weight * scale);
          }
        }
      }
    }
  }

  template <class Source> void add(const RowSet& set, const KeyBlock<Source>& block, int64_t begin) {
    for_row_tiles(rows_, [&](int64_t row, auto count) { add_values<Source, count.value>(set, block, row, begin); });
  }

  void convert_values(const KeyBlock<Format>& block, Range range) {
    for (int key = range.first; key < range.last; ++key) {
      convert_value(block.values[key / 16] + (key % 16) * block.value_stride, key);
    }
  }

  void gather_values(int64_t begin) {
    const Range range = seen(begin);
    for (int key = range.first; key < range.last; ++key) {
      const uint8_t* data = block_of(begin + key);
      const int64_t offset = (begin + key) % layout_.block_size;
      convert_value(reinterpret_cast<const Type*>(data + layout_.values_at(kv_head_) + offset * layout_.value_row()), key);
      gather_scales(data + layout_.value_scales_at(kv_head_), offset, key);
    }
  }

  void convert_value(const Type* value, int64_t key) {
    float* out = converted_ + key * attention_.padded;
    int64_t at = 0;
    for (; at + 32 <= attention_.head_dim; at += 32) {
      Vec16 first;
      Vec16 second;
      Format::load32(Format::at(value, at), first, second);
      store(out + at, first);
      store(out + at + 16, second);
    }
    for (; at + 16 <= attention_.head_dim; at += 16) store(out + at, Format::load16(Format::at(value, at)));
    for (int64_t i = 0; at + i < attention_.head_dim; ++i) out[at + i] = Format::load_rest(Format::at(value, at), i);
  }

  // Keys that all rows of the tile see are multiplied for all at once; the others row by row, for a row must not meet
  // the value of a key it does not see, not even with weight 0: that value may be infinite.
  template <class Source, int Rows>
  void add_values(const RowSet& set, const KeyBlock<Source>& block, int64_t row, int64_t begin) {
    Range ranges[Rows];
    Range common = {0, static_cast<int>(kKeys)};
    for (int r = 0; r < Rows; ++r) {
      ranges[r] = tile_rows_.range_of(row + r, begin, kKeys);
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
  const CacheLayout& layout_;
  const Tile& tile_;
  const int32_t* table_;
  int64_t kv_head_;
  TileRows tile_rows_;
  int64_t rows_;
  bool in_chunks_;
  bool converts_;
  int64_t first_ = 0; // blocks of the part at hand
  int64_t last_ = 0;
  float* queries_;
  float* scores_;
  float* converted_;
  float* weights_;   // of the block at hand times scales, [rows][groups][kKeys]
  uint16_t* scales_; // gathered, [groups][kKeys]
};

} // namespace octavo
