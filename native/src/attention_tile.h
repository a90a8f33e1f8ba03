// The two matrix products of attention for a handful of query rows and one block of kKeys keys.
//
// A score is one chain of multiply-adds over the head's dimensions; an output element is one chain over the keys. Both
// orders are those of the data, whatever the shape of the tile, so tiles may be cut as the registers allow.
#pragma once
#include <stdint.h>

#include <type_traits>

#include "cache_types.h"

namespace octavo {

constexpr int64_t kPart = 256; // keys whose weights share one largest score; parts start at multiples of it
constexpr int64_t kKeys = 64;  // keys of a block, likewise
constexpr int kChunks = 4;     // of 16 keys in a block

// 64 keys and values as four chunks of 16, wherever those are.
template <class Format> struct KeyBlock {
  using Type = typename Format::Type;
  const Type* keys[kChunks];   // element (d, lane) of a chunk at d * key_stride + lane, or as cache_layout.h pairs them
  const Type* values[kChunks]; // element (key, d) at key * value_stride + Format::at(d)
  int64_t key_stride;
  int64_t value_stride;
  const uint16_t* key_scales[kChunks]; // of types with scales: those of a chunk
  const uint16_t* value_scales[kChunks];
  // What is needed after this block, and fetched meanwhile: the data of chunk c in steps of a dimension (scores), or
  // the values of another block (values).
  const Type* ahead[kChunks];
  int64_t ahead_step;
};

// Tiles, rows times vectors of keys or dimensions. One that only multiplies has registers for more than one that
// converts as well.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kWideRows = 6, kWideVectors = 4;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kWideRows = 6, kWideVectors = 1;
#else
constexpr int kWideRows = kTileRows, kWideVectors = kTileVectors;
#endif
template <class Format> constexpr int kRowsAtOnce = Format::kCold ? kTileRows : kWideRows;
template <class Format> constexpr int kVectorsAtOnce = Format::kCold ? kTileVectors : kWideVectors;

// Query rows and what is kept of each.
struct RowSet {
  int64_t head_dim;
  const float* queries;  // [rows][head_dim], scaled
  float* scores;         // of the block; a row's are kPart behind the last row's
  const float* weights;  // of the block, times the scales of values where there are any
  int64_t weight_stride; // from row to row
  float* sums;           // [rows][sums_stride], weighted values; head_dim rounded up to 16 are used
  int64_t sums_stride;
};

// totals += queries times keys.
template <class Format, int Rows, int Vectors>
inline void add_products(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int chunk,
                         Vec16 (&totals)[Rows][Vectors]) {
  const int64_t end = set.head_dim;
  const float* query = set.queries + row * set.head_dim;
  const typename Format::Type* keys[Vectors];
#pragma GCC unroll 4
  for (int c = 0; c < Vectors; ++c) keys[c] = block.keys[chunk + c];
  const auto fetch = [&](int64_t d) {
    if constexpr (Format::kCold) {
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) __builtin_prefetch(block.ahead[chunk + c] + d * block.ahead_step);
    }
  };
  const auto add = [&](int64_t d, const Vec16(&key)[Vectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec16 q = set1(query[r * set.head_dim + d]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = fma(q, key[c], totals[r][c]);
    }
  };
  const auto load_one = [&](int64_t d, Vec16(&key)[Vectors]) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) key[c] = Format::load16(keys[c] + d * block.key_stride);
  };
  // Or two. Whole: there is a second one.
  const auto one = [&](int64_t d, auto whole) {
    const bool second = whole.value || d + 1 < end;
    if constexpr (Format::kPairs) {
      Vec16 even[Vectors];
      Vec16 odd[Vectors];
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) Format::load32(keys[c] + d * block.key_stride, even[c], odd[c]);
      if (Format::kInPairs && second) add(d + 1, odd);
      add(d, even);
      if (!Format::kInPairs && second) add(d + 1, odd);
    } else {
      Vec16 key[Vectors];
      if (Format::kInPairs && second) {
        load_one(d + 1, key);
        add(d + 1, key);
      }
      load_one(d, key);
      add(d, key);
    }
  };
  constexpr int kStep = Format::kPairs || Format::kInPairs ? 2 : 1;
  constexpr int kAtOnce = Format::kFetchEvery > kStep ? Format::kFetchEvery : kStep;
  int64_t d = 0;
  for (; d + kAtOnce <= end; d += kAtOnce) {
    fetch(d);
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; i += kStep) one(d + i, std::true_type{});
  }
  for (; d < end; d += kStep) one(d, std::false_type{});
}

template <int Rows, int Vectors> inline void clear_tile(Vec16 (&tile)[Rows][Vectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) tile[r][c] = zero();
  }
}

// A score is the sum over dimensions, times the key's scale.
template <class Format, int Rows, int Vectors>
void score_tile(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int chunk) {
  Vec16 totals[Rows][Vectors];
  clear_tile(totals);
  add_products(set, block, row, chunk, totals);
  if constexpr (Format::kScaled) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) {
      const Vec16 scale = load_bf16(block.key_scales[chunk + c]) * set1(Format::kUnit);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) totals[r][c] = totals[r][c] * scale;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(set.scores + (row + r) * kPart + 16 * (chunk + c), totals[r][c]);
  }
}

// Keys first .. last - 1 as they are added up.
template <bool InPairs, class F> inline void in_order(int first, int last, F&& use) {
  int key = first;
  if constexpr (InPairs) {
    if (key % 2 != 0 && key < last) use(key++);
    for (; key + 2 <= last; key += 2) {
      use(key + 1);
      use(key);
    }
  }
  for (; key < last; ++key) use(key);
}

// sums[row .. row + Rows][at .. at + 16 Vectors] += weights of keys first .. last - 1 times their values.
template <class Format, int Rows, int Vectors>
void value_tile(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int64_t at, int first, int last) {
  Vec16 totals[Rows][Vectors];
  float* sums = set.sums + row * set.sums_stride + at;
  const float* weights = set.weights + row * set.weight_stride;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) totals[r][c] = load(sums + r * set.sums_stride + 16 * c);
  }
  const auto add_key = [&](int key, const typename Format::Type* values, const typename Format::Type* ahead) {
    if constexpr (Format::kCold) {
      for (int c = 0; c < Vectors; c += Format::kFetchVectors) __builtin_prefetch(Format::at(ahead, 16 * c));
    }
    Vec16 value[Vectors];
    if constexpr (Vectors == 1) {
      value[0] = Format::load16(values);
    } else {
#pragma GCC unroll 2
      for (int c = 0; c < Vectors; c += 2) Format::load32(Format::at(values, 16 * c), value[c], value[c + 1]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec16 weight = set1(weights[r * set.weight_stride + key]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = fma(weight, value[c], totals[r][c]);
    }
  };
  for (int key = first; key < last;) {
    const int chunk = key / 16;
    const int end = !Format::kCold || last < 16 * (chunk + 1) ? last : 16 * (chunk + 1); // converted chunks adjoin
    const typename Format::Type* values = Format::at(block.values[chunk] + (key - 16 * chunk) * block.value_stride, at);
    const typename Format::Type* ahead = Format::at(block.ahead[chunk] + (key - 16 * chunk) * block.value_stride, at);
    const int64_t stride = block.value_stride;
    if constexpr (Format::kInPairs) {
      if (key % 2 != 0) {
        add_key(key++, values, ahead);
        values += stride;
        ahead += stride;
      }
      for (; key + 2 <= end; key += 2, values += 2 * stride, ahead += 2 * stride) {
        add_key(key + 1, values + stride, ahead + stride);
        add_key(key, values, ahead);
      }
    }
    for (; key < end; ++key, values += stride, ahead += stride) add_key(key, values, ahead);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(sums + r * set.sums_stride + 16 * c, totals[r][c]);
  }
}

// The columns past the last full vector of a head.
template <class Format>
void value_rest(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int64_t at, int first, int last) {
  float* sums = set.sums + row * set.sums_stride + at;
  const float* weights = set.weights + row * set.weight_stride;
  const int64_t count = set.head_dim - at;
  Vec16 total = load(sums);
  in_order<Format::kInPairs>(first, last, [&](int key) {
    const typename Format::Type* values = Format::at(block.values[key / 16] + (key % 16) * block.value_stride, at);
    float lanes[16] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = Format::load_rest(values, i);
    total = fma(set1(weights[key]), load(lanes), total);
  });
  store(sums, total);
}

// Chunks first .. last - 1 of the block.
template <class Format, int Rows>
void score_rows(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int first, int last) {
  constexpr int kVectors = kVectorsAtOnce<Format>;
  int chunk = first;
  for (; chunk + kVectors <= last; chunk += kVectors) score_tile<Format, Rows, kVectors>(set, block, row, chunk);
  if constexpr (kVectors > 2) {
    if (chunk + 2 <= last) {
      score_tile<Format, Rows, 2>(set, block, row, chunk);
      chunk += 2;
    }
  }
  if constexpr (kVectors > 1) {
    if (chunk < last) score_tile<Format, Rows, 1>(set, block, row, chunk);
  }
}

template <class Format, int Rows>
void value_rows(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int first, int last) {
  constexpr int kVectors = kVectorsAtOnce<Format>;
  int64_t at = 0;
  for (; at + 16 * kVectors <= set.head_dim; at += 16 * kVectors) {
    value_tile<Format, Rows, kVectors>(set, block, row, at, first, last);
  }
  if constexpr (kVectors > 2) {
    for (; at + 32 <= set.head_dim; at += 32) value_tile<Format, Rows, 2>(set, block, row, at, first, last);
  }
  for (; at + 16 <= set.head_dim; at += 16) value_tile<Format, Rows, 1>(set, block, row, at, first, last);
  if (at == set.head_dim) return;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) value_rest(set, block, row + r, at, first, last);
}

// use(row, count) with the count a constant, for rows first .. last - 1 cut into tiles of at most `Most`.
template <int Most, class F> void for_row_tiles(int64_t first, int64_t last, F&& use) {
  int64_t row = first;
  for (; row + Most <= last; row += Most) use(row, std::integral_constant<int, Most>{});
  if constexpr (Most > 1) {
    if (row < last) for_row_tiles<Most - 1>(row, last, use);
  }
}

} // namespace octavo
