// The tiles of linear_int_tile.h by instructions on two rows and two outputs; linear_byte_tile.cpp and
// linear_word_tile.cpp make them.
//
// A register holds sums of two rows and two outputs, and so do those of floats until a run ends: nothing is moved
// between lanes inside. A tile is six rows of half a panel: twelve sums and twelve floats leave eight registers of 32.
// Sums of a group are exact in 32 bits, and what follows is the arithmetic of linear_int_tile_body.h step by step, so
// results are those of every build. With inputs of 16 bits the sum of upper bytes comes first and is shifted, for lower
// bytes to be added.
#pragma once
#include "code_pairs.h"
#include "linear_int_tile.h"
#include "linear_kernels.h"

namespace octavo {

constexpr int kPairsWide = 4; // pairs of outputs of a tile
static_assert(kWidestMany == 1, "a strip is one panel");
static_assert(kScratchUnits == span_units(Coding::words), "a call is one span of words");

// Bytes of a product of two rows, or of one, with what belongs to each.
template <bool Lone> struct RowPair {
  static constexpr int kRows = Lone ? 1 : 2;

  static OCTAVO_INLINE uint8x16_t load_eight(const uint8_t* p) {
    return Lone ? vcombine_u8(vld1_u8(p), vdup_n_u8(0)) : vld1q_u8(p);
  }
  static OCTAVO_INLINE float32x4_t spread(const float* p) {
    if (Lone) return vld1q_dup_f32(p);
    const float32x4_t two = vcombine_f32(vld1_f32(p), vdup_n_f32(0));
    return vzip1q_f32(two, two);
  }
  static OCTAVO_INLINE int32x4_t spread(const int32_t* p) {
    if (Lone) return vld1q_dup_s32(p);
    const int32x4_t two = vcombine_s32(vld1_s32(p), vdup_n_s32(0));
    return vzip1q_s32(two, two);
  }
};

OCTAVO_INLINE float32x4_t of_two_outputs(const float* p) {
  const float32x2_t two = vld1_f32(p);
  return vcombine_f32(two, two);
}
OCTAVO_INLINE float32x4_t halves(float32x4_t a, float32x4_t b, bool high) {
  const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
  return vreinterpretq_f32_f64(high ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
}

template <Coding C, IntTileKind const& Kind, int Pairs, bool Lone> class PairTile {
  using Rows = RowPair<Lone>;
  static constexpr int kGroups = kUnit / Kind.group; // of a unit
  static constexpr int kSteps = Kind.group / 8;      // of a group
  static constexpr int kPlane = 8 * Rows::kRows;     // bytes of eight inputs
  static constexpr int kEight = kPlane * code_bytes_of(C);
  static constexpr int kPair = 2 * kCodeRun * code_bytes_of(C);
  static constexpr int kCodes = 2 * kPairsWide * 16; // of eight inputs
  static constexpr bool kWords = C == Coding::words;
  template <bool Upper> static constexpr int kPlaneAt = kWords&& Upper ? kPlane : 0;

public:
  // half: of the panel. row: of the tile's first.
  OCTAVO_INLINE PairTile(const IntTile& t, int row, int half)
      : t_(t), codes_(t.codes + half * kPairsWide * 16), inputs_(t.inputs + row / 2 * kPair),
        scales_(t.scales + half * kLanes / 2), mins_(Kind.mins ? t.mins + half * kLanes / 2 : nullptr),
        input_scales_(t.input_scales + row), sums_(Kind.mins ? t.sums + row : nullptr),
        starts_(Kind.starts ? t.starts + row : nullptr), total_(t.total + row * kLanes + half * kLanes / 2) {}

  OCTAVO_INLINE void run(bool fetches) {
    open();
    for (int unit = 0; unit < t_.units; ++unit) {
      if (fetches) fetch_lines(t_.ahead, unit);
      add_group<true, kGroups == 1>();
      if constexpr (kGroups == 2) add_group<false, true>();
      if constexpr (!kWords) input_scales_ += t_.stride;
    }
    close();
  }

private:
  template <bool Upper> OCTAVO_INLINE void multiply() {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      uint8x16_t inputs[Pairs];
#pragma GCC unroll 4
      for (int r = 0; r < Pairs; ++r) inputs[r] = Rows::load_eight(inputs_ + kPlaneAt<Upper> + r * kPair + s * kEight);
#pragma GCC unroll 4
      for (int w = 0; w < kPairsWide; ++w) {
        const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(codes_ + s * kCodes + w * 16));
#pragma GCC unroll 4
        for (int r = 0; r < Pairs; ++r)
          sum_[r][w] = Upper ? vmmlaq_s32(sum_[r][w], vreinterpretq_s8_u8(inputs[r]), codes)
                             : vusmmlaq_s32(sum_[r][w], inputs[r], codes);
      }
    }
  }

  OCTAVO_INLINE void start() {
#pragma GCC unroll 4
    for (int r = 0; r < Pairs; ++r) {
      const int32x4_t first = Kind.starts ? Rows::spread(starts_ + 2 * r) : vdupq_n_s32(0);
#pragma GCC unroll 4
      for (int w = 0; w < kPairsWide; ++w)
        if constexpr (!kWords)
          sum_[r][w] = first;
        else if constexpr (Kind.starts)
          sum_[r][w] = vaddq_s32(first, vshlq_n_s32(sum_[r][w], 8));
        else
          sum_[r][w] = vshlq_n_s32(sum_[r][w], 8);
    }
  }

  template <bool First, bool Last> OCTAVO_INLINE void add_group() {
    if constexpr (kWords) {
#pragma GCC unroll 4
      for (int r = 0; r < Pairs; ++r)
#pragma GCC unroll 4
        for (int w = 0; w < kPairsWide; ++w) sum_[r][w] = vdupq_n_s32(0);
      multiply<true>();
      start();
      multiply<false>();
    } else {
      start();
      multiply<true>();
    }
    float32x4_t inputs[Pairs], sums[Pairs];
#pragma GCC unroll 4
    for (int r = 0; r < Pairs; ++r) {
      if constexpr (!kWords && Last) inputs[r] = Rows::spread(input_scales_ + 2 * r);
      if constexpr (Kind.mins) sums[r] = Rows::spread(sums_ + 2 * r);
    }
#pragma GCC unroll 4
    for (int w = 0; w < kPairsWide; ++w) {
      const float32x4_t scale = of_two_outputs(scales_ + 2 * w);
#pragma GCC unroll 4
      for (int r = 0; r < Pairs; ++r) {
        const float32x4_t value = vcvtq_f32_s32(sum_[r][w]);
        float32x4_t next = kWords  ? vfmaq_f32(held_[r][w], scale, value)
                           : First ? vmulq_f32(scale, value)
                                   : vfmaq_f32(part_[r][w], scale, value);
        if constexpr (Kind.mins) next = vfmaq_f32(next, of_two_outputs(mins_ + 2 * w), sums[r]);
        if constexpr (kWords)
          held_[r][w] = next;
        else if constexpr (Last)
          held_[r][w] = vfmaq_f32(held_[r][w], inputs[r], next);
        else
          part_[r][w] = next;
      }
    }
    next_group();
  }

  OCTAVO_INLINE void next_group() {
    inputs_ += kSteps * kEight;
    codes_ += kSteps * kCodes;
    scales_ += kLanes;
    if constexpr (Kind.mins) mins_ += kLanes;
    if constexpr (Kind.mins) sums_ += t_.stride;
    if constexpr (Kind.starts) starts_ += t_.stride;
  }

  OCTAVO_INLINE void open() {
#pragma GCC unroll 4
    for (int r = 0; r < Pairs; ++r)
#pragma GCC unroll 4
      for (int w = 0; w < kPairsWide; w += 2) {
        const float* first = total_ + 2 * r * kLanes + 2 * w;
        const float32x4_t a = kWords ? vdupq_n_f32(0) : vld1q_f32(first);
        const float32x4_t b = kWords || Lone ? a : vld1q_f32(first + kLanes);
        held_[r][w] = halves(a, b, false);
        held_[r][w + 1] = halves(a, b, true);
      }
  }

  OCTAVO_INLINE void close() {
#pragma GCC unroll 4
    for (int r = 0; r < Pairs; ++r)
#pragma GCC unroll 4
      for (int w = 0; w < kPairsWide; w += 2)
#pragma GCC unroll 2
        for (int second = 0; second < Rows::kRows; ++second) {
          float* const to = total_ + (2 * r + second) * kLanes + 2 * w;
          const float32x4_t held = halves(held_[r][w], held_[r][w + 1], second == 1);
          vst1q_f32(to, kWords ? vfmaq_f32(vld1q_f32(to), held, vld1q_dup_f32(input_scales_ + 2 * r + second)) : held);
        }
  }

  const IntTile t_;
  const uint8_t *codes_, *inputs_;
  const float *scales_, *mins_, *input_scales_, *sums_;
  const int32_t* starts_;
  float* total_;
  int32x4_t sum_[Pairs][kPairsWide];
  float32x4_t part_[Pairs][kPairsWide]; // of a unit with two groups
  float32x4_t held_[Pairs][kPairsWide]; // totals, or with words a span's parts
};

template <Coding C, IntTileKind const& Kind, int Pairs, bool Lone>
__attribute__((noinline)) void run_pairs(const IntTile& t, int row, int fetched) {
  if (t.out)
    for (int r = 0; r < (Lone ? 1 : 2 * Pairs); ++r) __builtin_prefetch(t.out + (row + r) * t.out_stride, 1, 2);
  IntTile tile = t;
  tile.ahead.next += fetched * t.units * t.ahead.each;
  PairTile<C, Kind, Pairs, Lone>(tile, row, 0).run(true);
  PairTile<C, Kind, Pairs, Lone>(tile, row, 1).run(false);
}

template <int Group, bool Mins, bool Starts, bool Signed> struct IntKinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed};
};

template <Coding C, int Group, bool Mins, bool Starts, bool Signed>
void run_int_tile(const IntTile& tile, int rows, int) {
  constexpr const IntTileKind& kKind = IntKinds<Group, Mins, Starts, Signed>::kind;
  int row = 0, done = 0;
  for (; row + 6 <= rows; row += 6) run_pairs<C, kKind, 3, false>(tile, row, done++);
  if (row + 4 <= rows) {
    run_pairs<C, kKind, 2, false>(tile, row, done++);
    row += 4;
  }
  if (row + 2 <= rows) {
    run_pairs<C, kKind, 1, false>(tile, row, done++);
    row += 2;
  }
  if (row < rows) run_pairs<C, kKind, 1, true>(tile, row, done);
}

} // namespace octavo
