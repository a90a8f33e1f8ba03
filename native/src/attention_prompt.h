// One task of attention for many rows, of a prompt or of sequences that have blocks in common, part by part: keys and
// values of a part are converted to float32 once, and rows pass over them a few at a time, so that their scores, weights
// and sums stay close.
#pragma once
#include "attention_part.h"
#include "attention_unit.h"
#include "bf16_choice.h"
#include "linear_rows.h"

namespace octavo {

// With the bits of UnitWork. Source: what keys and values are converted to, floats or, of a bf16 cache whose blocks
// chunks of 16 keys fit, pairs.
template <class Format, class Source = Converted<Format>> class PromptWork : public UnitRows<Format> {
  using Base = UnitRows<Format>;

public:
  using Type = typename Format::Type;
  static constexpr bool kWords = std::is_same_v<Source, InPairs>;

  static bool takes(const Attention& attention, int64_t tokens) { return tokens * attention.group > kRows; }

  PromptWork(const Attention& attention, const Row* tokens, int64_t count, int64_t kv_head, Pieces memory)
      : Base(attention, tokens, count, kv_head, memory) {
    keys_ = memory.take(kPart * attention.padded);
    values_ = memory.take(kPart * attention.padded);
    scores_ = memory.take(kRows * kPart);
    weights_ = memory.take(Format::kScaled ? kRows * kKeys : 0);
    scales_ = reinterpret_cast<uint16_t*>(memory.take(kBlocks * kKeys));
    fetch_queries();
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    return Base::floats_needed(attention, tokens) + kPart * (2 * attention.padded + kRows) + (kRows + kBlocks) * kKeys;
  }

  // Sums over one part, for the rows that see it; they join the totals when wanted, and are written after the last
  // part. Else they are kept.
  void run_part(int64_t part, bool joins) {
    const int64_t begin = part * kPart;
    for (Held& held : held_) held = {{0, 0}, {0, 0}};
    in_one_ = loaded_ == 0 && part + 1 == parts_end_;
    for (int64_t first = 0; first < rows_;) {
      const Run run = run_at(first, begin);
      const bool in_place = run.last - run.first > 0;
      const int64_t last = smaller(first + kRows, in_place ? run.last : rows_);
      const int64_t base = joins ? first : 0;
      load_queries_of(first, last);
      fetch_ahead(part, first, last);
      if (in_place) {
        run_rows_of(run, first, last, base, begin);
      } else {
        run_rows(first, last, base, begin);
      }
      if (joins) finish_rows(first, last, base, part);
      first = last;
    }
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::queries_, Base::part_, Base::total_, Base::parts_end_, Base::next_, Base::first_keys_,
      Base::last_keys_;
  using Base::convert_keys, Base::convert_values, Base::from_row, Base::gather_keys, Base::gather_values,
      Base::in_place, Base::join_rows, Base::load_queries, Base::range_of, Base::scale_weights, Base::seen, Base::weigh_rows,
      Base::wide_block, Base::write_outputs;
  using typename Base::Range;
  using typename Base::Run;
  using Block = KeyBlock<Source>;

  // The tokens whose keys (values) of a block are converted; none at first.
  struct Held {
    Run keys, values;
  };

  static constexpr int64_t kRows = 18; // that pass over a part together
  static_assert(kRows % kRowsAtOnce<Converted<Format>> == 0, "whole tiles");
  static constexpr int64_t kBlocks = kPart / kKeys;

  // From memory, while rows before them are at work.
  // Inlined, for GCC takes a call that only fetches for one without effect.
  [[gnu::always_inline]] void fetch_queries() const {
    const int64_t count = attention_.group * attention_.head_dim;
    const int64_t end = smaller(loaded_ + kRows / attention_.group + 1, token_count_);
    for (int64_t token = loaded_; token < end; ++token) {
      const float* from = attention_.in + (tokens_[token].token * attention_.kv_heads + kv_head_) * count;
      for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(from + at);
    }
  }

  // Queries of a task of one part are used once, so they have room for those of rows that pass together.
  void load_queries_of(int64_t first, int64_t last) {
    const int64_t group = attention_.group, token = in_one_ ? first / group : loaded_;
    const int64_t end = (last + group - 1) / group;
    base_token_ = in_one_ ? token : 0;
    for (int64_t next = token; next < end; ++next) {
      load_queries(next, next - base_token_);
      for (int64_t head = 0; kWords && head < group; ++head) {
        pack_pairs(queries_ + ((next - base_token_) * group + head) * attention_.head_dim, attention_.head_dim);
      }
    }
    if (loaded_ >= end) return;
    loaded_ = end;
    fetch_queries();
  }

  const float* queries_of(int64_t row) const {
    return queries_ + (row - base_token_ * attention_.group) * attention_.head_dim;
  }

  // What this thread needs next, while rows pass over what is there: the next part, or the next task's first one.
  [[gnu::always_inline]] void fetch_ahead(int64_t part, int64_t first, int64_t last) const {
    const bool more = part + 1 < parts_end_;
    if (layout_.block_size > kKeys || (!more && next_.token == nullptr)) return;
    const Row& row = more ? tokens_[0] : *next_.token;
    const int64_t begin = (more ? part + 1 : next_.part) * kPart;
    const int64_t first_key = larger(begin, attention_.first_key(row.position));
    const int64_t blocks = (smaller(begin + kPart - 1, row.last_key) - first_key) / layout_.block_size + 1;
    const int32_t* table = attention_.layer.table(row.slot) + first_key / layout_.block_size;
    for (int64_t block = blocks * first / rows_; block < blocks * last / rows_; ++block) {
      const uint8_t* data = attention_.layer.block(table[block]) + layout_.keys_at(more ? kv_head_ : next_.head);
      for (int64_t at = 0; at < layout_.head_bytes; at += 64) __builtin_prefetch(data + at, 0, 2);
    }
  }

  // From `token` on, those that have the block at `begin` in common.
  Run run_from(int64_t token, int64_t begin) const {
    Run run = {token, token + 1};
    while (run.last < token_count_ && tokens_[run.last].common >= begin + kKeys) ++run.last;
    return run;
  }

  // use(block, first, last): rows of first_row .. last_row - 1 whose keys of a block lie in the same place, and that
  // place; of values, when not of keys.
  template <class F> void for_runs(int64_t part_begin, int64_t number, bool keys, Run rows, F&& use) {
    const int64_t begin = part_begin + number * kKeys, group = attention_.group;
    for (int64_t first = rows.first; first < rows.last;) {
      const int64_t token = first / group;
      Run& held = keys ? held_[number].keys : held_[number].values;
      const bool there = held.first <= token && token < held.last;
      const Run run = there ? held : run_from(token, begin);
      const int64_t last = smaller(rows.last, run.last * group);
      const Range range = seen(first, last, 1, begin, kKeys);
      if (range.first < range.last) {
        if (!there) convert_block(begin, number, keys, run);
        held = run;
        use(blocks_[number], first, last);
      }
      first = last;
    }
  }

  void convert_block(int64_t begin, int64_t number, bool keys, Run run) {
    const Range range = seen(run, begin, kKeys);
    if constexpr (kWords) {
      float* values = values_ + number * kKeys / 2 * attention_.padded;
      paired_block(in_place(run.first, begin, range), range, keys, values, blocks_[number]);
    } else {
      converted_block(begin, number, range, keys, run);
    }
  }

  // Keys stay where they are. The other one of a pair's values may be anything; it is there, in the same cache block.
  void paired_block(const KeyBlock<Format>& here, Range range, bool keys, float* values, Block& block) const {
    auto* words = reinterpret_cast<uint32_t*>(values);
    block.key_stride = here.key_stride;
    block.value_stride = attention_.padded;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      if (keys) block.keys[chunk] = reinterpret_cast<const uint32_t*>(here.keys[chunk]);
      block.values[chunk] = words + 8 * chunk * attention_.padded;
    }
    for (int64_t key = range.first / 2 * 2; key < range.last && !keys; key += 2) {
      const Type* even = here.values[key / 16] + key % 16 * here.value_stride;
      zip_values(even, even + here.value_stride, attention_.head_dim, words + key / 2 * attention_.padded);
    }
  }

  void converted_block(int64_t begin, int64_t number, Range range, bool of_keys, Run run) {
    float* keys = keys_ + number * kKeys * attention_.head_dim;
    float* values = values_ + number * kKeys * attention_.padded;
    uint16_t* key_scales = scales_ + 2 * number * kKeys;
    uint16_t* value_scales = key_scales + kKeys;
    Block& block = blocks_[number];
    const Block before = block; // keys may be those of another run than values
    if (!in_chunks_) {
      if (of_keys) gather_keys(run.first, begin, range, keys, key_scales);
      if (!of_keys) gather_values(run.first, begin, range, values, value_scales);
      block = wide_block(keys, values, nullptr, key_scales, value_scales);
    } else {
      const KeyBlock<Format> here = in_place(run.first, begin, range);
      if (of_keys) convert_keys(here, range, keys);
      if (!of_keys) convert_values(here, range, values);
      block = wide_block(keys, values, &here, nullptr, nullptr);
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (of_keys) block.value_scales[chunk] = before.value_scales[chunk];
      if (!of_keys) block.key_scales[chunk] = before.key_scales[chunk];
    }
  }

  // The rows from `row` on whose keys of the part at `begin` all lie in the same place: when they are many, or all that
  // there are. Else nothing; and where a tile has not all vectors of a few rows, passing over a part for each would cost
  // more than it saves.
  Run run_at(int64_t row, int64_t begin) const {
    if (kWideVectors < 4 || attention_.head_dim % 16 != 0) return {0, 0};
    Run run = {row / attention_.group, row / attention_.group + 1};
    while (run.last < token_count_ && tokens_[run.last].common >= begin + kPart) ++run.last;
    const Run rows = {row, run.last * attention_.group};
    return rows.last - rows.first >= kRows || run.last == token_count_ ? rows : Run{0, 0};
  }

  // Rows of a run, of which all keys and values are in place.
  void run_rows_of(Run run, int64_t first, int64_t last, int64_t base, int64_t begin) {
    const Range range = seen(first, last, 1, begin, kPart);
    if (range.first >= range.last) return;
    const int64_t group = attention_.group;
    for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
      hold(Run{first / group, run.last / group}, begin + number * kKeys, number);
    }
    const FlushSubnormals flush(Format::kInPairs);
    int firsts[kRows], lasts[kRows];
    for (int64_t row = first; row < last; ++row) {
      const Range of_row = range_of(row, begin, kPart);
      firsts[row - first] = static_cast<int>(of_row.first);
      lasts[row - first] = static_cast<int>(of_row.last);
    }
    RowSet set = {attention_.head_dim, queries_of(first), scores_, scores_, kPart,
                  part_.values + (first - base) * attention_.padded, attention_.padded};
    const auto for_tiles = [&](auto&& use) {
      for_row_tiles<kRowsAtOnce<Source>>(0, last - first, [&](int64_t row, auto count) {
        use(row, count, TileKeys(firsts + row, lasts + row, count.value, Format::kInPairs));
      });
    };
    if (last_keys_[first] / kPart * kPart == begin) fetch_outputs(first, last);
    for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
      set.scores = scores_ + number * kKeys;
      for_tiles([&](int64_t row, auto count, const TileKeys& keys) {
        score_tile_of<count.value>(set, number, row, keys);
      });
    }
    Base::template weigh_rows<kWords>(first, last, scores_, begin);
    if constexpr (Format::kScaled) scale_part(last - first, range);
    for_tiles([&](int64_t row, auto count, const TileKeys& keys) {
      part_rows<Source, count.value>(set, values_, row, keys);
    });
  }

  // Where outputs of rows will be written.
  void fetch_outputs(int64_t first, int64_t last) const {
    const int64_t group = attention_.group, width = attention_.head_dim;
    for (int64_t token = first / group; token < (last + group - 1) / group; ++token) {
      const float* out = attention_.out + (tokens_[token].token * attention_.heads + kv_head_ * group) * width;
      for (int64_t at = 0; at < group * width; at += 16) fetch_for_writing(out + at);
    }
  }

  // Keys and values of a block are those of these tokens.
  void hold(Run tokens, int64_t begin, int64_t number) {
    const auto hold_one = [&](Run& run, bool keys) {
      if (run.first <= tokens.first && tokens.first < run.last) return;
      convert_block(begin, number, keys, tokens);
      run = tokens;
    };
    hold_one(held_[number].keys, true);
    hold_one(held_[number].values, false);
  }

  template <int Rows> void score_tile_of(const RowSet& set, int64_t number, int64_t row, const TileKeys& keys) const {
    const int begin = static_cast<int>(number * kKeys);
    const int first = (keys.first > begin ? keys.first - begin : 0) / 16;
    const int last = (keys.last < begin + kKeys ? keys.last - begin + 15 : static_cast<int>(kKeys)) / 16;
    if (first >= last) return;
    if constexpr (kWords) {
      score_rows_in_pairs<Rows>(set, blocks_[number], row, first, last);
    } else {
      score_rows<Source, Rows>(set, blocks_[number], row, first, last);
    }
  }

  // Weights become weights times the scales of values.
  void scale_part(int64_t rows, Range range) {
    for (int64_t chunk = range.first / 16; chunk < (range.last + 15) / 16; ++chunk) {
      const Vec16 scale = load_bf16(blocks_[chunk / kChunks].value_scales[chunk % kChunks]) * set1(Format::kUnit);
      float* weights = scores_ + 16 * chunk;
      for (int64_t row = 0; row < rows; ++row) store(weights + row * kPart, load(weights + row * kPart) * scale);
    }
  }

  // As join_rows and write_outputs, for rows of which all begin or none, and all end or none.
  void finish_rows(int64_t first, int64_t last, int64_t base, int64_t part) {
    const bool begins = first_keys_[first] / kPart == part, ends = last_keys_[first] / kPart == part;
    bool alike = true;
    for (int64_t row = first; row < last; ++row) {
      const int64_t first_part = first_keys_[row] / kPart, last_part = last_keys_[row] / kPart;
      alike = alike && first_part <= part && part <= last_part && begins == (first_part == part) &&
              ends == (last_part == part);
    }
    if (!alike) {
      join_rows(first, last, base, part);
      return write_outputs(first, last, part);
    }
    float keep[16], take[16], factor[16];
    for (int64_t row = first; row < last; row += 16) {
      const int64_t count = smaller(16, last - row);
      Vec16 largest = load_up_to(part_.largest + row, count), weight = load_up_to(part_.weight + row, count);
      if (!begins) {
        const Vec16 before = load_up_to(total_.largest + row, count);
        const Joined joined(before, largest);
        store(keep, joined.keep);
        store(take, joined.take);
        weight = load_up_to(total_.weight + row, count) * joined.keep + weight * joined.take;
        largest = select_less(before, largest, largest, before);
      }
      if (ends) store(factor, output_factors(row, count, largest, weight));
      store_up_to(total_.largest + row, largest, count);
      store_up_to(total_.weight + row, weight, count);
      for (int64_t place = 0; place < count; ++place) {
        finish_row(row + place, row + place - base, begins ? nullptr : keep + place, take + place,
                   ends ? factor + place : nullptr);
      }
    }
  }

  // What the values of rows from `row` on are multiplied by in the end.
  Vec16 output_factors(int64_t row, int64_t count, Vec16 largest, Vec16 weight) const {
    if (attention_.sinks == nullptr) return set1(1.0f) / weight;
    float sinks[16] = {};
    for (int64_t place = 0; place < count; ++place) {
      sinks[place] = attention_.sinks[kv_head_ * attention_.group + (row + place) % attention_.group] * kLog2E;
    }
    const Joined joined(largest, load(sinks));
    return joined.keep / (weight * joined.keep + joined.take);
  }

  // keep: null when this is the row's first part; factor: null when it is not the last one.
  void finish_row(int64_t row, int64_t place, const float* keep, const float* take, const float* factor) {
    float* total = total_.values + row * attention_.padded;
    const float* more = part_.values + place * attention_.padded;
    const auto joined = [&](int64_t at) {
      if (keep == nullptr) return load(more + at);
      return fma(load(more + at), set1(*take), load(total + at) * set1(*keep));
    };
    if (factor == nullptr) {
      for (int64_t at = 0; at < attention_.padded; at += 16) store(total + at, joined(at));
      return;
    }
    const int64_t token = row / attention_.group, head = kv_head_ * attention_.group + row - token * attention_.group;
    write_values(attention_, tokens_[token].token, head, set1(*factor), joined);
  }

  // Rows whose keys may lie in several places.
  void run_rows(int64_t first, int64_t last, int64_t base, int64_t begin) {
    const Range range = seen(first, last, 1, begin, kPart);
    if (range.first >= range.last) return;
    const FlushSubnormals flush(Format::kInPairs);
    float* sums = part_.values + (first - base) * attention_.padded;
    memset(sums, 0, static_cast<size_t>((last - first) * attention_.padded) * sizeof(float));
    const auto for_blocks = [&](bool keys, auto&& use) {
      for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
        float* scores = scores_ + number * kKeys;
        const RowSet all = {attention_.head_dim, queries_of(first), scores, scores, kPart, sums, attention_.padded};
        for_runs(begin, number, keys, Run{first, last}, [&](const Block& block, int64_t from, int64_t to) {
          use(from_row(all, from - first), block, from, to, begin + number * kKeys);
        });
      }
    };
    for_blocks(true, [&](const RowSet& set, const Block& block, int64_t from, int64_t to, int64_t at) {
      Base::score(set, block, from, to, at);
    });
    weigh_rows(first, last, scores_, begin);
    if constexpr (kWords) {
      for (int64_t at = 0; at < (last - first) * kPart; at += kKeys) pack_pairs(scores_ + at, kKeys);
    }
    for_blocks(false, [&](RowSet set, const Block& block, int64_t from, int64_t to, int64_t at) {
      if constexpr (Format::kScaled) {
        scale_weights(set, block, to - from, weights_);
        set.weights = weights_;
        set.weight_stride = kKeys;
      }
      Base::add(set, block, from, to, at);
    });
  }

  float *keys_, *values_; // of the part at hand: [blocks][head_dim][kKeys], [keys][padded]
  float* scores_;         // [kRows][kPart]
  float* weights_;        // of a block times scales, [kRows][kKeys]
  uint16_t* scales_;      // gathered, [blocks][2][kKeys]
  bool in_one_ = false;   // all is done in one part
  int64_t loaded_ = 0;    // tokens whose queries are there, or were
  int64_t base_token_ = 0; // whose queries come first
  Block blocks_[kBlocks];
  Held held_[kBlocks];
};

} // namespace octavo
