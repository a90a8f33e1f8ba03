// One task of attention for many rows of one sequence, part by part: keys and values of a part are converted to float32
// once, and rows pass over them a few at a time, so that their scores, weights and sums stay close.
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

  static bool takes(const Attention& attention, const Row* tokens, int64_t count) {
    if (count * attention.group <= kRows) return false;
    for (int64_t token = 1; token < count; ++token) {
      if (tokens[token].common != kSameSequence) return false;
    }
    return true;
  }

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
    const Range all = seen_in_order(0, rows_, begin, kPart);
    for (int64_t number = all.first / kKeys; number <= (all.last - 1) / kKeys; ++number) convert_block(begin, number);
    for (int64_t first = 0; first < rows_; first += kRows) {
      const int64_t last = smaller(first + kRows, rows_);
      const int64_t base = joins ? first : 0;
      load_queries_until(last);
      run_rows(first, last, base, begin);
      if (!joins) continue;
      join_rows(first, last, base, part);
      write_outputs(first, last, part);
    }
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::queries_, Base::part_;
  using Base::convert_keys, Base::convert_values, Base::gather_keys, Base::gather_values, Base::in_place,
      Base::join_rows, Base::load_queries, Base::scale_weights, Base::seen_in_order, Base::weigh_rows, Base::wide_block,
      Base::write_outputs;
  using typename Base::Range;
  using Block = KeyBlock<Source>;

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

  void convert_block(int64_t part_begin, int64_t number) {
    const int64_t begin = part_begin + number * kKeys;
    const Range range = seen_in_order(0, rows_, begin, kKeys);
    if constexpr (kWords) {
      float* values = values_ + number * kKeys / 2 * attention_.padded;
      blocks_[number] = paired_block(in_place(0, begin, range), range, values);
    } else {
      blocks_[number] = converted_block(begin, number, range);
    }
  }

  // Keys stay where they are. The other one of a pair's values may be anything; it is there, in the same cache block.
  Block paired_block(const KeyBlock<Format>& here, Range range, float* values) const {
    Block block{};
    auto* words = reinterpret_cast<uint32_t*>(values);
    block.key_stride = here.key_stride;
    block.value_stride = attention_.padded;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      block.keys[chunk] = reinterpret_cast<const uint32_t*>(here.keys[chunk]);
      block.values[chunk] = words + 8 * chunk * attention_.padded;
    }
    for (int64_t key = range.first / 2 * 2; key < range.last; key += 2) {
      const Type* even = here.values[key / 16] + key % 16 * here.value_stride;
      zip_values(even, even + here.value_stride, attention_.head_dim, words + key / 2 * attention_.padded);
    }
    return block;
  }

  Block converted_block(int64_t begin, int64_t number, Range range) {
    float* keys = keys_ + number * kKeys * attention_.head_dim;
    float* values = values_ + number * kKeys * attention_.padded;
    uint16_t* key_scales = scales_ + 2 * number * kKeys;
    uint16_t* value_scales = key_scales + kKeys;
    if (!in_chunks_) {
      gather_keys(0, begin, range, keys, key_scales);
      gather_values(0, begin, range, values, value_scales);
      return wide_block(keys, values, nullptr, key_scales, value_scales);
    }
    const KeyBlock<Format> here = in_place(0, begin, range);
    convert_keys(here, range, keys);
    convert_values(here, range, values);
    return wide_block(keys, values, &here, nullptr, nullptr);
  }

  void run_rows(int64_t first, int64_t last, int64_t base, int64_t begin) {
    const Range range = seen_in_order(first, last, begin, kPart);
    if (range.first >= range.last) return;
    const FlushSubnormals flush(Format::kInPairs);
    float* sums = part_.values + (first - base) * attention_.padded;
    memset(sums, 0, static_cast<size_t>((last - first) * attention_.padded) * sizeof(float));
    const auto for_blocks = [&](auto&& use) {
      for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
        float* scores = scores_ + number * kKeys;
        const float* queries = queries_ + first * attention_.head_dim;
        RowSet set = {attention_.head_dim, queries, scores, scores, kPart, sums, attention_.padded};
        use(set, blocks_[number], begin + number * kKeys);
      }
    };
    for_blocks(
        [&](RowSet& set, const Block& block, int64_t at) { Base::template score<true>(set, block, first, last, at); });
    weigh_rows(first, last, scores_, begin);
    if constexpr (kWords) {
      for (int64_t at = 0; at < (last - first) * kPart; at += kKeys) pack_pairs(scores_ + at, kKeys);
    }
    for_blocks([&](RowSet& set, const Block& block, int64_t at) {
      if constexpr (Format::kScaled) {
        scale_weights(set, block, last - first, weights_);
        set.weights = weights_;
        set.weight_stride = kKeys;
      }
      Base::template add<true>(set, block, first, last, at);
    });
  }

  float *keys_, *values_; // of the part at hand: [blocks][head_dim][kKeys], [keys][padded]
  float* scores_;         // [kRows][kPart]
  float* weights_;        // of a block times scales, [kRows][kKeys]
  uint16_t* scales_;      // gathered, [blocks][2][kKeys]
  int64_t loaded_ = 0;    // tokens whose queries are there
  Block blocks_[kBlocks];
};

} // namespace octavo
