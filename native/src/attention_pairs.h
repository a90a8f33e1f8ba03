// The products of attention by VDPBF16PS: two of a query's elements with those of 16 keys, two keys' weights with 16
// elements of their values. With the bits of attention_tile.h over a bf16 cache (bf16_choice.h).
#pragma once
#include "attention_tile.h"
#include "linear_codes.h"

namespace octavo {

// Keys as they lie in a bf16 cache, words of two dimensions; values as words of two keys, [kKeys / 2][padded]. Queries
// and weights are words, too, in the first halves of their rows; weights of a block in the first half of its scores.
struct InPairs : Plain {
  using Type = uint32_t;
  static constexpr bool kInPairs = true;
  static constexpr bool kCold = false;
};

// In place: numbers in bf16 become words of two, `count` a multiple of 16. What is written has been read by then.
inline void pack_pairs(float* numbers, int64_t count) {
  for (int64_t at = 0; at < count; at += 16) {
    const Vec16 now = load(numbers + at);
    store_bf16(reinterpret_cast<uint16_t*>(numbers) + at, now);
  }
}

// Words of two values' elements, [count] each, in the order of CacheBf16::load32; count is a multiple of 16.
void zip_values(const uint16_t* even, const uint16_t* odd, int64_t count, uint32_t* words);
// As score_rows and value_rows; sums have room for the dimensions that fill a value's last vector.
template <int Rows>
void score_rows_in_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int first, int last);
template <int Rows>
void value_rows_in_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int first, int last);

#if defined(OCTAVO_ISA_AVX512)

inline Vec16 word_everywhere(uint32_t word) { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(word)))}; }
inline Vec16 load_pairs(const uint32_t* p) { return {_mm512_castsi512_ps(_mm512_loadu_si512(p))}; }

inline void zip_values(const uint16_t* even, const uint16_t* odd, int64_t count, uint32_t* words) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  int64_t at = 0;
  for (; at + 32 <= count; at += 32) {
    const __m512i a = _mm512_loadu_si512(even + at), b = _mm512_loadu_si512(odd + at);
    _mm512_storeu_si512(words + at, _mm512_or_si512(_mm512_andnot_si512(upper, a), _mm512_slli_epi32(b, 16)));
    _mm512_storeu_si512(words + at + 16, _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_and_si512(upper, b)));
  }
  const auto widen = [](const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  if (at == count) return;
  _mm512_storeu_si512(words + at, _mm512_or_si512(widen(even + at), _mm512_slli_epi32(widen(odd + at), 16)));
}

template <int Rows, int Vectors>
inline void score_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int chunk) {
  Vec16 totals[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) totals[r][c] = zero();
  }
  const auto* query = reinterpret_cast<const uint32_t*>(set.queries + row * set.head_dim);
  const uint32_t* keys[Vectors];
#pragma GCC unroll 4
  for (int c = 0; c < Vectors; ++c) keys[c] = block.keys[chunk + c];
  for (int64_t pair = 0; pair < set.head_dim / 2; ++pair) {
    Vec16 key[Vectors];
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) key[c] = load_pairs(keys[c] + pair * block.key_stride);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec16 both = word_everywhere(query[r * set.head_dim + pair]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = add_pairs(totals[r][c], both, key[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(set.scores + (row + r) * kPart + 16 * (chunk + c), totals[r][c]);
  }
}

// One key of a pair alone, as a float: a row must not meet the other one's value.
template <int Rows, int Vectors>
inline void add_single(const uint32_t* values, const uint32_t* weights, int64_t weight_stride, bool odd,
                       Vec16 (&totals)[Rows][Vectors]) {
  const auto part = [odd](__m512i words) {
    return Vec16{_mm512_castsi512_ps(odd ? _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))
                                         : _mm512_slli_epi32(words, 16))};
  };
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const Vec16 weight = part(_mm512_set1_epi32(static_cast<int>(weights[r * weight_stride])));
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) {
      totals[r][c] = fma(weight, part(_mm512_loadu_si512(values + 16 * c)), totals[r][c]);
    }
  }
}

template <int Rows, int Vectors>
inline void value_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int64_t at, int first,
                        int last) {
  Vec16 totals[Rows][Vectors];
  float* sums = set.sums + row * set.sums_stride + at;
  const auto* weights = reinterpret_cast<const uint32_t*>(set.weights + row * set.weight_stride);
  const uint32_t* values = block.values[0] + at; // chunks adjoin
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) totals[r][c] = load(sums + r * set.sums_stride + 16 * c);
  }
  int pair = first / 2;
  if (first % 2 != 0) {
    add_single(values + pair * block.value_stride, weights + pair, set.weight_stride, true, totals);
    ++pair;
  }
  for (; pair < last / 2; ++pair) {
    Vec16 value[Vectors];
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) value[c] = load_pairs(values + pair * block.value_stride + 16 * c);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec16 both = word_everywhere(weights[r * set.weight_stride + pair]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = add_pairs(totals[r][c], both, value[c]);
    }
  }
  if (last % 2 != 0) add_single(values + pair * block.value_stride, weights + pair, set.weight_stride, false, totals);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(sums + r * set.sums_stride + 16 * c, totals[r][c]);
  }
}

template <int Rows>
void score_rows_in_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int first, int last) {
  int chunk = first;
  for (; chunk + 4 <= last; chunk += 4) score_pairs<Rows, 4>(set, block, row, chunk);
  for (; chunk + 2 <= last; chunk += 2) score_pairs<Rows, 2>(set, block, row, chunk);
  if (chunk < last) score_pairs<Rows, 1>(set, block, row, chunk);
}

template <int Rows>
void value_rows_in_pairs(const RowSet& set, const KeyBlock<InPairs>& block, int64_t row, int first, int last) {
  int64_t at = 0;
  for (; at + 64 <= set.head_dim; at += 64) value_pairs<Rows, 4>(set, block, row, at, first, last);
  for (; at + 32 <= set.head_dim; at += 32) value_pairs<Rows, 2>(set, block, row, at, first, last);
  for (; at < set.head_dim; at += 16) value_pairs<Rows, 1>(set, block, row, at, first, last);
}
#endif

} // namespace octavo
