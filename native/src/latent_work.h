// One task of attention in the latent space: all heads of some tokens meet the same keys, which are values too.
#pragma once
#include "attention_unit.h"
#include "latent.h"

namespace octavo {

struct LatentAttention : Attention {
  int64_t nope, rope;
  const float* rotated; // what LATENT_CACHE made of queries, [heads][nope + rope]

  LatentAttention(const Instruction& code, const Program& program)
      : Attention(Latents(), code, program), nope(code.i[2]), rope(code.i[3]), rotated(program.buffer[code.in1]) {}
};

// Rows of the cache are made float32 once for all heads and tokens that meet them; what a row computes then is the same
// for every type. A score is summed in 16 lanes over the row's elements, then over the lanes; an output element is one
// chain over a part's keys.
template <class Format> class LatentWork : public UnitRows<CacheF32> {
public:
  LatentWork(const LatentAttention& attention, const Row* tokens, int64_t count, int64_t kv_head, Pieces memory)
      : UnitRows(attention, tokens, count, kv_head, memory), stride_(attention.query_width) {
    kept_ = memory.take(kPart * stride_);
    scores_ = memory.take(kRows * kPart);
    for (int64_t token = 0; token < count; ++token) load_latent_queries(attention, token);
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    return UnitRows::floats_needed(attention, tokens) + kPart * (attention.query_width + kRows);
  }

  void run_part(int64_t part, bool joins) {
    const int64_t begin = part * kPart;
    for (Run& held : held_) held = {0, 0};
    for (int64_t first = 0; first < rows_; first += kRows) {
      const int64_t last = smaller(first + kRows, rows_);
      const int64_t base = joins ? first : 0;
      run_rows(first, last, base, begin);
      if (!joins) continue;
      join_rows(first, last, base, part);
      write_outputs(first, last, part);
    }
  }

private:
  static constexpr int64_t kRows = 18; // that pass over a part together
  static constexpr int64_t kBlocks = kPart / kKeys;
  static constexpr int kScoreKeys = kWideVectors; // of a tile

  // A query is the one of the latent, then the rotated one, scaled; zeros fill the last vector. H q . H k = size q . k
  // when numbers are rotated, and size is a power of two.
  void load_latent_queries(const LatentAttention& attention, int64_t token) {
    const int64_t rank = attention.head_dim, width = rank + attention.rope, head = attention.nope + attention.rope;
    const float scale = attention.scale / static_cast<float>(attention.rotation);
    for (int64_t of = 0; of < attention.heads; ++of) {
      const int64_t at = tokens_[token].token * attention.heads + of;
      float* query = queries_ + (token * attention.heads + of) * stride_;
      const float* from = attention.in + at * rank;
      const float* turned = attention.rotated + at * head + attention.nope;
      for (int64_t d = 0; d < rank; ++d) query[d] = from[d] * scale;
      for (int64_t d = rank; d < width; ++d) query[d] = turned[d - rank] * scale;
      for (int64_t d = width; d < stride_; ++d) query[d] = 0.0f;
      if (attention.rotation > 1) rotate_quickly(query, width, attention.rotation);
    }
  }

  // From `token` on, those that have the block at `begin` in common.
  Run run_from(int64_t token, int64_t begin) const {
    Run run = {token, token + 1};
    while (run.last < token_count_ && tokens_[run.last].common >= begin + kKeys) ++run.last;
    return run;
  }

  // use(kept, first, last, begin): rows of first_row .. last_row - 1 whose keys of a block lie in the same place.
  template <class F> void for_runs(int64_t part_begin, int64_t number, Run rows, F&& use) {
    const int64_t begin = part_begin + number * kKeys, group = attention_.group;
    float* kept = kept_ + number * kKeys * stride_;
    Run& held = held_[number];
    for (int64_t first = rows.first; first < rows.last;) {
      const int64_t token = first / group;
      const bool there = held.first <= token && token < held.last;
      const Run run = there ? held : run_from(token, begin);
      const int64_t last = smaller(rows.last, run.last * group);
      const Range range = seen(first, last, 1, begin, kKeys);
      if (range.first < range.last) {
        if (!there) read_keys(run, begin, kept);
        held = run;
        use(kept, first, last, begin);
      }
      first = last;
    }
  }

  void read_keys(Run run, int64_t begin, float* kept) const {
    const Range range = seen(run, begin, kKeys);
    for (int64_t key = range.first; key < range.last; ++key) {
      const LatentPlace place(attention_.layer, tokens_[run.first].slot, begin + key);
      read_latent<Format>(layout_, place, kept + key * stride_);
    }
  }

  void run_rows(int64_t first, int64_t last, int64_t base, int64_t begin) {
    const Range range = seen(first, last, 1, begin, kPart);
    if (range.first >= range.last) return;
    float* sums = part_.values + (first - base) * attention_.padded;
    memset(sums, 0, static_cast<size_t>((last - first) * attention_.padded) * sizeof(float));
    const auto for_blocks = [&](auto&& use) {
      for (int64_t number = range.first / kKeys; number <= (range.last - 1) / kKeys; ++number) {
        for_runs(begin, number, Run{first, last}, [&](const float* kept, int64_t from, int64_t to, int64_t at) {
          use(kept, scores_ + number * kKeys, from, to, at);
        });
      }
    };
    for_blocks([&](const float* kept, float* scores, int64_t from, int64_t to, int64_t at) {
      score_latents(kept, scores - first * kPart, from, to, at);
    });
    weigh_rows(first, last, scores_, begin);
    for_blocks([&](const float* kept, float* scores, int64_t from, int64_t to, int64_t at) {
      const RowSet set = {attention_.head_dim, nullptr, nullptr, scores + (from - first) * kPart, kPart,
                          sums + (from - first) * attention_.padded, attention_.padded};
      KeyBlock<Converted<CacheF32>> block{};
      block.value_stride = stride_;
      for (int64_t chunk = 0; chunk < kChunks; ++chunk) block.values[chunk] = kept + 16 * chunk * stride_;
      add(set, block, from, to, at);
    });
  }

  // scores: those of row 0 would be first.
  void score_latents(const float* kept, float* scores, int64_t first, int64_t last, int64_t begin) const {
    for_row_tiles<kWideRows>(first, last, [&](int64_t row, auto count) {
      const Range range = seen(row, row + count.value, 1, begin, kKeys);
      int64_t key = range.first;
      for (; key + kScoreKeys <= range.last; key += kScoreKeys) {
        score_tile_of<count.value, kScoreKeys>(kept, scores, row, key);
      }
      for (; key < range.last; ++key) score_tile_of<count.value, 1>(kept, scores, row, key);
    });
  }

  template <int Rows, int Keys>
  void score_tile_of(const float* kept, float* scores, int64_t row, int64_t key) const {
    Vec16 totals[Rows][Keys];
    clear_tile(totals);
    const float* query = queries_ + row * stride_;
    const float* keys = kept + key * stride_;
    for (int64_t d = 0; d < stride_; d += 16) {
      Vec16 values[Keys];
#pragma GCC unroll 4
      for (int k = 0; k < Keys; ++k) values[k] = load(keys + k * stride_ + d);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Vec16 q = load(query + r * stride_ + d);
#pragma GCC unroll 4
        for (int k = 0; k < Keys; ++k) totals[r][k] = fma(q, values[k], totals[r][k]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < Keys; ++k) scores[(row + r) * kPart + key + k] = sum(totals[r][k]);
    }
  }

  int64_t stride_;     // of queries and of what is kept, in float32
  float* kept_;        // of the part at hand: [kPart][stride]
  float* scores_;      // [kRows][kPart]
  Run held_[kBlocks];  // the tokens whose block is there
};

} // namespace octavo
