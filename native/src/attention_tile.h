// The two matrix products of attention for a handful of query rows and one block of kKeys keys.
//
// A score is one chain of multiply-adds over the head's dimensions; an output element is one chain over the keys. Both
// orders are those of the data, whatever the shape of the tile, so tiles may be cut as the registers allow.
#pragma once
#include <stdint.h>

#include <type_traits>

#include "simd/math.h"

namespace octavo {

constexpr int64_t kPart = 256; // keys whose weights share one largest score; parts start at multiples of it
constexpr int64_t kKeys = 64;  // keys of a block, likewise
constexpr int kChunks = 4;     // of 16 keys in a block

// How a cache format is read. load32 may give the 32 elements in another order; stored sums then have it too.
struct CacheF32 {
  static constexpr bool kPairs = false;
  static constexpr bool kCold = true;
  using Type = float;
  static void load32(const float* p, Vec16& first, Vec16& second) {
    first = load(p);
    second = load(p + 16);
  }
  static Vec16 load16(const float* p) { return load(p); }
  static float load1(float x) { return x; }
};
struct CacheF16 {
  static constexpr bool kPairs = false;
  static constexpr bool kCold = true;
  using Type = uint16_t;
  static void load32(const uint16_t* p, Vec16& first, Vec16& second) {
    first = load_f16(p);
    second = load_f16(p + 16);
  }
  static Vec16 load16(const uint16_t* p) { return load_f16(p); }
  static float load1(uint16_t x) { return from_f16(x); }
};
struct CacheBf16 {
  static constexpr bool kPairs = true;
  static constexpr bool kCold = true;
  using Type = uint16_t;
  static void load32(const uint16_t* p, Vec16& even, Vec16& odd) { load_bf16_pairs(p, even, odd); }
  static Vec16 load16(const uint16_t* p) { return load_bf16(p); }
  static float load1(uint16_t x) { return from_bf16(x); }
};

// What was converted to float32 a moment ago: nothing is to be fetched.
struct Converted : CacheF32 {
  static constexpr bool kCold = false;
};

// 64 keys and values as four chunks of 16, wherever those are.
template <class Format> struct KeyBlock {
  using Type = typename Format::Type;
  const Type* keys[kChunks];   // element (d, lane) of a chunk at d * key_stride + lane, or as cache_layout.h pairs them
  const Type* values[kChunks]; // element (key, d) at key * value_stride + d
  int64_t key_stride;
  int64_t value_stride;
  // What is needed after this block, and fetched meanwhile: the data of chunk c in steps of a dimension (scores), or
  // the values of another block (values).
  const Type* ahead[kChunks];
  int64_t ahead_step;
};

// Query rows and what is kept of each.
struct RowSet {
  int64_t head_dim;
  const float* queries; // [rows][head_dim], scaled
  float* scores;        // of the block, later weights; a row's are kPart behind the last row's
  float* sums;          // [rows][sums_stride], weighted values; head_dim rounded up to 16 are used
  int64_t sums_stride;
};

template <class Format, int Rows, int Vectors>
void score_tile(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int chunk) {
  Vec16 totals[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) totals[r][c] = zero();
  }
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
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec16 q = set1(query[r * set.head_dim + d]);
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) totals[r][c] = fma(q, key[c], totals[r][c]);
    }
  };
  if constexpr (Format::kPairs) {
    for (int64_t d = 0; d < set.head_dim; d += 2) {
      Vec16 even[Vectors];
      Vec16 odd[Vectors];
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) Format::load32(keys[c] + d * block.key_stride, even[c], odd[c]);
      fetch(d);
      add(d, even);
      if (d + 1 < set.head_dim) add(d + 1, odd);
    }
  } else {
    for (int64_t d = 0; d < set.head_dim; ++d) {
      Vec16 key[Vectors];
#pragma GCC unroll 4
      for (int c = 0; c < Vectors; ++c) key[c] = Format::load16(keys[c] + d * block.key_stride);
      fetch(d);
      add(d, key);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(set.scores + (row + r) * kPart + 16 * (chunk + c), totals[r][c]);
  }
}

// sums[row .. row + Rows][at .. at + 16 Vectors] += weights of keys first .. last - 1 times their values.
template <class Format, int Rows, int Vectors>
void value_tile(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int64_t at, int first, int last) {
  Vec16 totals[Rows][Vectors];
  float* sums = set.sums + row * set.sums_stride + at;
  const float* weights = set.scores + row * kPart;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) totals[r][c] = load(sums + r * set.sums_stride + 16 * c);
  }
  for (int key = first; key < last;) {
    const int chunk = key / 16;
    const int end = last < 16 * (chunk + 1) ? last : 16 * (chunk + 1);
    const typename Format::Type* values = block.values[chunk] + (key - 16 * chunk) * block.value_stride + at;
    const typename Format::Type* ahead = block.ahead[chunk] + (key - 16 * chunk) * block.value_stride + at;
    for (; key < end; ++key, values += block.value_stride) {
      if constexpr (Format::kCold) {
        for (int c = 0; c < Vectors; c += 2) __builtin_prefetch(ahead + 16 * c);
        ahead += block.value_stride;
      }
      Vec16 value[Vectors];
      if constexpr (Vectors == 1) {
        value[0] = Format::load16(values);
      } else {
#pragma GCC unroll 2
        for (int c = 0; c < Vectors; c += 2) Format::load32(values + 16 * c, value[c], value[c + 1]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Vec16 weight = set1(weights[r * kPart + key]);
#pragma GCC unroll 4
        for (int c = 0; c < Vectors; ++c) totals[r][c] = fma(weight, value[c], totals[r][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Vectors; ++c) store(sums + r * set.sums_stride + 16 * c, totals[r][c]);
  }
}

// The columns past the last full vector of a head.
template <class Format>
void value_rest(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int64_t at, int first, int last) {
  float* sums = set.sums + row * set.sums_stride + at;
  const int64_t count = set.head_dim - at;
  Vec16 total = load(sums);
  for (int key = first; key < last; ++key) {
    const typename Format::Type* values = block.values[key / 16] + (key % 16) * block.value_stride + at;
    float lanes[16] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = Format::load1(values[i]);
    total = fma(set1(set.scores[row * kPart + key]), load(lanes), total);
  }
  store(sums, total);
}

template <class Format, int Rows> void score_rows(const RowSet& set, const KeyBlock<Format>& block, int64_t row) {
  for (int chunk = 0; chunk < kChunks; chunk += kTileVectors) {
    score_tile<Format, Rows, kTileVectors>(set, block, row, chunk);
  }
}

template <class Format, int Rows>
void value_rows(const RowSet& set, const KeyBlock<Format>& block, int64_t row, int first, int last) {
  int64_t at = 0;
  for (; at + 16 * kTileVectors <= set.head_dim; at += 16 * kTileVectors) {
    value_tile<Format, Rows, kTileVectors>(set, block, row, at, first, last);
  }
  for (; at + 32 <= set.head_dim; at += 32) value_tile<Format, Rows, 2>(set, block, row, at, first, last);
  for (; at + 16 <= set.head_dim; at += 16) value_tile<Format, Rows, 1>(set, block, row, at, first, last);
  if (at == set.head_dim) return;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) value_rest(set, block, row + r, at, first, last);
}

// use(row, count) with the count a constant, for a run of `rows` rows cut into tiles of at most kTileRows.
template <class F> void for_row_tiles(int64_t rows, F&& use) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) use(row, std::integral_constant<int, kTileRows>{});
  if constexpr (kTileRows > 2) {
    if (rows - row == 3) return use(row, std::integral_constant<int, 3>{});
    if (rows - row == 2) return use(row, std::integral_constant<int, 2>{});
  }
  if (row < rows) use(row, std::integral_constant<int, 1>{});
}

} // namespace octavo
