// The rows of a task of attention: which keys they see, their queries, and what is done with them row by row.
#pragma once
#include "attention_pairs.h"
#include "attention_rows.h"
#include "attention_scores.h"
#include "attention_tile.h"
#include "simd/lanes.h"

namespace octavo {

// Hands out a thread's memory piece by piece.
struct Pieces {
  float* next;

  static int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
  float* take(int64_t floats) {
    float* piece = next;
    next += aligned(floats);
    return piece;
  }
};

// Rows are heads of tokens, token by token.
template <class Format> class UnitRows {
public:
  using Type = typename Format::Type;
  using Wide = KeyBlock<Converted<Format>>; // converted to float32

  UnitRows(const Attention& attention, const Row* tokens, int64_t count, int64_t kv_head, Pieces& memory)
      : attention_(attention), layout_(attention.layer.layout), tokens_(tokens), token_count_(count), kv_head_(kv_head),
        rows_(count * attention.group), in_chunks_(layout_.block_size % 16 == 0) {
    queries_ = memory.take(rows_ * attention.query_width);
    part_ = States::at(memory.take(States::floats_needed(rows_, attention.padded)), rows_, attention.padded);
    total_ = States::at(memory.take(States::floats_needed(rows_, attention.padded)), rows_, attention.padded);
    factors_ = memory.take(2 * States::rounded(rows_));
    first_keys_ = reinterpret_cast<int32_t*>(memory.take(rows_));
    last_keys_ = reinterpret_cast<int32_t*>(memory.take(rows_));
    for (int64_t token = 0, row = 0; token < count; ++token) {
      in_order_ = in_order_ && (token == 0 || tokens[token].common == kSameSequence);
      const auto first_key = static_cast<int32_t>(attention.first_key(tokens[token].position));
      for (const int64_t end = row + attention.group; row < end; ++row) {
        last_keys_[row] = tokens[token].last_key;
        first_keys_[row] = first_key;
      }
    }
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    const int64_t rows = tokens * attention.group;
    return Pieces::aligned(rows * attention.query_width) +
           2 * Pieces::aligned(States::floats_needed(rows, attention.padded)) + 4 * States::rounded(rows);
  }

  // Where a task begins: its first token, head and part.
  struct Start {
    const Row* token;
    int64_t head, part;
  };

  // That parts end there, and what this thread is likely to do then; no token: nothing.
  void expect(int64_t end, Start next) {
    parts_end_ = end;
    next_ = next;
  }

  // Whether a token sees a key of this part; and whether it is the first that it sees.
  bool sees(int64_t token, int64_t part) const {
    const Row& row = tokens_[token];
    return attention_.first_key(row.position) < (part + 1) * kPart && row.last_key >= part * kPart;
  }
  bool begins_with(int64_t token, int64_t part) const { return attention_.first_part(tokens_[token].position) == part; }

  // Rows first .. last - 1 of the part that ran last join the totals. Sums of the part begin with those of row `base`.
  void join_rows(int64_t first, int64_t last, int64_t base, int64_t part) {
    float* keep = factors_;
    float* take = factors_ + States::rounded(rows_);
    for (int64_t row = first; row < last; row += 16) {
      const Joined joined(load(total_.largest + row), load(part_.largest + row));
      store(keep + row - first, joined.keep);
      store(take + row - first, joined.take);
    }
    for (int64_t row = first; row < last; ++row) {
      const int64_t token = row / attention_.group;
      if (!sees(token, part)) continue;
      float* values = total_.values + row * attention_.padded;
      const float* more = part_.values + (row - base) * attention_.padded;
      if (begins_with(token, part)) {
        memcpy(values, more, static_cast<size_t>(attention_.padded) * sizeof(float));
        total_.largest[row] = part_.largest[row];
        total_.weight[row] = part_.weight[row];
        continue;
      }
      join_values(values, more, keep[row - first], take[row - first], attention_.padded);
      total_.weight[row] = join_weights(total_.weight[row], part_.weight[row], keep[row - first], take[row - first]);
      if (part_.largest[row] > total_.largest[row]) total_.largest[row] = part_.largest[row];
    }
  }

  // states: of the first row's first head; heads follow each other, tokens come `stride` floats apart.
  void save_part(int64_t part, float* states, int64_t stride) const {
    const float* values = part_.values;
    for (int64_t token = 0, row = 0; token < token_count_; ++token, states += stride) {
      const bool seen_here = sees(token, part);
      float* to = states + 16;
      for (const int64_t end = row + attention_.group; row < end; ++row, to += attention_.state_floats()) {
        if (seen_here) {
          const SavedState state = {to};
          state.largest() = part_.largest[row];
          state.weight() = part_.weight[row];
          for (int64_t at = 0; at < attention_.padded; at += 16) store(to + at, load(values + at));
        }
        values += attention_.padded;
      }
    }
  }

  // Of rows first .. last - 1 that see no part after this one.
  void write_outputs(int64_t first, int64_t last, int64_t part) {
    for (int64_t row = first; row < last; ++row) {
      if (last_keys_[row] / kPart != part) continue;
      const int64_t head = kv_head_ * attention_.group + row % attention_.group;
      float* values = total_.values + row * attention_.padded;
      write_head(attention_, tokens_[row / attention_.group].token, head, values, total_.largest[row],
                 total_.weight[row]);
    }
  }

protected:
  // Counted from somewhere; first >= last when there is none.
  struct Range {
    int64_t first, last;
  };
  // Tokens whose keys of a block lie in the same place.
  struct Run {
    int64_t first, last;
  };

  void load_queries(int64_t token) { load_queries(token, token); }

  // Of a token, to where those of the one at `place` belong.
  void load_queries(int64_t token, int64_t place) {
    const int64_t width = attention_.heads * attention_.head_dim;
    const int64_t count = attention_.group * attention_.head_dim; // of one token, contiguous
    const Vec16 scale = set1(attention_.scale);
    const float* from = attention_.in + tokens_[token].token * width + kv_head_ * count;
    float* to = queries_ + place * count;
    for (int64_t at = 0; at < count; at += 16) {
      const Vec16 query = load_up_to(from + at, count - at) * scale;
      store_up_to(to + at, Format::kInPairs ? rounded_to_bf16(query) : query, count - at);
    }
  }

  // Those of `count` keys from `begin` on that a row sees.
  Range range_of(int64_t row, int64_t begin, int64_t count) const {
    const int64_t first = larger(first_keys_[row] - begin, 0);
    const int64_t last = smaller(last_keys_[row] + 1 - begin, count);
    return {smaller(first, count), larger(last, 0)};
  }

  // Those that any of the rows first_row, first_row + step, .. sees. Of one sequence neither end is less for a later row.
  Range seen(int64_t first_row, int64_t last_row, int64_t step, int64_t begin, int64_t count) const {
    if (in_order_) return {range_of(first_row, begin, count).first, range_of(last_row - 1, begin, count).last};
    Range all = {count, 0};
    for (int64_t row = first_row; row < last_row; row += step) {
      const Range range = range_of(row, begin, count);
      if (range.first >= range.last) continue;
      all.first = smaller(all.first, range.first);
      all.last = larger(all.last, range.last);
    }
    return all;
  }
  // Those that all of them see; none of two that are added as a pair without the other.
  Range common(int64_t first_row, int64_t last_row, int64_t begin, int64_t count) const {
    const Range all = common_keys(first_row, last_row, begin, count);
    return Format::kInPairs ? Range{(all.first + 1) / 2 * 2, all.last / 2 * 2} : all;
  }
  Range common_keys(int64_t first_row, int64_t last_row, int64_t begin, int64_t count) const {
    if (in_order_) return {range_of(last_row - 1, begin, count).first, range_of(first_row, begin, count).last};
    Range all = {0, count};
    for (int64_t row = first_row; row < last_row; ++row) {
      const Range range = range_of(row, begin, count);
      all.first = larger(all.first, range.first);
      all.last = smaller(all.last, range.last);
    }
    return all;
  }
  Range seen(Run run, int64_t begin, int64_t count) const {
    const int64_t group = attention_.group;
    return seen(run.first * group, run.last * group, group, begin, count);
  }

  const uint8_t* block_of(int64_t token, int64_t position) const {
    return attention_.layer.block(attention_.layer.table(tokens_[token].slot)[position / layout_.block_size]);
  }

  // Chunks that nobody sees may have no cache block: they borrow another's address, and their scores are dropped.
  KeyBlock<Format> in_place(int64_t token, int64_t begin, Range range) const {
    KeyBlock<Format> block{};
    block.key_stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    block.value_stride = layout_.value_row() / static_cast<int64_t>(sizeof(Type));
    const int64_t first = range.first / 16, last = (range.last - 1) / 16;
    const int32_t* table = attention_.layer.table(tokens_[token].slot) + (begin + 16 * first) / layout_.block_size;
    int64_t offset = (begin + 16 * first) % layout_.block_size;
    const uint8_t* data = attention_.layer.block(*table);
    for (int64_t chunk = first;; ++chunk) {
      place_chunk(data, offset, chunk, block);
      if (chunk == last) break;
      offset += 16;
      if (offset < layout_.block_size) continue;
      offset = 0;
      data = attention_.layer.block(*++table);
    }
    for (int64_t chunk = 0; chunk < first; ++chunk) borrow_chunk(chunk, first, block);
    for (int64_t chunk = last + 1; chunk < kChunks; ++chunk) borrow_chunk(chunk, last, block);
    return block;
  }

  void place_chunk(const uint8_t* data, int64_t offset, int64_t chunk, KeyBlock<Format>& block) const {
    block.keys[chunk] = reinterpret_cast<const Type*>(data + layout_.keys_at(kv_head_)) + key_offset(offset);
    block.values[chunk] = reinterpret_cast<const Type*>(data + layout_.values_at(kv_head_)) + offset * block.value_stride;
    if constexpr (Format::kScaled) {
      block.key_scales[chunk] = reinterpret_cast<const uint16_t*>(data + layout_.key_scales_at(kv_head_)) + offset;
      block.value_scales[chunk] = reinterpret_cast<const uint16_t*>(data + layout_.value_scales_at(kv_head_)) + offset;
    }
  }

  static void borrow_chunk(int64_t chunk, int64_t from, KeyBlock<Format>& block) {
    block.keys[chunk] = block.keys[from];
    block.values[chunk] = block.values[from];
    block.key_scales[chunk] = block.key_scales[from];
    block.value_scales[chunk] = block.value_scales[from];
  }

  // Where the key at `offset` of a block begins.
  static int64_t key_offset(int64_t offset) { return Format::kPairs && sizeof(Type) == 2 ? 2 * offset : offset; }

  // Keys as [head_dim][kKeys], values as [kKeys][padded]. Scales stay where they are, or were gathered.
  Wide wide_block(const float* keys, const float* values, const KeyBlock<Format>* place, const uint16_t* key_scales,
                  const uint16_t* value_scales) const {
    Wide block{};
    if constexpr (Format::kScaled) {
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        block.key_scales[chunk] = place == nullptr ? key_scales + 16 * chunk : place->key_scales[chunk];
        block.value_scales[chunk] = place == nullptr ? value_scales + 16 * chunk : place->value_scales[chunk];
      }
    }
    block.key_stride = kKeys;
    block.value_stride = attention_.padded;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      block.keys[chunk] = keys + 16 * chunk;
      block.values[chunk] = values + 16 * chunk * attention_.padded;
    }
    return block;
  }

  // [head_dim][kKeys]
  void convert_keys(const KeyBlock<Format>& block, Range range, float* keys) const {
    for (int64_t chunk = range.first / 16; chunk < (range.last + 15) / 16; ++chunk) {
      float* out = keys + 16 * chunk;
      for (int64_t d = 0; d < attention_.head_dim; d += Format::kPairs ? 2 : 1) {
        const Type* from = block.keys[chunk] + d * block.key_stride;
        if constexpr (Format::kPairs) {
          Vec16 even;
          Vec16 odd;
          Format::load32(from, even, odd);
          store(out + d * kKeys, even);
          if (d + 1 < attention_.head_dim) store(out + (d + 1) * kKeys, odd);
        } else {
          store(out + d * kKeys, Format::load16(from));
        }
      }
    }
  }

  // [kKeys][padded]
  void convert_values(const KeyBlock<Format>& block, Range range, float* values) const {
    for (int64_t key = range.first; key < range.last; ++key) {
      convert_value(block.values[key / 16] + (key % 16) * block.value_stride, values + key * attention_.padded);
    }
  }

  void convert_value(const Type* value, float* out) const {
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

  // For block sizes that chunks of 16 do not fit.
  void gather_keys(int64_t token, int64_t begin, Range range, float* keys, uint16_t* scales) const {
    const int64_t stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    for (int64_t key = 0; key < kKeys; ++key) {
      float* column = keys + key;
      const bool in_range = key >= range.first && key < range.last;
      const int64_t position = begin + (in_range ? key : range.first);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = block_of(token, position);
      const Type* from = reinterpret_cast<const Type*>(data + layout_.keys_at(kv_head_)) + key_offset(offset);
      for (int64_t d = 0; d < attention_.head_dim; ++d) {
        const int64_t within = Format::kPairs ? d % 2 : 0;
        column[d * kKeys] = Format::load_rest(from + (d - within) * stride, within);
      }
      gather_scale(data + layout_.key_scales_at(kv_head_), offset, scales + key);
    }
  }

  void gather_values(int64_t token, int64_t begin, Range range, float* values, uint16_t* scales) const {
    for (int64_t key = range.first; key < range.last; ++key) {
      const uint8_t* data = block_of(token, begin + key);
      const int64_t offset = (begin + key) % layout_.block_size;
      const uint8_t* value = data + layout_.values_at(kv_head_) + offset * layout_.value_row();
      convert_value(reinterpret_cast<const Type*>(value), values + key * attention_.padded);
      gather_scale(data + layout_.value_scales_at(kv_head_), offset, scales + key);
    }
  }

  void gather_scale(const uint8_t* data, int64_t offset, uint16_t* scale) const {
    if constexpr (Format::kScaled) *scale = reinterpret_cast<const uint16_t*>(data)[offset];
  }

  // A row's scores over the part at `begin`: capped, and leant by distance.
  void bend_scores(int64_t row, int64_t begin, const SeenScores& scores) const {
    if (attention_.softcap > 0.0f) scores.cap(attention_.softcap);
    const int64_t head = kv_head_ * attention_.group + row % attention_.group;
    const int64_t distance = begin - tokens_[row / attention_.group].position;
    if (attention_.slopes != nullptr) scores.lean(attention_.slopes[head] * kLog2E, distance);
    if (attention_.distances != nullptr) {
      const float* of_head = attention_.distances + head * (2 * attention_.reach + 32);
      scores.add_by_distance(of_head, kLog2E, attention_.reach, distance);
    }
  }

  // Scores of rows first .. last - 1 over the part at `begin` become weights, packed or not (SeenScores::to_weights).
  template <bool Packed = false> void weigh_rows(int64_t first, int64_t last, float* scores, int64_t begin) {
    for (int64_t row = first; row < last; row += 16) {
      weigh_some<Packed>(row, smaller(row + 16, last), scores + (row - first) * kPart, begin);
    }
  }

  template <bool Packed> void weigh_some(int64_t first, int64_t last, float* scores, int64_t begin) {
    const int count = static_cast<int>(last - first);
    float lanes[16 * 16];
    for (int place = count; place < 16; ++place) store(lanes + 16 * place, zero());
    const auto for_rows = [&](auto&& lanes_of) {
      for (int place = 0; place < count; ++place) {
        const Range range = range_of(first + place, begin, kPart);
        const SeenScores seen_scores = {scores + place * kPart, static_cast<int>(range.first),
                                        static_cast<int>(range.last)};
        const bool any = range.first < range.last;
        store(lanes + 16 * place, any ? lanes_of(seen_scores, first + place) : zero());
      }
    };
    for_rows([&](const SeenScores& seen_scores, int64_t row) {
      bend_scores(row, begin, seen_scores);
      return seen_scores.largest_lanes();
    });
    store_up_to(part_.largest + first, largest_of_each(lanes, count), count);
    for_rows([&](const SeenScores& seen_scores, int64_t row) {
      return seen_scores.template to_weights<Format::kInPairs, Packed>(part_.largest[row]);
    });
    store_up_to(part_.weight + first, sum_of_each(lanes, count), count);
  }

  // The set from its row `row` on.
  static RowSet from_row(RowSet set, int64_t row) {
    set.queries += row * set.head_dim;
    set.scores += row * kPart;
    set.weights += row * set.weight_stride;
    set.sums += row * set.sums_stride;
    return set;
  }

  // Weights times the scales of the values, of `count` rows, [count][kKeys]. Those of keys that nobody sees are
  // anything.
  template <class Source>
  void scale_weights(const RowSet& set, const KeyBlock<Source>& block, int64_t count, float* weights) const {
    if constexpr (Format::kScaled) {
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const Vec16 scale = load_bf16(block.value_scales[chunk]) * set1(Format::kUnit);
        for (int64_t row = 0; row < count; ++row) {
          const Vec16 weight = load(set.scores + row * kPart + 16 * chunk);
          store(weights + row * kKeys + 16 * chunk, weight * scale);
        }
      }
    }
  }

  // Of rows first .. last - 1, which are the rows 0 .. of the set, and the block at `begin`.
  template <class Source>
  void score(const RowSet& set, const KeyBlock<Source>& block, int64_t first, int64_t last, int64_t begin) const {
    for_row_tiles<kRowsAtOnce<Source>>(first, last, [&](int64_t row, auto count) {
      const Range range = seen(row, row + count.value, 1, begin, kKeys);
      if (range.first >= range.last) return;
      const int begin_chunk = static_cast<int>(range.first / 16), end_chunk = static_cast<int>((range.last + 15) / 16);
      if constexpr (std::is_same_v<Source, InPairs>) {
        score_rows_in_pairs<count.value>(set, block, row - first, begin_chunk, end_chunk);
      } else {
        score_rows<Source, count.value>(set, block, row - first, begin_chunk, end_chunk);
      }
    });
  }

  template <class Source>
  void add(const RowSet& set, const KeyBlock<Source>& block, int64_t first, int64_t last, int64_t begin) const {
    for_row_tiles<kRowsAtOnce<Source>>(first, last, [&](int64_t row, auto count) {
      add_values<Source, count.value>(set, block, row, row - first, begin);
    });
  }

  // Keys that all rows of the tile see are multiplied for all at once; the others row by row, for a row must not meet
  // the value of a key it does not see, not even with weight 0: that value may be infinite.
  template <class Source, int Rows>
  void add_values(const RowSet& set, const KeyBlock<Source>& block, int64_t row, int64_t place, int64_t begin) const {
    const Range all = common(row, row + Rows, begin, kKeys);
    const bool any = all.first < all.last;
    for (int r = 0; r < Rows && (!any || all.first > 0); ++r) {
      const Range range = range_of(row + r, begin, kKeys);
      add_row_values(set, block, place + r, {range.first, any ? all.first : range.last});
    }
    if (!any) return;
    add_tile<Source, Rows>(set, block, place, all);
    for (int r = 0; r < Rows && all.last < kKeys; ++r) {
      add_row_values(set, block, place + r, {all.last, range_of(row + r, begin, kKeys).last});
    }
  }

  template <class Source>
  void add_row_values(const RowSet& set, const KeyBlock<Source>& block, int64_t place, Range range) const {
    if (range.first < range.last) add_tile<Source, 1>(set, block, place, range);
  }

  template <class Source, int Rows>
  void add_tile(const RowSet& set, const KeyBlock<Source>& block, int64_t place, Range range) const {
    const int first = static_cast<int>(range.first), last = static_cast<int>(range.last);
    if constexpr (std::is_same_v<Source, InPairs>) {
      value_rows_in_pairs<Rows>(set, block, place, first, last);
    } else {
      value_rows<Source, Rows>(set, block, place, first, last);
    }
  }

  const Attention& attention_;
  const CacheLayout& layout_;
  const Row* tokens_;
  int64_t token_count_;
  int64_t kv_head_;
  int64_t rows_;
  bool in_chunks_;
  bool in_order_ = true; // all of one sequence
  int64_t parts_end_ = 0;
  Start next_ = {nullptr, 0, 0};
  float* queries_;
  States part_, total_;
  float* factors_;
  int32_t *first_keys_, *last_keys_; // of the rows
};

} // namespace octavo
