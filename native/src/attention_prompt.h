// One task of attention for many rows, of a prompt or of sequences that have blocks in common, part by part: keys and
// values of a part are converted to float32 once, and rows pass over them a few at a time, so that their scores, weights
// and sums stay close.
#pragma once
#include "attention_unit.h"
#include "bf16_choice.h"

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
    for (int64_t first = 0; first < rows_; first += kRows) {
      const int64_t last = smaller(first + kRows, rows_);
      const int64_t base = joins ? first : 0;
      load_queries_until(last);
      fetch_ahead(part, first, last);
      run_rows(first, last, base, begin);
      if (!joins) continue;
      join_rows(first, last, base, part);
      write_outputs(first, last, part);
    }
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::queries_, Base::part_, Base::parts_end_, Base::next_;
  using Base::convert_keys, Base::convert_values, Base::from_row, Base::gather_keys, Base::gather_values,
      Base::in_place, Base::join_rows, Base::load_queries, Base::scale_weights, Base::seen, Base::weigh_rows,
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

  void load_queries_until(int64_t row) {
    const int64_t before = loaded_;
    for (; loaded_ * attention_.group < row; ++loaded_) load_queries(loaded_);
    if constexpr (kWords) {
      for (int64_t row = before * attention_.group; row < loaded_ * attention_.group; ++row) {
        pack_pairs(queries_ + row * attention_.head_dim, attention_.head_dim);
      }
    }
    if (before == loaded_) return;
    fetch_queries();
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

  void run_rows(int64_t first, int64_t last, int64_t base, int64_t begin) {
    const Range range = seen(first, last, 1, begin, kPart);
    if (range.first >= range.last) return;
    const FlushSubnormals flush(Format::kInPairs);
    float* sums = part_.values + (first - base) * attention_.padded;
    memset(sums, 0, static_cast<size_t>((last - first) * attention_.padded) * sizeof(float));
    const auto for_blocks = [&](bool keys, auto&& use) {
      for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
        float* scores = scores_ + number * kKeys;
        const float* queries = queries_ + first * attention_.head_dim;
        const RowSet all = {attention_.head_dim, queries, scores, scores, kPart, sums, attention_.padded};
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
  int64_t loaded_ = 0;    // tokens whose queries are there
  Block blocks_[kBlocks];
  Held held_[kBlocks];
};

} // namespace octavo
