// The two matrix products of attention over codes: sums of integers, for a handful of rows and the keys of a part.
#pragma once
#include "attention_tile.h"
#include "simd/coded_dot.h"

namespace octavo {

constexpr int64_t kPartChunks = kPart / 16;

// Up to 256 keys and values as chunks of 16, wherever those are.
struct CodedPart {
  const uint8_t* keys[kPartChunks];   // row s, four (eight) dimensions of 16 keys, at s * key_stride
  const uint8_t* values[kPartChunks]; // quad q, four keys, at q * value_stride
  const uint16_t* key_scales[kPartChunks];
  const uint16_t* value_scales[kPartChunks];
  int64_t key_stride, value_stride; // bytes
  int64_t scale_stride;             // from group to group
};

// Query rows, as inputs of the dot products; and weights, likewise.
struct CodedRows {
  int64_t head_dim;
  const uint8_t* queries; // [rows][query_bytes]
  int64_t query_bytes;
  const float* query_scales;   // [rows]
  const int32_t* query_starts; // [rows][groups]: what makes up for raised codes
  float* scores;               // [rows][kPart]
  const uint8_t* weights;      // [rows][groups][kPart inputs]
  const float* weight_scales;  // [rows][groups]
  const int32_t* weight_starts;
  int32_t* sums; // [rows][padded]: of weights and codes, to which more is added
  float* values; // or, when this is not null, the sums as floats, times their scales
  int64_t groups, padded;
};

constexpr int64_t kWeightBytes = kPart * kInputBytes; // of a row and group

// 64 codes: of 4 bits a code, half the data.
template <class Format> inline Codes codes_at(const uint8_t* p, int64_t half) {
  if constexpr (Format::kPerByte == 1) return load_codes(p);
  return load_half_codes(p, static_cast<int>(half));
}

// starts: of the rows, `stride` apart.
template <int Rows, int Vectors>
inline void begin_sums(DotSums (&sums)[Rows][Vectors], const int32_t* starts, int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const DotSums start = sums_from(starts == nullptr ? 0 : starts[r * stride]);
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) sums[r][c] = start;
  }
}

template <int Rows, int Vectors>
inline void add_codes(DotSums (&sums)[Rows][Vectors], const Codes (&codes)[Vectors], const uint8_t* inputs,
                      int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const Inputs own = load_inputs(inputs + r * stride);
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) add_dots(sums[r][c], codes[c], own);
  }
}

// Meanwhile what lies at the same places of `ahead` is fetched.
template <class Format, int Rows, int Vectors, bool Fetch>
void score_coded(const CodedRows& set, const CodedPart& part, const CodedPart& ahead, int64_t row, int64_t chunk) {
  constexpr int64_t kPer = Format::kPerByte;
  const int64_t size = Format::kGrouped ? kScaleGroup / 4 : (set.head_dim + 3) / 4; // steps of four dimensions
  const int64_t all = (set.head_dim + 4 * kPer - 1) / (4 * kPer) * kPer;
  if constexpr (Fetch) {
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) __builtin_prefetch(ahead.key_scales[chunk + c], 0, 2);
  }
  Vec16 totals[Rows][Vectors];
  clear_tile(totals);
  for (int64_t begin = 0, group = 0; begin < all; begin += size, ++group) {
    DotSums sums[Rows][Vectors];
    begin_sums(sums, set.query_starts + row * set.groups + group, set.groups);
    const int64_t end = begin + size < all ? begin + size : all;
    const uint8_t* inputs = set.queries + row * set.query_bytes;
    for (int64_t step = begin; step < end; step += kPer) {
      const int64_t at = step / kPer * part.key_stride;
#pragma GCC unroll 2
      for (int64_t half = 0; half < kPer; ++half) {
        Codes codes[Vectors];
#pragma GCC unroll 8
        for (int c = 0; c < Vectors; ++c) codes[c] = codes_at<Format>(part.keys[chunk + c] + at, half);
        add_codes(sums, codes, inputs + 8 * (step + half), set.query_bytes);
      }
      if constexpr (Fetch) {
#pragma GCC unroll 8
        for (int c = 0; c < Vectors; ++c) __builtin_prefetch(ahead.keys[chunk + c] + at, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) {
      const Vec16 scale = load_bf16(part.key_scales[chunk + c] + group * part.scale_stride);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Vec16 more = floats_of(sums[r][c]) * scale;
        totals[r][c] = Format::kGrouped ? totals[r][c] + more : more;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const Vec16 scale = set1(set.query_scales[row + r]);
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) store(set.scores + (row + r) * kPart + 16 * (chunk + c), totals[r][c] * scale);
  }
}

// sums[row .. row + Rows][16 vector ..] += weights of chunks first .. last - 1 times their values; or `values` are
// those.
template <class Format, int Rows, int Vectors, bool Fetch>
void add_coded(const CodedRows& set, const CodedPart& part, const CodedPart& ahead, int64_t row, int64_t vector,
               int64_t first, int64_t last) {
  constexpr int64_t kPer = Format::kPerByte;
  const int64_t group = Format::kGrouped ? vector / 2 : 0;
  const int64_t stride = set.groups * kWeightBytes;
  const uint8_t* weights = set.weights + row * stride + group * kWeightBytes;
  const int64_t first_scale = row * set.groups + group;
  DotSums sums[Rows][Vectors];
  begin_sums(sums, set.values == nullptr ? nullptr : set.weight_starts + first_scale, set.groups);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const int64_t begin = vector / kPer * 64;
    const uint8_t* values = part.values[chunk] + begin;
    const uint8_t* inputs = weights + chunk * 16 * kInputBytes;
#pragma GCC unroll 8
    for (int quad = 0; quad < 4; ++quad) {
      Codes codes[Vectors];
#pragma GCC unroll 8
      for (int c = 0; c < Vectors; ++c) {
        codes[c] = codes_at<Format>(values + quad * part.value_stride + c / kPer * 64, (vector + c) % kPer);
      }
      add_codes(sums, codes, inputs + 8 * quad, stride);
      if constexpr (Fetch) {
#pragma GCC unroll 8
        for (int64_t c = 0; c < Vectors; c += kPer) {
          __builtin_prefetch(ahead.values[chunk] + begin + quad * part.value_stride + c / kPer * 64, 0, 2);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) {
      const int64_t at = (row + r) * set.padded + 16 * (vector + c);
      if (set.values == nullptr) {
        add_sums(set.sums + at, sums[r][c]);
      } else {
        store(set.values + at, floats_of(sums[r][c]) * set1(set.weight_scales[first_scale + r * set.groups]));
      }
    }
  }
}

template <int Rows>
constexpr int kCodedVectors = Rows == 1          ? kOneDotVectors
                              : Rows <= kDotRows ? kDotVectors
                                                 : kTallDotVectors;
constexpr int kMostDotRows = kDotRows > kTallDotRows ? kDotRows : kTallDotRows;

// use(at, count) with the count a constant, for vectors first .. last - 1 in tiles of at most `Most`. The last two
// share what is left: sums of one vector alone would wait for each other.
template <int Most, class F> inline void for_vector_tiles(int64_t first, int64_t last, F&& use) {
  int64_t at = first;
  for (; at + 2 * Most <= last; at += Most) use(at, std::integral_constant<int, Most>{});
  const int64_t rest = last - at, half = rest > Most ? (rest + 1) / 2 : rest;
  const auto use_count = [&](int64_t from, int64_t count) { for_row_tiles<Most>(from, from + count, use); };
  use_count(at, half);
  if (half < rest) use_count(at + half, rest - half);
}

// Chunks first .. last - 1.
template <class Format, int Rows, bool Fetch>
void score_coded_rows(const CodedRows& set, const CodedPart& part, const CodedPart& ahead, int64_t row, int64_t first,
                      int64_t last) {
  for_vector_tiles<kCodedVectors<Rows>>(first, last, [&](int64_t chunk, auto count) {
    score_coded<Format, Rows, count.value, Fetch>(set, part, ahead, row, chunk);
  });
}

template <class Format, int Rows, bool Fetch>
void add_coded_rows(const CodedRows& set, const CodedPart& part, const CodedPart& ahead, int64_t row, int64_t first,
                    int64_t last) {
  constexpr int kMost = kCodedVectors<Rows>;
  constexpr int kVectors = Format::kGrouped && kMost > 2 ? 2 : kMost; // of one group
  const auto use = [&](int64_t vector, auto count) {
    add_coded<Format, Rows, count.value, Fetch>(set, part, ahead, row, vector, first, last);
  };
  if constexpr (Format::kGrouped) {
    for_row_tiles<kVectors>(0, set.padded / 16, use);
  } else {
    for_vector_tiles<kVectors>(0, set.padded / 16, use);
  }
}

} // namespace octavo
