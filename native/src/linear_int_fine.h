// Products of one row of coded inputs with weights of 2 and 3 bits, whose scales belong to 16 inputs: AVX-512.
//
// What linear_int.h says is computed, with the same steps of floats and so to the bit, in fewer operations. Inputs in
// 16 bits are 256 * their upper byte, which is signed, + their lower byte, which is not: codes stay bytes. Scales of 16
// groups are turned at once so that four of a lane are one word; what is read one byte on has the next group's in
// front. d * code is exact however it is made, and so is min code * sum of inputs.
#pragma once
#include "linear_dot.h"
#include "linear_int_few.h"

namespace octavo {

// A superblock's scale bytes, lane by lane; of nibbles the upper ones apart, in front.
template <int Number> struct FineScales {
  static constexpr bool kMins = format_of(Number).mins;
  static constexpr int kGroups = kSuperblock / 16, kFront = 64;
  // Of a signed byte in the second place of a word: 2^15 + 128 + byte, as a float.
  static constexpr int kRaise = 0x47008000;
  static constexpr float kRaised = 32768.0f + 128.0f;

  Vec16 d, other; // other: of mins -dmin, else -d * kRaised
  alignas(64) uint8_t low[kFront + kGroups * kLanes + 64], high[kMins ? kFront + kGroups * kLanes + 64 : 1];

  OCTAVO_INLINE void read(const uint8_t* panel, const PanelLayout& at, int64_t block) {
    const SuperScales shared = super_scales<Number, true>(panel, at, block);
    d = shared.d;
    if constexpr (kMins)
      other = shared.min;
    else
      other = d * set1(-kRaised);
    const __m512i quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i turn = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const uint8_t* from = panel + at.scale + block * kGroups * kLanes;
#pragma GCC unroll 4
    for (int line = 0; line < kGroups * kLanes; line += 64) {
      const __m512i bytes = _mm512_permutexvar_epi32(quads, _mm512_loadu_si512(from + line));
      const __m512i turned = _mm512_shuffle_epi8(bytes, turn);
      _mm512_store_si512(low + kFront + line, turned);
      if constexpr (kMins) _mm512_store_si512(high + kFront + line, _mm512_srli_epi32(turned, 4));
    }
  }

  static OCTAVO_INLINE int place(int group) { return kFront + group / 4 * 64 + group % 4; }

  OCTAVO_INLINE Vec16 scale(int group, Vec16 numbers) const {
    if constexpr (kMins) {
      return d * Vec16{_mm512_permutexvar_ps(_mm512_loadu_si512(low + place(group)), numbers.v)};
    } else {
      const __m512i bytes = _mm512_loadu_si512(low + place(group) - 1);
      const __m512i mask = _mm512_set1_epi32(0xff00), raise = _mm512_set1_epi32(kRaise);
      const __m512i raised = _mm512_ternarylogic_epi32(bytes, mask, raise, 0x6a); // (bytes & mask) ^ raise
      return fma({_mm512_castsi512_ps(raised)}, d, other);
    }
  }
  // products: of 0 to 15 and the sum of the group's inputs
  OCTAVO_INLINE Vec16 add_min(int group, Vec16 products, Vec16 part) const {
    const __m512i codes = _mm512_loadu_si512(high + place(group));
    return fma(other, {_mm512_permutexvar_ps(codes, products.v)}, part);
  }
};

template <int Number, Coding C, int Panels> class FineIntTile {
  using Is = IntFormat<Number, C>;
  static constexpr Format f = Is::f;
  static constexpr bool kWords = C == Coding::words;
  static constexpr int kUnits = kSuperblock / kUnit;
  static_assert(kWords || f.high_bits == 0, "is_fine() says so");

public:
  OCTAVO_INLINE FineIntTile(const Strip& strip, const LinearInputs& in, int64_t row)
      : at_(strip.layout), panels_(strip.panels), in_(in, row, 0), ahead_(strip, in.cols / kUnit) {}

  // out: [Panels][16]
  OCTAVO_INLINE void run(float* out) {
    Kept kept;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) kept.total[p] = zero();
    for (int64_t unit = 0, span = 0; unit < in_.units;) {
      const int64_t block = unit / kUnits;
      read_scales(block);
      if constexpr (kWords) split_inputs(block);
      for (int at = 0; at < kUnits; ++span) {
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) kept.part[p] = zero();
        for (int i = 0; i < Is::kSpan; ++i, ++at, ++unit) add_unit(unit, at, kept);
        const Vec16 scale = set1(in_.scales[span]);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) kept.total[p] = fma(scale, kept.part[p], kept.total[p]);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) store(out + p * kLanes, kept.total[p]);
  }

private:
  struct Kept {
    Vec16 part[Panels], total[Panels];
  };
  // Of products with upper and lower bytes, or with bytes in `low` alone.
  struct Sums {
    Int16 low[Panels], high[Panels];
  };

  OCTAVO_INLINE const uint8_t* panel(int p) const { return panels_ + p * at_.bytes; }

  OCTAVO_INLINE void read_scales(int64_t block) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) scales_[p].read(panel(p), at_, block);
  }

  OCTAVO_INLINE void split_inputs(int64_t block) {
    const __m512i apart = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15));
    const uint8_t* from = in_.codes + block * kSuperblock * 2;
#pragma GCC unroll 8
    for (int i = 0; i < kUnits; ++i)
      _mm512_store_si512(split_ + i * 64, _mm512_shuffle_epi8(_mm512_loadu_si512(from + i * 64), apart));
  }

  // Four inputs of all panels, then the next four: no sum waits for the one before it. Group `group` of the superblock.
  template <int Half, int Four> OCTAVO_INLINE void multiply(int64_t unit, int group, Sums& sums) const {
    const uint8_t* eight = split_ + group * 32 + Four / 2 * 16 + Four % 2 * 4;
    const InputWord low = load_input(eight), high = load_input(eight + 8);
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const uint8_t *from = panel(p) + unit * 64 * f.low_bits, *upper = panel(p) + at_.high + unit * 64 * f.high_bits;
      const Int16 codes = byte_codes<Number, C, 2 * Half + Four / 2, Four % 2>(from, upper);
      sums.high[p] = dot<false>(sums.high[p], codes, high);
      sums.low[p] = dot_raised(sums.low[p], low, codes);
    }
    if constexpr (Four < 3) multiply<Half, Four + 1>(unit, group, sums);
  }

  // Inputs in 8 bits, codes of 2: half of these stay where they are in a byte, and the sums of those that are four
  // times too large come first.
  template <int Half, int Four> OCTAVO_INLINE void multiply_in_place(int64_t unit, Sums& sums) const {
    const InputWord input = load_input(in_.codes + unit * kUnit + Half * 16 + 4 * Four);
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      Int16 codes = load_words(panel(p) + unit * 128 + Half * 64);
      if constexpr (Four >= 2) codes = shift_right<4>(codes);
      codes = keep_bits(codes, Four % 2 ? 0x0c0c0c0cu : 0x03030303u);
      if constexpr (Four == 0) sums.low[p].v = _mm512_srai_epi32(sums.low[p].v, 2);
      sums.low[p] = dot<false>(sums.low[p], codes, input);
    }
    if constexpr (Four == 1) multiply_in_place<Half, 3>(unit, sums);
    if constexpr (Four == 3) multiply_in_place<Half, 0>(unit, sums);
    if constexpr (Four == 0) multiply_in_place<Half, 2>(unit, sums);
  }

  template <int Half> OCTAVO_INLINE void add_group(int64_t unit, int at, Kept& kept) {
    const int64_t number = unit * 2 + Half;
    const int group = at * 2 + Half;
    const Int16 start = set_words(Is::kOffset ? in_.starts[number] : 0);
    Sums sums;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      ahead_.fetch(p, Half * 64);
      sums.low[p] = start;
      sums.high[p] = set_words(0);
    }
    if constexpr (kWords)
      multiply<Half, 0>(unit, group, sums);
    else
      multiply_in_place<Half, 1>(unit, sums);
    const Vec16 numbers{_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
    Vec16 products = numbers;
    if constexpr (f.mins) products = numbers * set1(in_.sums[number]);
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      Int16 sum = sums.low[p];
      if constexpr (kWords) sum.v = _mm512_add_epi32(sum.v, _mm512_slli_epi32(sums.high[p].v, 8));
      Vec16 part = fma(scales_[p].scale(group, numbers), to_float(sum), kept.part[p]);
      if constexpr (f.mins) part = scales_[p].add_min(group, products, part);
      kept.part[p] = part;
    }
  }

  OCTAVO_INLINE void add_unit(int64_t unit, int at, Kept& kept) {
    ahead_.move(unit * 64 * f.low_bits);
    ahead_.template fetch_rest<Panels>();
    add_group<0>(unit, at, kept);
    add_group<1>(unit, at, kept);
  }

  const PanelLayout at_;
  const uint8_t* const panels_;
  const IntInputs<Number, C> in_;
  AheadOf ahead_;
  FineScales<Number> scales_[Panels];
  alignas(64) uint8_t split_[kWords ? 2 * kSuperblock : 1]; // of eight inputs their lower bytes, then their upper ones
};

template <int Number, Coding C, int Panels>
void fine_int_row(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  FineIntTile<Number, C, Panels>(strip, in, row).run(out);
}

} // namespace octavo
