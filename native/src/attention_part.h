// The weighted values of a whole part for a handful of rows, in registers from the first key to the last one.
//
// With the bits of attention_tile.h, which adds them up block by block. A row must not meet the value of a key it does
// not see, not even with weight 0, for that value may be infinite: where rows see different keys, each passes over those
// of the others.
#pragma once
#include "attention_pairs.h"
#include "attention_tile.h"

namespace octavo {

// The keys of a part that each row of a tile sees, first .. last - 1; and that any and all of them see. What all see
// does not take one of a pair without the other.
struct TileKeys {
  const int *firsts, *lasts;
  int first = kPart, last = 0, common_first = 0, common_last = kPart;

  TileKeys(const int* row_firsts, const int* row_lasts, int rows, bool in_pairs) : firsts(row_firsts), lasts(row_lasts) {
    for (int row = 0; row < rows; ++row) {
      common_first = common_first < firsts[row] ? firsts[row] : common_first;
      common_last = common_last < lasts[row] ? common_last : lasts[row];
      if (firsts[row] >= lasts[row]) continue;
      first = first < firsts[row] ? first : firsts[row];
      last = last < lasts[row] ? lasts[row] : last;
    }
    if (in_pairs) common_first = (common_first + 1) / 2 * 2, common_last = common_last / 2 * 2;
    if (common_first >= common_last) common_first = common_last = (last + 1) / 2 * 2;
  }
  bool sees(int row, int key) const { return key >= firsts[row] && key < lasts[row]; }
};

#if defined(OCTAVO_ISA_AVX512)
// total + a b, or total as it is.
inline Vec16 fma_if(bool wanted, Vec16 a, Vec16 b, Vec16 total) {
  return {_mm512_mask3_fmadd_ps(a.v, b.v, total.v, static_cast<__mmask16>(wanted ? 0xffff : 0))};
}
#else
inline Vec16 fma_if(bool wanted, Vec16 a, Vec16 b, Vec16 total) { return wanted ? fma(a, b, total) : total; }
#endif

// sums[row .. row + Rows][at .. at + 16 Vectors] = weights times values. Values: of the part's first key, from element
// `at` on, set.sums_stride apart.
template <class Format, int Rows, int Vectors>
void part_tile(const RowSet& set, const float* values, int64_t row, int64_t at, const TileKeys& keys) {
  Vec16 totals[Rows][Vectors];
  clear_tile(totals);
  const float* weights = set.weights + row * set.weight_stride;
  const auto add_key = [&](int key, auto all_see) {
    const float* from = values + key * set.sums_stride;
    Vec16 value[Vectors];
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) value[c] = load(from + 16 * c);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec16 weight = set1(weights[r * set.weight_stride + key]);
      const bool sees = all_see.value || keys.sees(r, key);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) {
        totals[r][c] = all_see.value ? fma(weight, value[c], totals[r][c]) : fma_if(sees, weight, value[c], totals[r][c]);
      }
    }
  };
  const auto add_keys = [&](int first, int last, auto all_see) {
    if constexpr (Format::kInPairs) {
      for (int key = first / 2 * 2; key < last; key += 2) {
        add_key(key + 1, all_see);
        add_key(key, all_see);
      }
    } else {
      for (int key = first; key < last; ++key) add_key(key, all_see);
    }
  };
  add_keys(keys.first, keys.common_first, std::false_type{});
  add_keys(keys.common_first, keys.common_last, std::true_type{});
  add_keys(keys.common_last, keys.last, std::false_type{});
  float* sums = set.sums + row * set.sums_stride + at;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(sums + r * set.sums_stride + 16 * c, totals[r][c]);
  }
}

// Likewise, of words: values [kPart / 2][set.sums_stride], weights [rows][weight_stride].
template <int Rows, int Vectors>
void part_pairs(const RowSet& set, const uint32_t* values, int64_t row, int64_t at, const TileKeys& keys);

#if defined(OCTAVO_ISA_AVX512)

// One key of a pair alone, for the rows that see no other one of it.
template <int Rows, int Vectors>
inline void add_singles(const uint32_t* values, const uint32_t* weights, int64_t weight_stride, const TileKeys& keys,
                        int key, Vec16 (&totals)[Rows][Vectors]) {
  const auto part = [key](__m512i words) {
    return Vec16{_mm512_castsi512_ps(key % 2 != 0 ? _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))
                                                  : _mm512_slli_epi32(words, 16))};
  };
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if (!keys.sees(r, key) || keys.sees(r, key ^ 1)) continue;
    const Vec16 weight = part(_mm512_set1_epi32(static_cast<int>(weights[r * weight_stride])));
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) {
      totals[r][c] = fma(weight, part(_mm512_loadu_si512(values + 16 * c)), totals[r][c]);
    }
  }
}

template <int Rows, int Vectors>
void part_pairs(const RowSet& set, const uint32_t* values, int64_t row, int64_t at, const TileKeys& keys) {
  Vec16 totals[Rows][Vectors];
  clear_tile(totals);
  const auto* weights = reinterpret_cast<const uint32_t*>(set.weights) + row * set.weight_stride;
  const auto add_pair = [&](int pair, auto all_see) {
    const uint32_t* from = values + pair * set.sums_stride;
    Vec16 value[Vectors];
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) value[c] = load_pairs(from + 16 * c);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      if (!all_see.value && !(keys.sees(r, 2 * pair) && keys.sees(r, 2 * pair + 1))) continue;
      const Vec16 both = word_everywhere(weights[r * set.weight_stride + pair]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = octavo::add_pairs(totals[r][c], both, value[c]);
    }
    if constexpr (!all_see.value) {
      add_singles(from, weights + pair, set.weight_stride, keys, 2 * pair + 1, totals);
      add_singles(from, weights + pair, set.weight_stride, keys, 2 * pair, totals);
    }
  };
  for (int pair = keys.first / 2; pair < keys.common_first / 2; ++pair) add_pair(pair, std::false_type{});
  for (int pair = keys.common_first / 2; pair < keys.common_last / 2; ++pair) add_pair(pair, std::true_type{});
  for (int pair = keys.common_last / 2; 2 * pair < keys.last; ++pair) add_pair(pair, std::false_type{});
  float* sums = set.sums + row * set.sums_stride + at;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(sums + r * set.sums_stride + 16 * c, totals[r][c]);
  }
}

#endif

// All dimensions, which fill whole vectors. values: [kPart][set.sums_stride], or words of two keys.
template <class Format, int Rows>
void part_rows(const RowSet& set, const float* values, int64_t row, const TileKeys& keys) {
  constexpr int kVectors = kVectorsAtOnce<Format>;
  const auto tile = [&](int64_t at, auto vectors) {
    if constexpr (std::is_same_v<Format, InPairs>) {
      part_pairs<Rows, vectors.value>(set, reinterpret_cast<const uint32_t*>(values) + at, row, at, keys);
    } else {
      part_tile<Format, Rows, vectors.value>(set, values + at, row, at, keys);
    }
  };
  int64_t at = 0;
  for (; at + 16 * kVectors <= set.head_dim; at += 16 * kVectors) tile(at, std::integral_constant<int, kVectors>{});
  if constexpr (kVectors > 2) {
    for (; at + 32 <= set.head_dim; at += 32) tile(at, std::integral_constant<int, 2>{});
  }
  if constexpr (kVectors > 1) {
    for (; at < set.head_dim; at += 16) tile(at, std::integral_constant<int, 1>{});
  }
}

} // namespace octavo
