// One task of attention over a cache of codes (int8, int4), part by part: queries and weights are rounded to 16 bits,
// so that both products are sums of integers. See docs/decisions/0021-attention-in-integers.md.
#pragma once
#include "attention_coded_tile.h"
#include "attention_coded_weights.h"
#include "attention_unit.h"

namespace octavo {

template <class Format> class CodedWork : public UnitRows<Format> {
  using Base = UnitRows<Format>;

public:
  CodedWork(const Attention& attention, const Row* tokens, int64_t count, int64_t kv_head, Pieces memory)
      : Base(attention, tokens, count, kv_head, memory), groups_(layout_.groups(attention.head_dim)),
        together_(tokens_together(attention)) {
    const int64_t rows = together_ * attention.group, padded = attention.padded;
    inputs_ = bytes(memory, rows_ * padded * kInputBytes);
    input_scales_ = memory.take(rows_);
    input_starts_ = reinterpret_cast<int32_t*>(memory.take(rows_ * groups_));
    scores_ = memory.take(rows * kPart);
    scaled_ = Format::kGrouped ? memory.take(rows * kPart) : scores_;
    scales_ = memory.take(together_ * groups_ * kPart);
    weights_ = bytes(memory, rows * groups_ * kWeightBytes);
    weight_scales_ = memory.take(rows * groups_);
    weight_starts_ = reinterpret_cast<int32_t*>(memory.take(rows * groups_));
    most_ = memory.take(rows + 4);
    sums_ = reinterpret_cast<int32_t*>(memory.take(rows * padded));
    if (!in_chunks_) {
      gathered_ = bytes(memory, gathered_bytes(attention));
      gathered_scales_ = reinterpret_cast<uint16_t*>(memory.take(groups_ * kPart / 2));
    }
    int64_t loaded = 0;
    for_fours(0, rows_, [&](int64_t row, int64_t four) {
      for (; loaded * attention.group < row + four; ++loaded) {
        if (loaded + kTokensAhead < count) fetch_rows<0>(attention.in, tokens[loaded + kTokensAhead], kv_head);
        load_queries(loaded);
      }
      round_queries(row, four);
    });
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    const int64_t all = tokens * attention.group, rows = tokens_together(attention) * attention.group;
    const int64_t groups = attention.layer.layout.groups(attention.head_dim);
    return Base::floats_needed(attention, tokens) + all * (attention.padded / 2 + 1 + groups) +
           rows * (2 * kPart + groups * (kPart + kWeightBytes / 4 + 2) + attention.padded + 1) + 4 +
           gathered_bytes(attention) / 4 + groups * kPart / 2 + 16 * 13;
  }

  // Sums over one part, for the rows that see it; they join the totals when wanted, and are written after the last
  // part. Else they are kept.
  void run_part(int64_t part, bool joins) {
    begin_ = part * kPart;
    placed_ = {-1, 0, 0, 0};
    scales_of_ = {-1, 0, 0, 0};
    look_ahead(part);
    for (int64_t first = 0; first < token_count_; first += together_) {
      const int64_t last = smaller(first + together_, token_count_);
      const bool begins = joins && begin_with(first, last, part);
      into_ = begins ? total_ : part_;
      base_ = joins && !begins ? first : 0;
      if (joins) fetch_outputs(first, last, part);
      run_tokens({first, last}, first == 0 && fetches_);
      if (!joins) continue;
      if (!begins) join_rows(first * attention_.group, last * attention_.group, first * attention_.group, part);
      write_outputs(first * attention_.group, last * attention_.group, part);
    }
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::in_order_, Base::queries_, Base::part_, Base::total_, Base::parts_end_, Base::next_;
  using Base::begins_with, Base::bend_scores, Base::block_of, Base::join_rows, Base::load_queries, Base::range_of,
      Base::seen, Base::sees, Base::write_outputs;
  using typename Base::Range;
  using typename Base::Run;

  // Tokens, and chunks of the part at hand whose keys lie in the same place for all of them.
  struct Span {
    int64_t first, last, chunk, end;
  };

  static constexpr int64_t kTokensAhead = 8;   // whose queries are fetched
  static constexpr int64_t kRowsTogether = 18; // that pass over a part together

  static int64_t tokens_together(const Attention& attention) { return larger(1, kRowsTogether / attention.group); }
  static uint8_t* bytes(Pieces& memory, int64_t count) {
    return reinterpret_cast<uint8_t*>(memory.take((count + 3) / 4));
  }
  static int64_t gathered_bytes(const Attention& attention) {
    const CacheLayout& layout = attention.layer.layout;
    return larger(layout.code_rows() * 4 * kPart, layout.value_quad() * kPart / 4);
  }

  // Of a token and kv head. Inlined, for GCC takes a call that only fetches for one without effect.
  template <int Write> [[gnu::always_inline]] void fetch_rows(const float* from, const Row& token, int64_t head) const {
    const int64_t count = attention_.group * attention_.head_dim;
    from += (token.token * attention_.kv_heads + head) * count;
    for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(from + at, Write);
  }

  // Lines that write_outputs will write.
  [[gnu::always_inline]] void fetch_outputs(int64_t first, int64_t last, int64_t part) const {
    for (int64_t token = first; token < last; ++token) {
      if (tokens_[token].last_key / kPart == part) fetch_rows<1>(attention_.out, tokens_[token], kv_head_);
    }
  }

  // use(row, count): rows first .. last - 1, four at a time.
  template <class F> static void for_fours(int64_t first, int64_t last, F&& use) {
    for (int64_t row = first; row < last; row += 4) use(row, smaller(4, last - row));
  }

  // Whether this is the first part that they see, of those that see it.
  bool begin_with(int64_t first, int64_t last, int64_t part) const {
    for (int64_t token = first; token < last; ++token) {
      if (!begins_with(token, part) && sees(token, part)) return false;
    }
    return true;
  }

  // H q . H k = size q . k, and size is a power of two.
  void round_queries(int64_t row, int64_t count) {
    const int64_t width = attention_.head_dim, size = Format::kGrouped ? kScaleGroup : attention_.padded;
    const float bound = width <= 512 ? kMostInput : floorf(kMostInput * 512 / static_cast<float>(width));
    Vec16 lanes[4] = {zero(), zero(), zero(), zero()};
    for (int64_t i = 0; i < count; ++i) {
      float* query = queries_ + (row + i) * width;
      rotate_quickly(query, width, attention_.rotation);
      lanes[i] = largest_magnitudes(query, width);
    }
    float most[4];
    largest_magnitudes_of(lanes, most);
    for (int64_t at = 0; at < width; at += size) {
      InputSums sums[4] = {no_inputs(), no_inputs(), no_inputs(), no_inputs()};
      for (int64_t i = 0; i < count; ++i) {
        const InputScale inputs(most[i], bound);
        input_scales_[row + i] = inputs.scale / static_cast<float>(attention_.rotation);
        uint8_t* to = inputs_ + ((row + i) * attention_.padded + at) * kInputBytes;
        sums[i] = inputs.round(queries_ + (row + i) * width + at, smaller(size, width - at), to);
      }
      int32_t totals[4];
      totals_of(sums, totals);
      for (int64_t i = 0; i < count; ++i) input_starts_[(row + i) * groups_ + at / size] = start_of(totals[i]);
    }
  }

  // What sums with codes begin with, since codes are raised: inputs are a sum of them.
  static int32_t start_of(int32_t inputs) { return -inputs * Format::kRaised; }

  Range seen_by(int64_t first_row, int64_t last_row) const { return seen(first_row, last_row, 1, begin_, kPart); }

  void run_tokens(Run tokens, bool fetch) {
    const int64_t group = attention_.group, first = tokens.first * group, last = tokens.last * group;
    const Range range = seen_by(first, last);
    if (range.first >= range.last) return;
    const Span all = {tokens.first, tokens.last, range.first / 16, (range.last + 15) / 16};
    const bool one = in_one_place(all);
    first_ = tokens.first;
    for_spans(all, [&](const Span& span) { score(span, fetch); });
    for_spans(all, [&](const Span& span) { load_scales(span, one); });
    weigh(first, last, one);
    for (int64_t group = 0; group < groups_; ++group) {
      for_fours(first, last, [&](int64_t row, int64_t count) { round_weights(row, count, group, all, one); });
    }
    if (!one) begin_sums(last - first);
    for_spans(all, [&](const Span& span) { add(span, one, fetch); });
    if (!one) read_sums(last - first);
  }

  // Whether for_spans will not cut this.
  bool in_one_place(const Span& all) const {
    for (int64_t token = all.first + 1; token < all.last; ++token) {
      if (tokens_[token].common < begin_ + 16 * all.end) return false;
    }
    return true;
  }

  // use(span) for all tokens and chunks of `all`, cut where tokens stop to have their blocks in common.
  template <class F> void for_spans(const Span& all, F&& use) const {
    for (int64_t first = all.first; first < all.last;) {
      int64_t last = first + 1, end = all.end;
      for (; last < all.last; ++last) {
        const int64_t common = (tokens_[last].common - begin_) / 16;
        if (tokens_[last].common < begin_ || common <= all.chunk) break;
        end = smaller(end, common);
      }
      const Range range = seen(Run{first, last}, begin_, kPart);
      const Span seen_here = {first, last, larger(all.chunk, range.first / 16), smaller(end, (range.last + 15) / 16)};
      if (range.first < range.last && seen_here.chunk < seen_here.end) use(seen_here);
      if (end < all.end) for_spans(Span{first, last, end, all.end}, use);
      first = last;
    }
  }

  // Chunks chunk .. end - 1 of the part at `begin`, of a token.
  void place(const Row& token, int64_t head, int64_t begin, int64_t chunk, int64_t end, CodedPart& part) const {
    part.key_stride = layout_.block_size * 4;
    part.value_stride = layout_.value_quad();
    part.scale_stride = layout_.block_size;
    const int64_t keys = layout_.keys_at(head), key_scales = layout_.key_scales_at(head);
    const int64_t values = layout_.values_at(head) - keys, value_scales = layout_.value_scales_at(head) - key_scales;
    const int64_t quads = part.value_stride / 4; // bytes a key
    const int32_t* table = attention_.layer.table(token.slot) + (begin + 16 * chunk) / layout_.block_size;
    int64_t offset = (begin + 16 * chunk) % layout_.block_size;
    const uint8_t* data = attention_.layer.block(*table) + keys;
    for (;; ++chunk) {
      part.keys[chunk] = data + 4 * offset;
      part.values[chunk] = data + values + offset * quads;
      part.key_scales[chunk] = reinterpret_cast<const uint16_t*>(data - keys + key_scales) + offset;
      part.value_scales[chunk] = part.key_scales[chunk] + value_scales / 2;
      if (chunk + 1 == end) return;
      offset += 16;
      if (offset < layout_.block_size) continue;
      offset = 0;
      data = attention_.layer.block(*++table) + keys;
    }
  }

  // Of one sequence all tokens have their keys in the same place.
  Span widened(const Span& span) const {
    if (!in_order_) return span;
    const Range range = seen_by(0, rows_);
    return {0, token_count_, range.first / 16, (range.last + 15) / 16};
  }
  static bool covers(const Span& one, const Span& other) {
    return one.first == other.first && one.chunk <= other.chunk && other.end <= one.end;
  }

  // What was asked for last is kept.
  const CodedPart& in_place(const Span& asked) {
    const Span span = widened(asked);
    if (covers(placed_, span)) return place_;
    placed_ = span;
    place(tokens_[span.first], kv_head_, begin_, span.chunk, span.end, place_);
    return place_;
  }

  // What is needed after this part: of the next one, else of what this thread does next.
  void look_ahead(int64_t part) {
    const bool more = part + 1 < parts_end_;
    fetches_ = in_chunks_ && (more || next_.token != nullptr);
    if (!fetches_) return;
    const Row& later = more ? tokens_[0] : *next_.token;
    if (!more) fetch_rows<0>(attention_.in, later, next_.head);
    const int64_t begin = (more ? part + 1 : next_.part) * kPart;
    const int64_t first = larger(attention_.first_key(later.position) - begin, 0) / 16;
    const int64_t end = smaller(later.last_key + 1 - begin + 15, kPart) / 16;
    fetches_ = first < end;
    if (!fetches_) return;
    place(later, more ? kv_head_ : next_.head, begin, first, end, ahead_);
    const auto repeat = [&](int64_t chunk, int64_t from) {
      ahead_.keys[chunk] = ahead_.keys[from];
      ahead_.values[chunk] = ahead_.values[from];
      ahead_.key_scales[chunk] = ahead_.key_scales[from];
    };
    for (int64_t chunk = 0; chunk < first; ++chunk) repeat(chunk, first);
    for (int64_t chunk = end; chunk < kPartChunks; ++chunk) repeat(chunk, end - 1);
  }

  // Four keys at a time, for blocks that chunks of 16 do not fit: keys, or values; and their scales.
  const CodedPart& gather(const Span& span, bool keys) {
    CodedPart& part = place_;
    part.key_stride = 4 * kPart;
    part.value_stride = layout_.value_quad();
    part.scale_stride = kPart;
    for (int64_t chunk = span.chunk; chunk < span.end; ++chunk) {
      part.keys[chunk] = gathered_ + 64 * chunk;
      part.values[chunk] = gathered_ + 4 * chunk * part.value_stride;
      part.key_scales[chunk] = part.value_scales[chunk] = gathered_scales_ + 16 * chunk;
    }
    const Range range =
        seen(span.first * attention_.group, span.last * attention_.group, attention_.group, begin_, kPart);
    for (int64_t key = larger(16 * span.chunk, range.first / 4 * 4); key < smaller(16 * span.end, range.last);
         key += 4) {
      const uint8_t* data = block_of(span.first, begin_ + key);
      const int64_t offset = (begin_ + key) % layout_.block_size;
      const uint8_t* from = data + (keys ? layout_.keys_at(kv_head_) : layout_.values_at(kv_head_));
      for (int64_t row = 0; keys && row < layout_.code_rows(); ++row) {
        memcpy(gathered_ + row * part.key_stride + 4 * key, from + (row * layout_.block_size + offset) * 4, 16);
      }
      const auto quad = static_cast<size_t>(part.value_stride);
      if (!keys) memcpy(gathered_ + key / 4 * part.value_stride, from + offset / 4 * part.value_stride, quad);
      const uint8_t* scales = data + (keys ? layout_.key_scales_at(kv_head_) : layout_.value_scales_at(kv_head_));
      for (int64_t group = 0; group < groups_; ++group) {
        memcpy(gathered_scales_ + group * kPart + key, scales + (group * layout_.block_size + offset) * 2, 8);
      }
    }
    return part;
  }

  CodedRows row_set() const {
    const int64_t row = first_ * attention_.group;
    return {attention_.head_dim,
            inputs_ + row * attention_.padded * kInputBytes,
            attention_.padded * kInputBytes,
            input_scales_ + row,
            input_starts_ + row * groups_,
            scores_,
            weights_,
            weight_scales_,
            weight_starts_,
            sums_,
            values_of(row),
            groups_,
            attention_.padded};
  }

  float* values_of(int64_t row) const { return into_.values + (row - base_ * attention_.group) * attention_.padded; }

  // use(row, count, first, last): tiles of the span's rows, counted from token `first_`, and the chunks they see.
  template <class F> void for_tiles(const Span& span, F&& use) const {
    const int64_t group = attention_.group, all = first_ * group;
    for_row_tiles<kMostDotRows>(span.first * group, span.last * group, [&](int64_t row, auto count) {
      const Range range = seen_by(row, row + count.value);
      const int64_t first = larger(span.chunk, range.first / 16), last = smaller(span.end, (range.last + 15) / 16);
      if (first < last) use(row - all, count, first, last);
    });
  }

  void score(const Span& span, bool fetch) {
    const CodedPart& part = in_chunks_ ? in_place(span) : gather(span, true);
    const CodedRows set = row_set();
    for_tiles(span, [&](int64_t row, auto count, int64_t first, int64_t last) {
      if (fetch && row == 0) {
        score_coded_rows<Format, count.value, true>(set, part, ahead_, row, first, last);
      } else {
        score_coded_rows<Format, count.value, false>(set, part, part, row, first, last);
      }
    });
  }

  void add(const Span& span, bool one, bool fetch) {
    const CodedPart& part = in_chunks_ ? in_place(span) : gather(span, false);
    CodedRows set = row_set();
    if (!one) set.values = nullptr;
    for_tiles(span, [&](int64_t row, auto count, int64_t first, int64_t last) {
      if (fetch && row == 0) {
        add_coded_rows<Format, count.value, true>(set, part, ahead_, row, first, last);
      } else {
        add_coded_rows<Format, count.value, false>(set, part, part, row, first, last);
      }
    });
  }

  // Scales of the values, of the tokens at hand, [tokens][groups][kPart], or of all of them in one place.
  float* scales_of(int64_t token, bool one) const { return scales_ + (one ? 0 : token - first_) * groups_ * kPart; }

  void load_scales(const Span& span, bool one) {
    const Span all = widened(span);
    if (in_order_ && in_chunks_ && covers(scales_of_, all)) return;
    scales_of_ = all;
    const CodedPart& part = in_chunks_ ? in_place(all) : gather(all, false);
    for (int64_t token = span.first; token < (one ? span.first + 1 : span.last); ++token) {
      for (int64_t group = 0; group < groups_; ++group) {
        float* to = scales_of(token, one) + group * kPart;
        for (int64_t chunk = all.chunk; chunk < all.end; ++chunk) {
          store(to + 16 * chunk, load_bf16(part.value_scales[chunk] + group * part.scale_stride));
        }
      }
    }
  }

  CodedScores scores_at(int64_t row) const {
    const Range range = range_of(row, begin_, kPart);
    float* scores = scores_ + (row - first_ * attention_.group) * kPart;
    return {{scores, static_cast<int>(range.first), static_cast<int>(range.last)}};
  }

  // Scores of rows first .. last - 1 become weights; of int8 they are times the values' scales already.
  void weigh(int64_t first, int64_t last, bool one) {
    for_fours(first, last, [&](int64_t row, int64_t count) {
      Vec16 lanes[4] = {zero(), zero(), zero(), zero()};
      for (int64_t i = 0; i < count; ++i) {
        const CodedScores scores = scores_at(row + i);
        if (scores.first >= scores.last) continue;
        bend_scores(row + i, begin_, scores);
        scores.hide_others();
        lanes[i] = scores.largest_lanes();
      }
      float largest[4];
      largest_of(lanes, largest);
      for (int64_t i = 0; i < count; ++i) into_.largest[row + i] = largest[i];
    });
    for_fours(first, last, [&](int64_t row, int64_t count) {
      CodedScores::Lanes lanes[4] = {{zero(), zero()}, {zero(), zero()}, {zero(), zero()}, {zero(), zero()}};
      for (int64_t i = 0; i < count; ++i) {
        const CodedScores scores = scores_at(row + i);
        if (scores.first >= scores.last) continue;
        const float* scales = scales_of((row + i) / attention_.group, one);
        lanes[i] = scores.template to_weights<!Format::kGrouped>(into_.largest[row + i], scales);
      }
      const Vec16 all[4] = {lanes[0].sums, lanes[1].sums, lanes[2].sums, lanes[3].sums};
      const Vec16 most[4] = {lanes[0].most, lanes[1].most, lanes[2].most, lanes[3].most};
      float weights[4];
      sums_of(all, weights);
      for (int64_t i = 0; i < count; ++i) into_.weight[row + i] = weights[i];
      largest_magnitudes_of(most, most_ + row - first);
    });
  }

  // Weights times scales of a group become inputs, for the chunks of `all`: those of keys that are not seen are 0.
  void round_weights(int64_t row, int64_t count, int64_t group, const Span& all, bool one) {
    const int64_t place = row - first_ * attention_.group;
    if constexpr (Format::kGrouped) {
      Vec16 lanes[4] = {zero(), zero(), zero(), zero()};
      for (int64_t i = 0; i < count; ++i) {
        const float* scales = scales_of((row + i) / attention_.group, one) + group * kPart;
        lanes[i] = scores_at(row + i).scale_to(scaled_ + (place + i) * kPart, scales);
      }
      largest_magnitudes_of(lanes, most_ + place);
    }
    InputSums sums[4] = {no_inputs(), no_inputs(), no_inputs(), no_inputs()};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (place + i) * groups_ + group;
      const InputScale scale(most_[place + i], kMostInput);
      weight_scales_[at] = scale.scale;
      uint8_t* inputs = weights_ + at * kWeightBytes;
      const Range range = range_of(row + i, begin_, kPart);
      const int64_t begin = smaller(range.first / 16, all.end), end = larger((range.last + 15) / 16, all.chunk);
      if (begin >= end) {
        clear_inputs(inputs, all.chunk, all.end);
        continue;
      }
      clear_inputs(inputs, all.chunk, begin);
      clear_inputs(inputs, end, all.end);
      sums[i] = scale.round(scaled_ + (place + i) * kPart + 16 * begin, 16 * (end - begin),
                            inputs + 16 * begin * kInputBytes);
    }
    int32_t totals[4];
    totals_of(sums, totals);
    for (int64_t i = 0; i < count; ++i) weight_starts_[(place + i) * groups_ + group] = start_of(totals[i]);
  }

  static void clear_inputs(uint8_t* inputs, int64_t chunk, int64_t end) {
    if (chunk < end)
      memset(inputs + 16 * chunk * kInputBytes, 0, static_cast<size_t>(16 * (end - chunk) * kInputBytes));
  }

  // use(at, group): vectors of a row's sums, and the group whose scale they have.
  template <class F> void for_vectors(F&& use) const {
    const int64_t size = Format::kGrouped ? kScaleGroup : attention_.padded;
    for (int64_t at = 0; at < attention_.padded; at += 16) use(at, at / size);
  }

  // Sums that do not come from one place are added up in memory.
  void begin_sums(int64_t rows) {
    for (int64_t place = 0; place < rows; ++place) {
      for_vectors([&](int64_t at, int64_t group) {
        fill_ints(sums_ + place * attention_.padded + at, weight_starts_[place * groups_ + group]);
      });
    }
  }

  void read_sums(int64_t rows) const {
    for (int64_t place = 0; place < rows; ++place) {
      float* values = values_of(first_ * attention_.group + place);
      for_vectors([&](int64_t at, int64_t group) {
        const Vec16 scale = set1(weight_scales_[place * groups_ + group]);
        store(values + at, load_ints(sums_ + place * attention_.padded + at) * scale);
      });
    }
  }

  int64_t groups_, together_;
  int64_t begin_ = 0; // of the part at hand
  CodedPart place_, ahead_;
  Span placed_ = {-1, 0, 0, 0};    // whose place it is
  Span scales_of_ = {-1, 0, 0, 0}; // whose scales are loaded
  int64_t first_ = 0;              // of the tokens at hand
  int64_t base_ = 0;               // the token whose values `into_` begins with
  States into_;                    // where sums over this part go
  bool fetches_ = false;
  uint8_t* inputs_; // queries, [rows][padded]
  float* input_scales_;
  int32_t* input_starts_; // [rows][groups]
  float* scores_;         // of the rows at hand, [rows][kPart]; then weights
  float* scaled_;         // weights times scales of values of a group, [rows][kPart]
  float* scales_;         // of values: scales_of
  float* most_;           // the largest of `scaled_`, [rows]
  uint8_t* weights_;      // `scaled_` rounded, [rows][groups][kPart]
  float* weight_scales_;  // [rows][groups]
  int32_t* weight_starts_;
  int32_t* sums_; // [rows][padded], when not all keys of the rows at hand are in one place
  uint8_t* gathered_ = nullptr;
  uint16_t* gathered_scales_ = nullptr;
};

} // namespace octavo
