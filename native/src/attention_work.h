// One task of attention: what some rows and one kv head do with their keys, part by part.
#pragma once
#include "attention_rows.h"
#include "attention_scores.h"
#include "attention_tile.h"

namespace octavo {

constexpr int64_t kRowsToConvert = 8; // from here on a block is converted to float32 once, not by each tile of rows

// The scores of a part first, then its weights, then its values: one largest score a part, and keys and values are
// never in the way of each other. Rows are heads of tokens, token by token; neighbours whose keys lie in the same blocks
// meet them together.
template <class Format> class UnitWork {
public:
  using Type = typename Format::Type;

  UnitWork(const Attention& attention, const Row* tokens, int64_t count, int64_t kv_head, float* memory)
      : attention_(attention), layout_(attention.layer.layout), tokens_(tokens), token_count_(count),
        kv_head_(kv_head), rows_(count * attention.group), in_chunks_(layout_.block_size % 16 == 0) {
    queries_ = memory;
    scores_ = queries_ + aligned(rows_ * attention.head_dim);
    converted_ = scores_ + rows_ * kPart;
    weights_ = converted_ + kKeys * attention.padded;
    scales_ = reinterpret_cast<uint16_t*>(weights_ + rows_ * groups() * kKeys);
    float* states = weights_ + rows_ * groups() * kKeys + layout_.groups(attention.head_dim) * kKeys / 2;
    part_ = States::at(states, rows_, attention.padded);
    total_ = States::at(states + States::floats_needed(rows_, attention.padded), rows_, attention.padded);
    factors_ = states + 2 * States::floats_needed(rows_, attention.padded);
    first_keys_ = reinterpret_cast<int32_t*>(factors_ + 2 * States::rounded(rows_));
    last_keys_ = first_keys_ + States::rounded(rows_);
    for (int64_t row = 0; row < rows_; ++row) {
      const Row& token = tokens[row / attention.group];
      last_keys_[row] = token.last_key;
      first_keys_[row] = static_cast<int32_t>(attention.first_key(token.position));
    }
    fetch_first_keys();
    for (int64_t token = 0; token < count; ++token) load_queries(token);
    if constexpr (Format::kRotated) {
      for (int64_t row = 0; row < rows_; row += 16) rotate_queries(row, smaller(16, rows_ - row));
    }
  }

  static int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    const int64_t rows = tokens * attention.group;
    const int64_t groups = attention.layer.layout.groups(attention.head_dim);
    const int64_t scales = groups * kKeys / 2; // of 16 bits
    return aligned(rows * attention.head_dim) + rows * kPart + kKeys * attention.padded + rows * groups * kKeys +
           scales + 2 * States::floats_needed(rows, attention.padded) + 4 * States::rounded(rows);
  }

  // Sums over one part, for the rows that see it.
  void run_part(int64_t part) {
    memset(part_.values, 0, static_cast<size_t>(rows_ * attention_.padded) * sizeof(float));
    const int64_t begin = part * kPart;
    const Range range = seen(Run{0, token_count_}, begin, kPart);
    first_ = range.first / kKeys;
    last_ = (range.last - 1) / kKeys;
    for (int64_t block = first_; block <= last_; ++block) score_block(begin, block);
    for (int64_t token = 0; token < token_count_; ++token) weigh_token(token, begin);
    for (int64_t block = first_; block <= last_; ++block) add_block(begin, block);
  }

  // Whether a token sees a key of this part; and whether it is the first that it sees.
  bool sees(int64_t token, int64_t part) const {
    const Row& row = tokens_[token];
    return attention_.first_key(row.position) < (part + 1) * kPart && row.last_key >= part * kPart;
  }
  bool begins_with(int64_t token, int64_t part) const { return attention_.first_part(tokens_[token].position) == part; }

  // The part that ran last joins the totals.
  void join(int64_t part) {
    float* keep = factors_;
    float* take = factors_ + States::rounded(rows_);
    for (int64_t row = 0; row < rows_; row += 16) {
      const Joined joined(load(total_.largest + row), load(part_.largest + row));
      store(keep + row, joined.keep);
      store(take + row, joined.take);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t token = row / attention_.group;
      if (!sees(token, part)) continue;
      float* values = total_.values + row * attention_.padded;
      const float* more = part_.values + row * attention_.padded;
      if (begins_with(token, part)) {
        memcpy(values, more, static_cast<size_t>(attention_.padded) * sizeof(float));
        total_.largest[row] = part_.largest[row];
        total_.weight[row] = part_.weight[row];
        continue;
      }
      join_values(values, more, keep[row], take[row], attention_.padded);
      total_.weight[row] = join_weights(total_.weight[row], part_.weight[row], keep[row], take[row]);
      if (part_.largest[row] > total_.largest[row]) total_.largest[row] = part_.largest[row];
    }
  }

  // states: of the first row's first head; heads follow each other, tokens come `stride` floats apart.
  void save_part(int64_t part, float* states, int64_t stride) const {
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t token = row / attention_.group;
      if (!sees(token, part)) continue;
      float* to = states + token * stride + row % attention_.group * attention_.state_floats() + 16;
      const SavedState state = {to};
      state.largest() = part_.largest[row];
      state.weight() = part_.weight[row];
      memcpy(to, part_.values + row * attention_.padded, static_cast<size_t>(attention_.padded) * sizeof(float));
    }
  }

  void write_outputs() {
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t head = kv_head_ * attention_.group + row % attention_.group;
      float* values = total_.values + row * attention_.padded;
      write_head(attention_, tokens_[row / attention_.group].token, head, values, total_.largest[row],
                 total_.weight[row], Format::kRotated);
    }
  }

private:
  // Counted from somewhere; first >= last when there is none.
  struct Range {
    int64_t first, last;
  };
  // Tokens whose keys of a block lie in the same place.
  struct Run {
    int64_t first, last;
  };

  // Of a row that has its keys for itself; meanwhile the queries come.
  void fetch_first_keys() const {
    if (rows_ >= kRowsToConvert || !in_chunks_) return;
    const int64_t begin = first_keys_[0] / kKeys * kKeys;
    const KeyBlock<Format> block = in_place(0, begin, seen(Run{0, token_count_}, begin, kKeys));
    const int64_t lines = attention_.head_dim * 16 * layout_.bits / 8 / 64;
    for (int c = 0; c < kChunks; ++c) {
      const char* keys = reinterpret_cast<const char*>(block.keys[c]);
      for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(keys + 64 * line);
    }
  }

  void load_queries(int64_t token) {
    const int64_t width = attention_.heads * attention_.head_dim;
    const int64_t count = attention_.group * attention_.head_dim; // of one token, contiguous
    const Vec16 scale = set1(attention_.scale);
    const float* from = attention_.in + tokens_[token].token * width + kv_head_ * count;
    float* to = queries_ + token * count;
    for (int64_t at = 0; at < count; at += 16) {
      store_up_to(to + at, load_up_to(from + at, count - at) * scale, count - at);
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

  RowSet row_set(int64_t block) const {
    float* scores = scores_ + block * kKeys;
    RowSet set = {attention_.head_dim, queries_, scores, scores, kPart, part_.values, attention_.padded};
    if constexpr (Format::kScaled) {
      set.weights = weights_;
      set.weight_stride = groups() * kKeys;
    }
    return set;
  }

  // Those of `count` keys from `begin` on that a row sees.
  Range range_of(int64_t row, int64_t begin, int64_t count) const {
    const int64_t first = larger(first_keys_[row] - begin, 0);
    const int64_t last = smaller(last_keys_[row] + 1 - begin, count);
    return {smaller(first, count), larger(last, 0)};
  }

  // Those that any of the rows first_row, first_row + step, .. sees.
  Range seen(int64_t first_row, int64_t last_row, int64_t step, int64_t begin, int64_t count) const {
    Range all = {count, 0};
    for (int64_t row = first_row; row < last_row; row += step) {
      const Range range = range_of(row, begin, count);
      if (range.first >= range.last) continue;
      all.first = smaller(all.first, range.first);
      all.last = larger(all.last, range.last);
    }
    return all;
  }
  Range seen(Run run, int64_t begin, int64_t count) const {
    const int64_t group = attention_.group;
    return seen(run.first * group, run.last * group, group, begin, count);
  }

  // use(run, range): runs of tokens and the keys that they see of the block at `begin`.
  template <class F> void for_runs(int64_t begin, F&& use) const {
    for (int64_t first = 0; first < token_count_;) {
      int64_t last = first + 1;
      while (last < token_count_ && tokens_[last].common >= begin + kKeys) ++last;
      const Range range = seen(Run{first, last}, begin, kKeys);
      if (range.first < range.last) use(Run{first, last}, range);
      first = last;
    }
  }

  bool converts(Run run) const {
    return !in_chunks_ || (sizeof(Type) != 4 && (run.last - run.first) * attention_.group >= kRowsToConvert);
  }

  const uint8_t* block_of(int64_t token, int64_t position) const {
    return attention_.layer.block(attention_.layer.table(tokens_[token].slot)[position / layout_.block_size]);
  }

  // Chunks that nobody sees may have no cache block: they borrow another's address, and their scores are dropped.
  KeyBlock<Format> in_place(int64_t token, int64_t begin, Range range) const {
    KeyBlock<Format> block{};
    block.key_stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    block.value_stride = layout_.value_row() / static_cast<int64_t>(sizeof(Type));
    block.scale_stride = layout_.block_size;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = begin + 16 * smaller(larger(chunk, range.first / 16), (range.last - 1) / 16);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = block_of(token, position);
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

  void score_block(int64_t part_begin, int64_t number) {
    const int64_t begin = part_begin + number * kKeys;
    const RowSet set = row_set(number);
    for_runs(begin, [&](Run run, Range range) {
      if (!converts(run)) {
        KeyBlock<Format> here = in_place(run.first, begin, range);
        look_ahead_of_scores(here, run, begin, number);
        return score(set, here, run, begin);
      }
      if (!in_chunks_) {
        gather_keys(run.first, begin, range);
        return score(set, converted_block(nullptr), run, begin);
      }
      const KeyBlock<Format> here = in_place(run.first, begin, range);
      convert_keys(here, range);
      score(set, converted_block(&here), run, begin);
    });
  }

  // After a part's last keys come its first values.
  void look_ahead_of_scores(KeyBlock<Format>& here, Run run, int64_t begin, int64_t number) const {
    const Range after = seen(run, begin + kKeys, kKeys);
    const bool more = number < last_ && after.first < after.last;
    const int64_t first = begin - (number - first_) * kKeys;
    const Range before = seen(run, first, kKeys);
    const bool same = more || before.first >= before.last;
    const KeyBlock<Format> next = more ? in_place(run.first, begin + kKeys, after)
                                  : same ? here
                                         : in_place(run.first, first, before);
    for (int c = 0; c < kChunks; ++c) here.ahead[c] = more ? next.keys[c] : next.values[c];
    here.ahead_step = more ? here.key_stride : 16;
  }

  // After a part's last values come the next part's keys, then those of the next head, which may well be this thread's
  // next task. Keys are fetched as a stretch, 16 head_dim elements a chunk.
  void look_ahead_of_values(KeyBlock<Format>& here, Run run, int64_t begin, int64_t number) const {
    const Range after = seen(run, begin + kKeys, kKeys);
    const bool more = after.first < after.last;
    if (number < last_ && more) {
      const KeyBlock<Format> next = in_place(run.first, begin + kKeys, after);
      for (int c = 0; c < kChunks; ++c) here.ahead[c] = next.values[c];
      return;
    }
    const int64_t head = more ? kv_head_ : smaller(kv_head_ + 1, attention_.kv_heads - 1);
    const int64_t next = more ? begin + kKeys : attention_.first_key(tokens_[run.first].position) / kKeys * kKeys;
    const Range range = more ? after : seen(run, next, kKeys);
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = next + 16 * smaller(larger(chunk, range.first / 16), (range.last - 1) / 16);
      const Type* keys = reinterpret_cast<const Type*>(block_of(run.first, position) + layout_.keys_at(head));
      here.ahead[chunk] = keys + position % layout_.block_size * here.value_stride;
    }
  }

  template <class Source> void score(const RowSet& set, const KeyBlock<Source>& block, Run run, int64_t begin) {
    for_row_tiles(run.first * attention_.group, run.last * attention_.group, [&](int64_t row, auto count) {
      const Range range = seen(row, row + count.value, 1, begin, kKeys);
      if (range.first >= range.last) return;
      score_rows<Source, count.value>(set, block, row, static_cast<int>(range.first / 16),
                                      static_cast<int>((range.last + 15) / 16));
    });
  }

  void convert_keys(const KeyBlock<Format>& block, Range range) {
    for (int64_t chunk = range.first / 16; chunk < (range.last + 15) / 16; ++chunk) {
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
  void gather_keys(int64_t token, int64_t begin, Range range) {
    const int64_t stride = layout_.block_size * layout_.bits / (8 * static_cast<int64_t>(sizeof(Type)));
    for (int64_t key = 0; key < kKeys; ++key) {
      float* column = converted_ + key;
      const bool in_range = key >= range.first && key < range.last;
      const int64_t position = begin + (in_range ? key : range.first);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = block_of(token, position);
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

  // The token's scores become weights.
  void weigh_token(int64_t token, int64_t begin) {
    const Range range = range_of(token * attention_.group, begin, kPart);
    if (range.first >= range.last) return;
    for (int64_t head = 0; head < attention_.group; ++head) {
      const int64_t row = token * attention_.group + head;
      float* scores = scores_ + row * kPart;
      const SeenScores seen_scores = {scores, static_cast<int>(range.first), static_cast<int>(range.last)};
      if (attention_.softcap > 0.0f) seen_scores.cap(attention_.softcap);
      if (attention_.slopes != nullptr) {
        const float slope = attention_.slopes[kv_head_ * attention_.group + head] * kLog2E;
        seen_scores.lean(slope, begin - tokens_[token].position);
      }
      if (attention_.distances != nullptr) {
        const int64_t of_head = (kv_head_ * attention_.group + head) * (2 * attention_.reach + 32);
        const int64_t distance = begin - tokens_[token].position;
        seen_scores.add_by_distance(attention_.distances + of_head, kLog2E, attention_.reach, distance);
      }
      seen_scores.hide_others();
      part_.largest[row] = seen_scores.largest_score();
      part_.weight[row] = seen_scores.to_weights(part_.largest[row]);
    }
  }

  void add_block(int64_t part_begin, int64_t number) {
    const int64_t begin = part_begin + number * kKeys;
    const RowSet set = row_set(number);
    for_runs(begin, [&](Run run, Range range) {
      if (!in_chunks_) {
        gather_values(run.first, begin, range);
        const KeyBlock<Converted<Format>> block = converted_block(nullptr);
        scale_weights(set, block, run);
        return add(set, block, run, begin);
      }
      KeyBlock<Format> here = in_place(run.first, begin, range);
      scale_weights(set, here, run);
      if (!converts(run)) {
        look_ahead_of_values(here, run, begin, number);
        return add(set, here, run, begin);
      }
      for (int64_t key = range.first; key < range.last; ++key) {
        convert_value(here.values[key / 16] + (key % 16) * here.value_stride, key);
      }
      add(set, converted_block(&here), run, begin);
    });
  }

  // Weights times the scales of the values, group by group. Those of keys that nobody sees are anything.
  template <class Source> void scale_weights(const RowSet& set, const KeyBlock<Source>& block, Run run) {
    if constexpr (Format::kScaled) {
      for (int64_t group = 0; group < groups(); ++group) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const Vec16 scale = load_bf16(block.value_scales[chunk] + group * block.scale_stride) * set1(Format::kUnit);
          for (int64_t row = run.first * attention_.group; row < run.last * attention_.group; ++row) {
            const Vec16 weight = load(set.scores + row * kPart + 16 * chunk);
            store(weights_ + (row * groups() + group) * kKeys + 16 * chunk, weight * scale);
          }
        }
      }
    }
  }

  template <class Source> void add(const RowSet& set, const KeyBlock<Source>& block, Run run, int64_t begin) {
    for_row_tiles(run.first * attention_.group, run.last * attention_.group,
                  [&](int64_t row, auto count) { add_values<Source, count.value>(set, block, row, begin); });
  }

  void gather_values(int64_t token, int64_t begin, Range range) {
    for (int64_t key = range.first; key < range.last; ++key) {
      const uint8_t* data = block_of(token, begin + key);
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
    Range common = {0, kKeys};
    for (int r = 0; r < Rows; ++r) {
      ranges[r] = range_of(row + r, begin, kKeys);
      if (ranges[r].first > common.first) common.first = ranges[r].first;
      if (ranges[r].last < common.last) common.last = ranges[r].last;
    }
    if (common.first >= common.last) {
      for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, ranges[r]);
      return;
    }
    for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, {ranges[r].first, common.first});
    value_rows<Source, Rows>(set, block, row, static_cast<int>(common.first), static_cast<int>(common.last));
    for (int r = 0; r < Rows; ++r) add_row_values(set, block, row + r, {common.last, ranges[r].last});
  }

  template <class Source>
  void add_row_values(const RowSet& set, const KeyBlock<Source>& block, int64_t row, Range range) {
    if (range.first >= range.last) return;
    value_rows<Source, 1>(set, block, row, static_cast<int>(range.first), static_cast<int>(range.last));
  }

  const Attention& attention_;
  const CacheLayout& layout_;
  const Row* tokens_;
  int64_t token_count_;
  int64_t kv_head_;
  int64_t rows_;
  bool in_chunks_;
  int64_t first_ = 0; // blocks of the part at hand
  int64_t last_ = 0;
  float* queries_;
  float* scores_;
  float* converted_;
  float* weights_;   // of the block at hand times scales, [rows][groups][kKeys]
  uint16_t* scales_; // gathered, [groups][kKeys]
  States part_, total_;
  float* factors_;
  int32_t *first_keys_, *last_keys_; // of the rows
};

} // namespace octavo
