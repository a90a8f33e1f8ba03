// One task of attention: what some rows and one kv head do with their keys, part by part and block by block.
#pragma once
#include "attention_unit.h"
#include "bf16_choice.h"

namespace octavo {

constexpr int64_t kRowsToConvert = 8; // from here on a block is converted to float32 once, not by each tile of rows

// The scores of a part first, then its weights, then its values: one largest score a part, and keys and values are
// never in the way of each other. Neighbours whose keys lie in the same blocks meet them together.
template <class Format> class UnitWork : public UnitRows<Format> {
  using Base = UnitRows<Format>;

public:
  using Type = typename Format::Type;

  UnitWork(const Attention& attention, const Row* tokens, int64_t count, int64_t kv_head, Pieces memory)
      : Base(attention, tokens, count, kv_head, memory) {
    scores_ = memory.take(rows_ * kPart);
    converted_ = memory.take(kKeys * attention.padded);
    weights_ = memory.take(Format::kScaled ? rows_ * kKeys : 0);
    scales_ = reinterpret_cast<uint16_t*>(memory.take(kKeys / 2));
    fetch_first_keys();
    for (int64_t token = 0; token < count; ++token) load_queries(token);
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    const int64_t rows = tokens * attention.group;
    return Base::floats_needed(attention, tokens) + rows * (kPart + kKeys) + kKeys * attention.padded + kKeys / 2;
  }

  // Sums over one part, for the rows that see it; they join the totals when wanted, and are written after the last
  // part.
  void run_part(int64_t part, bool joins) {
    memset(part_.values, 0, static_cast<size_t>(rows_ * attention_.padded) * sizeof(float));
    const int64_t begin = part * kPart;
    const Range range = seen(Run{0, token_count_}, begin, kPart);
    first_ = range.first / kKeys;
    last_ = (range.last - 1) / kKeys;
    sum_blocks(begin);
    if (!joins) return;
    join_rows(0, rows_, 0, part);
    write_outputs(0, rows_, part);
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::queries_, Base::part_, Base::first_keys_, Base::parts_end_, Base::next_;
  using Base::block_of, Base::convert_keys, Base::convert_values, Base::gather_keys, Base::gather_values,
      Base::from_row, Base::in_place, Base::join_rows, Base::load_queries, Base::seen, Base::weigh_rows, Base::wide_block,
      Base::write_outputs;
  using typename Base::Range;
  using typename Base::Run;
  using typename Base::Wide;

  void sum_blocks(int64_t begin) {
    const FlushSubnormals flush(Format::kInPairs);
    for (int64_t block = first_; block <= last_; ++block) score_block(begin, block);
    weigh_rows(0, rows_, scores_, begin);
    for (int64_t block = first_; block <= last_; ++block) add_block(begin, block);
  }

  // Of a row that has its keys for itself; meanwhile the queries come.
  [[gnu::always_inline]] void fetch_first_keys() const {
    if (rows_ >= kRowsToConvert || !in_chunks_) return;
    const int64_t begin = first_keys_[0] / kKeys * kKeys;
    const KeyBlock<Format> block = in_place(0, begin, seen(Run{0, token_count_}, begin, kKeys));
    const int64_t lines = attention_.head_dim * 16 * layout_.bits / 8 / 64;
    for (int c = 0; c < kChunks; ++c) {
      const char* keys = reinterpret_cast<const char*>(block.keys[c]);
      for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(keys + 64 * line);
    }
  }

  RowSet row_set(int64_t block) const {
    float* scores = scores_ + block * kKeys;
    RowSet set = {attention_.head_dim, queries_, scores, scores, kPart, part_.values, attention_.padded};
    if constexpr (Format::kScaled) {
      set.weights = weights_;
      set.weight_stride = kKeys;
    }
    return set;
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

  // Keys and values are in the same place, one at a time; likewise what was gathered of their scales.
  Wide converted_block(const KeyBlock<Format>* place) const {
    return wide_block(converted_, converted_, place, scales_, scales_);
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
        gather_keys(run.first, begin, range, converted_, scales_);
        return score(set, converted_block(nullptr), run, begin);
      }
      const KeyBlock<Format> here = in_place(run.first, begin, range);
      convert_keys(here, range, converted_);
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
    const KeyBlock<Format> next = more   ? in_place(run.first, begin + kKeys, after)
                                  : same ? here
                                         : in_place(run.first, first, before);
    for (int c = 0; c < kChunks; ++c) here.ahead[c] = more ? next.keys[c] : next.values[c];
    here.ahead_step = more ? here.key_stride : 16;
  }

  // After a part's last values come the next part's keys, then what this thread does next. Keys are fetched as a
  // stretch, 16 head_dim elements a chunk.
  void look_ahead_of_values(KeyBlock<Format>& here, Run run, int64_t begin, int64_t number) const {
    const Range after = seen(run, begin + kKeys, kKeys);
    const bool more = after.first < after.last && begin + kKeys < parts_end_ * kPart;
    if (number < last_ && more) {
      const KeyBlock<Format> next = in_place(run.first, begin + kKeys, after);
      for (int c = 0; c < kChunks; ++c) here.ahead[c] = next.values[c];
      return;
    }
    const Row& row = more || next_.token == nullptr ? tokens_[run.first] : *next_.token;
    const int64_t head = more || next_.token == nullptr ? kv_head_ : next_.head;
    const int64_t first_key = attention_.first_key(row.position);
    const int64_t next = more ? begin + kKeys : larger(next_.part * kPart, first_key / kKeys * kKeys);
    const int64_t first = larger(first_key, next), last = smaller(row.last_key, next + kKeys - 1);
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const int64_t position = smaller(larger(next + 16 * chunk, first / 16 * 16), last / 16 * 16);
      const int64_t offset = position % layout_.block_size;
      const uint8_t* data = attention_.layer.block(attention_.layer.table(row.slot)[position / layout_.block_size]);
      here.ahead[chunk] = reinterpret_cast<const Type*>(data + layout_.keys_at(head)) + offset * here.value_stride;
    }
  }

  template <class Source> void score(const RowSet& set, const KeyBlock<Source>& block, Run run, int64_t begin) {
    const int64_t first = run.first * attention_.group;
    Base::score(from_row(set, first), block, first, run.last * attention_.group, begin);
  }

  template <class Source> void add(const RowSet& set, const KeyBlock<Source>& block, Run run, int64_t begin) {
    const int64_t first = run.first * attention_.group;
    Base::add(from_row(set, first), block, first, run.last * attention_.group, begin);
  }

  void add_block(int64_t part_begin, int64_t number) {
    const int64_t begin = part_begin + number * kKeys;
    const RowSet set = row_set(number);
    for_runs(begin, [&](Run run, Range range) {
      if (!in_chunks_) {
        gather_values(run.first, begin, range, converted_, scales_);
        const Wide block = converted_block(nullptr);
        scale_weights(set, block, run);
        return add(set, block, run, begin);
      }
      KeyBlock<Format> here = in_place(run.first, begin, range);
      scale_weights(set, here, run);
      if (!converts(run)) {
        look_ahead_of_values(here, run, begin, number);
        return add(set, here, run, begin);
      }
      convert_values(here, range, converted_);
      add(set, converted_block(&here), run, begin);
    });
  }

  template <class Source> void scale_weights(const RowSet& set, const KeyBlock<Source>& block, Run run) {
    const int64_t row = run.first * attention_.group, count = (run.last - run.first) * attention_.group;
    Base::scale_weights(from_row(set, row), block, count, weights_ + row * kKeys);
  }

  int64_t first_ = 0; // blocks of the part at hand
  int64_t last_ = 0;
  float* scores_;
  float* converted_;
  float* weights_;   // of the block at hand times scales, [rows][kKeys]
  uint16_t* scales_; // gathered, [kKeys]
};

} // namespace octavo
