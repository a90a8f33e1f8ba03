// One task of attention over a cache of codes (int8, int4), part by part: queries and weights are rounded to 16 bits,
// so that both products are sums of integers. See docs/decisions/0021-attention-in-integers.md.
#pragma once
#include "attention_coded_tile.h"
#include "attention_unit.h"

namespace octavo {

// Floats as integers up to a bound, times one scale. Less than 2^-110 is nothing; when one is not finite the scale is
// NaN.
struct InputScale {
  float scale, factor;
  bool finite;

  // most: a vector of the largest magnitudes.
  InputScale(Vec16 magnitudes, float bound) {
    const float most = largest_magnitude(magnitudes);
    finite = most < INFINITY;
    const bool any = finite && most > 0x1p-110f;
    factor = any ? bound / most : 0.0f;
    scale = any ? most / bound : finite ? 0.0f : NAN;
  }
  Vec16 round(Vec16 values) const { return finite ? round_int(values * set1(factor)) : zero(); }
};

// What sums with codes begin with, since codes are raised: `inputs` are sums of them.
inline int32_t start_of(Vec16 inputs, int raised) { return -static_cast<int32_t>(sum(inputs)) * raised; }

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
    scaled_ = memory.take(rows * groups_ * kPart);
    weights_ = bytes(memory, rows * groups_ * kWeightBytes);
    weight_scales_ = memory.take(rows * groups_);
    sums_ = reinterpret_cast<int32_t*>(memory.take(rows * padded));
    if (!in_chunks_) {
      gathered_ = bytes(memory, gathered_bytes(attention));
      gathered_scales_ = reinterpret_cast<uint16_t*>(memory.take(groups_ * kPart / 2));
    }
    for (int64_t token = 0; token < count; ++token) load_queries(token);
    for (int64_t row = 0; row < rows_; ++row) round_query(row);
  }

  static int64_t floats_needed(const Attention& attention, int64_t tokens) {
    const int64_t all = tokens * attention.group, rows = tokens_together(attention) * attention.group;
    const int64_t groups = attention.layer.layout.groups(attention.head_dim);
    return Base::floats_needed(attention, tokens) + all * (attention.padded / 2 + 1 + groups) +
           rows * (kPart + groups * (kPart + kWeightBytes / 4 + 1) + attention.padded) + gathered_bytes(attention) / 4 +
           groups * kPart / 2 + 16 * 10;
  }

  // Sums over one part, for the rows that see it; they join the totals when wanted, and are written after the last
  // part. Else they are kept.
  void run_part(int64_t part, bool joins) {
    begin_ = part * kPart;
    placed_ = {-1, 0, 0, 0};
    look_ahead(part);
    for (int64_t first = 0; first < token_count_; first += together_) {
      const int64_t last = smaller(first + together_, token_count_);
      const int64_t base = joins ? first : 0; // token whose rows are the first of what is kept
      run_tokens({first, last}, base, first == 0 && fetches_);
      if (!joins) continue;
      join_rows(first * attention_.group, last * attention_.group, base * attention_.group, part);
      write_outputs(first * attention_.group, last * attention_.group, part);
    }
  }

private:
  using Base::attention_, Base::layout_, Base::tokens_, Base::token_count_, Base::kv_head_, Base::rows_,
      Base::in_chunks_, Base::queries_, Base::part_, Base::parts_end_, Base::next_;
  using Base::block_of, Base::join_rows, Base::load_queries, Base::range_of, Base::seen, Base::weigh_rows,
      Base::write_outputs;
  using typename Base::Range;
  using typename Base::Run;

  // Tokens, and chunks of the part at hand whose keys lie in the same place for all of them.
  struct Span {
    int64_t first, last, chunk, end;
  };

  static constexpr int64_t kRowsTogether = 18; // that pass over a part together

  static int64_t tokens_together(const Attention& attention) { return larger(1, kRowsTogether / attention.group); }
  static uint8_t* bytes(Pieces& memory, int64_t count) {
    return reinterpret_cast<uint8_t*>(memory.take((count + 3) / 4));
  }
  static int64_t gathered_bytes(const Attention& attention) {
    const CacheLayout& layout = attention.layer.layout;
    return larger(layout.code_rows() * 4 * kPart, layout.value_quad() * kPart / 4);
  }

  // H q . H k = size q . k, and size is a power of two.
  void round_query(int64_t row) {
    const int64_t width = attention_.head_dim, size = Format::kGrouped ? kScaleGroup : attention_.padded;
    float* query = queries_ + row * width;
    rotate_quickly(query, width, attention_.rotation);
    Vec16 most = zero(), total = zero();
    for (int64_t at = 0; at < width; at += 16) most = max_magnitude(load_up_to(query + at, width - at), most);
    const InputScale inputs(most, width <= 512 ? kMostInput : floorf(kMostInput * 512 / static_cast<float>(width)));
    input_scales_[row] = inputs.scale / static_cast<float>(attention_.rotation);
    uint8_t* to = inputs_ + row * attention_.padded * kInputBytes;
    for (int64_t at = 0; at < width; at += 16) {
      const Vec16 whole = inputs.round(load_up_to(query + at, width - at));
      store_inputs(to + at * kInputBytes, whole);
      total = total + whole;
      if (at + 16 < width && (at + 16) % size != 0) continue;
      input_starts_[row * groups_ + at / size] = start_of(total, Format::kRaised);
      total = zero();
    }
  }

  Range seen_by(int64_t first_row, int64_t last_row) const { return seen(first_row, last_row, 1, begin_, kPart); }

  void run_tokens(Run tokens, int64_t base, bool fetch) {
    const int64_t group = attention_.group, first = tokens.first * group, last = tokens.last * group;
    const Range range = seen_by(first, last);
    if (range.first >= range.last) return;
    const int64_t chunk = range.first / 16, end = (range.last + 15) / 16;
    for_spans({tokens.first, tokens.last, chunk, end}, [&](Span span) { score(tokens.first, span, fetch); });
    weigh_rows(first, last, scores_, begin_);
    for_spans({tokens.first, tokens.last, chunk, end}, [&](Span span) { scale_weights(tokens.first, span); });
    for (int64_t row = first; row < last; ++row) round_weights(row, row - first, chunk, end);
    for_spans({tokens.first, tokens.last, chunk, end}, [&](Span span) { add(tokens.first, span, fetch); });
    for (int64_t row = first; row < last; ++row) read_sums(row - first, row - base * group);
  }

  // use(span) for all tokens and chunks of `all`, cut where tokens stop to have their blocks in common.
  template <class F> void for_spans(Span all, F&& use) const {
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
  CodedPart place_of(const Row& token, int64_t head, int64_t begin, int64_t chunk, int64_t end) const {
    CodedPart part;
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
      if (chunk + 1 == end) return part;
      offset += 16;
      if (offset < layout_.block_size) continue;
      offset = 0;
      data = attention_.layer.block(*++table) + keys;
    }
  }

  // What was asked for last is kept.
  const CodedPart& in_place(Span span) {
    if (span.first == placed_.first && span.chunk == placed_.chunk && span.end <= placed_.end) return place_;
    placed_ = span;
    place_ = place_of(tokens_[span.first], kv_head_, begin_, span.chunk, span.end);
    return place_;
  }

  // What is needed after this part: of the next one, else of what this thread does next.
  void look_ahead(int64_t part) {
    const bool more = part + 1 < parts_end_;
    fetches_ = in_chunks_ && (more || next_.token != nullptr);
    if (!fetches_) return;
    const Row& later = more ? tokens_[0] : *next_.token;
    const int64_t begin = (more ? part + 1 : next_.part) * kPart;
    const int64_t first = larger(attention_.first_key(later.position) - begin, 0) / 16;
    const int64_t end = smaller(later.last_key + 1 - begin + 15, kPart) / 16;
    fetches_ = first < end;
    if (!fetches_) return;
    ahead_ = place_of(later, more ? kv_head_ : next_.head, begin, first, end);
    const auto repeat = [&](int64_t chunk, int64_t from) {
      ahead_.keys[chunk] = ahead_.keys[from];
      ahead_.values[chunk] = ahead_.values[from];
      ahead_.key_scales[chunk] = ahead_.key_scales[from];
    };
    for (int64_t chunk = 0; chunk < first; ++chunk) repeat(chunk, first);
    for (int64_t chunk = end; chunk < kPartChunks; ++chunk) repeat(chunk, end - 1);
  }

  // Four keys at a time, for blocks that chunks of 16 do not fit: keys, or values; and their scales.
  const CodedPart& gather(Span span, bool keys) {
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

  CodedRows row_set(int64_t base) const {
    const int64_t row = base * attention_.group;
    return {attention_.head_dim,
            inputs_ + row * attention_.padded * kInputBytes,
            attention_.padded * kInputBytes,
            input_scales_ + row,
            input_starts_ + row * groups_,
            scores_,
            weights_,
            sums_,
            groups_,
            attention_.padded};
  }

  // use(row, count, first, last): tiles of the span's rows, counted from token `base`, and the chunks they see.
  template <class F> void for_tiles(int64_t base, Span span, F&& use) const {
    const int64_t group = attention_.group, all = base * group;
    for_row_tiles<kMostDotRows>(span.first * group, span.last * group, [&](int64_t row, auto count) {
      const Range range = seen_by(row, row + count.value);
      const int64_t first = larger(span.chunk, range.first / 16), last = smaller(span.end, (range.last + 15) / 16);
      if (first < last) use(row - all, count, first, last);
    });
  }

  void score(int64_t base, Span span, bool fetch) {
    const CodedPart& part = in_chunks_ ? in_place(span) : gather(span, true);
    const CodedRows set = row_set(base);
    for_tiles(base, span, [&](int64_t row, auto count, int64_t first, int64_t last) {
      if (fetch && row == 0) {
        score_coded_rows<Format, count.value, true>(set, part, ahead_, row, first, last);
      } else {
        score_coded_rows<Format, count.value, false>(set, part, part, row, first, last);
      }
    });
  }

  void add(int64_t base, Span span, bool fetch) {
    const CodedPart& part = in_chunks_ ? in_place(span) : gather(span, false);
    const CodedRows set = row_set(base);
    for_tiles(base, span, [&](int64_t row, auto count, int64_t first, int64_t last) {
      if (fetch && row == 0) {
        add_coded_rows<Format, count.value, true>(set, part, ahead_, row, first, last);
      } else {
        add_coded_rows<Format, count.value, false>(set, part, part, row, first, last);
      }
    });
  }

  // Weights times the scales of the values, of each group and of the chunks that a row sees. Weights below 2^-40 count
  // for nothing: times a scale they could be subnormal, which is slow.
  void scale_weights(int64_t base, Span span) {
    const int64_t group = attention_.group;
    const CodedPart& part = in_chunks_ ? in_place(span) : gather(span, false);
    float scales[kPart];
    for (int64_t of = 0; of < groups_; ++of) {
      for (int64_t chunk = span.chunk; chunk < span.end; ++chunk) {
        store(scales + 16 * chunk, load_bf16(part.value_scales[chunk] + of * part.scale_stride));
      }
      for (int64_t row = span.first * group; row < span.last * group; ++row) {
        const Range range = range_of(row, begin_, kPart);
        const int64_t place = row - base * group, end = smaller(16 * span.end, range.last);
        const float* weights = scores_ + place * kPart;
        float* scaled = scaled_ + (place * groups_ + of) * kPart;
        for (int64_t at = larger(16 * span.chunk, range.first / 16 * 16); at < end; at += 16) {
          const Vec16 weight = load(weights + at);
          store(scaled + at, select_less(weight, set1(0x1p-40f), zero(), weight) * load(scales + at));
        }
      }
    }
  }

  // Of a row, which is the one at `place` here, for chunks first .. last - 1: those of keys that it does not see are 0.
  void round_weights(int64_t row, int64_t place, int64_t first, int64_t last) {
    const Range range = range_of(row, begin_, kPart);
    const int64_t size = Format::kGrouped ? kScaleGroup : attention_.padded, padded = attention_.padded;
    int32_t* sums = sums_ + place * padded;
    for (int64_t group = 0; group < groups_; ++group) {
      float* scaled = scaled_ + (place * groups_ + group) * kPart;
      uint8_t* inputs = weights_ + (place * groups_ + group) * kWeightBytes;
      const Rounded rounded = round_row(scaled, inputs, range, 16 * first, 16 * last);
      weight_scales_[place * groups_ + group] = rounded.scale;
      const int64_t end = smaller((group + 1) * size, padded);
      for (int64_t at = group * size; at < end; at += 16) fill_ints(sums + at, rounded.start);
    }
  }

  struct Rounded {
    float scale;
    int32_t start;
  };

  static Rounded round_row(float* scaled, uint8_t* inputs, Range range, int64_t first, int64_t last) {
    const int64_t begin = smaller(range.first / 16 * 16, last), end = larger((range.last + 15) / 16 * 16, first);
    const auto clear = [&](int64_t from, int64_t to) {
      if (from < to) memset(inputs + from * kInputBytes, 0, static_cast<size_t>((to - from) * kInputBytes));
    };
    clear(first, begin);
    clear(larger(begin, end), last);
    if (begin >= end) return {0.0f, 0};
    const auto hide = [&](int64_t at) {
      const auto lanes = [&](int64_t key) { return static_cast<int>(smaller(larger(key - at, 0), 16)); };
      store(scaled + at, keep_range(load(scaled + at), lanes(range.first), lanes(range.last), 0.0f));
    };
    hide(begin);
    hide(end - 16);
    Vec16 most = zero(), total = zero();
    for (int64_t at = begin; at < end; at += 16) most = max_magnitude(load(scaled + at), most);
    const InputScale scale(most, kMostInput);
    for (int64_t at = begin; at < end; at += 16) {
      const Vec16 whole = scale.round(load(scaled + at));
      store_inputs(inputs + at * kInputBytes, whole);
      total = total + whole;
    }
    return {scale.scale, start_of(total, Format::kRaised)};
  }

  void read_sums(int64_t place, int64_t to) const {
    const int64_t size = Format::kGrouped ? kScaleGroup : attention_.padded, padded = attention_.padded;
    const int32_t* sums = sums_ + place * padded;
    const float* scales = weight_scales_ + place * groups_;
    float* values = part_.values + to * padded;
    for (int64_t begin = 0; begin < padded; begin += size, ++scales) {
      const Vec16 scale = set1(*scales);
      const int64_t end = smaller(begin + size, padded);
      for (int64_t at = begin; at < end; at += 16) store(values + at, load_ints(sums + at) * scale);
    }
  }

  int64_t groups_, together_;
  int64_t begin_ = 0; // of the part at hand
  CodedPart place_, ahead_;
  Span placed_ = {-1, 0, 0, 0}; // whose place it is
  bool fetches_ = false;
  uint8_t* inputs_; // queries, [rows][padded]
  float* input_scales_;
  int32_t* input_starts_; // [rows][groups]
  float* scores_;         // of the rows at hand, [rows][kPart]
  float* scaled_;         // weights times scales of values, [rows][groups][kPart]
  uint8_t* weights_;      // the same rounded, likewise
  float* weight_scales_;  // [rows][groups]
  int32_t* sums_;         // [rows][padded]
  uint8_t* gathered_ = nullptr;
  uint16_t* gathered_scales_ = nullptr;
};

} // namespace octavo
