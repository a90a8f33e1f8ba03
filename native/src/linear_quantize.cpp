#include "linear_quantize.h"

#include <string.h>

#include "linear_kernels.h"
#include "simd/math.h"
#include "unit_codes.h"

namespace octavo {
namespace {

constexpr float kSmallest = 1e-30f; // below it a span is zero: its inverse would overflow

constexpr float largest_code(Coding coding) { return coding == Coding::words ? 32767.0f : 127.0f; }

struct Row {
  RowLayout layout;
  int64_t row, units;
  const CodedInputs& out;

  void write_sums(int64_t unit, UnitSums sums) const {
    const int64_t at = layout.of_group(row, unit, units);
    const int64_t first = layout.of_group(row, 2 * unit, 2 * units),
                  second = layout.of_group(row, 2 * unit + 1, 2 * units);
    if (out.sums16) {
      out.sums16[first] = static_cast<float>(sums.low);
      out.sums16[second] = static_cast<float>(sums.high);
    }
    if (out.sums32) out.sums32[at] = static_cast<float>(sums.low + sums.high);
    for (int index = 0; index < kStartCount; ++index) {
      int32_t* const starts = out.starts[index];
      if (!starts) continue;
      if (kStarts[index].group == 32) {
        starts[at] = -(sums.low + sums.high) * kStarts[index].offset;
      } else {
        starts[first] = -sums.low * kStarts[index].offset;
        starts[second] = -sums.high * kStarts[index].offset;
      }
    }
  }

  bool needs_sums() const {
    bool needs = out.sums16 || out.sums32;
    for (const int32_t* starts : out.starts) needs |= starts != nullptr;
    return needs;
  }
};

// One span of one row. probe becomes NaN with any input that is not finite.
template <Coding C> void quantize_span(const float* x, const Row& to, int64_t span, bool needs_sums, Vec16& probe) {
  constexpr int kSpan = span_units(C);
  const int64_t first = span * kSpan, last = first + kSpan < to.units ? first + kSpan : to.units;
  Vec16 most16 = zero();
  for (int64_t unit = first; unit < last; ++unit) {
    const Vec16 low = load(x + unit * kUnit), high = load(x + unit * kUnit + 16);
    probe = fma(high, zero(), fma(low, zero(), probe));
    most16 = max(max(absolute(low), absolute(high)), most16);
  }
  const float most = largest(most16);
  const bool is_zero = !(most >= kSmallest);
  const Vec16 inverse = set1(is_zero ? 0.0f : largest_code(C) / most);
  for (int64_t unit = first; unit < last; ++unit) {
    uint8_t* codes = to.out.codes + to.layout.at(to.row, unit * kUnit, kCodeRun) * code_bytes_of(C);
    const Vec16 low = load(x + unit * kUnit) * inverse, high = load(x + unit * kUnit + 16) * inverse;
    const UnitSums sums =
        C == Coding::bytes ? store_unit_bytes(codes, low, high, to.out.raise) : store_unit_words(codes, low, high);
    if (needs_sums) to.write_sums(unit, sums);
  }
  to.out.scales[to.layout.of_group(to.row, span, span_count(C, to.units))] = is_zero ? 0.0f : most / largest_code(C);
}

#if defined(OCTAVO_ISA_AVX512)
static_assert(kQuantizedRows == 8, "as many as a register of numbers of two rows each, four of them, has");

// Lane by lane of 128 bits: from numbers of a, of b, ... to one of each. join: of two registers, number by number.
template <class Join> inline __m512i join_two(__m512i a, __m512i b, Join join) {
  return join(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
template <class Join> inline __m512i join_four(const __m512i* x, Join join) {
  const __m512i first = join_two(x[0], x[1], join), second = join_two(x[2], x[3], join);
  return join(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
}

// Units of eight rows that stand in runs, as bytes: the same numbers as unit by unit, with what a row has one of in
// lanes. Sizes of floats are compared as integers, which puts those that are not finite last.
class EightRows {
public:
  EightRows(const float* x, const RowLayout& layout, int64_t row, const CodedInputs& out, bool needs_sums)
      : x_(x), layout_(layout), row_(row), out_(out), needs_sums_(needs_sums) {}

  void add_unit(int64_t unit) {
    const __m256i most = largest_of(unit);
    largest_ = _mm256_max_epu32(largest_, most);
    const __m256 value = _mm256_castsi256_ps(most), top = _mm256_set1_ps(largest_code(Coding::bytes));
    const __mmask8 some = _mm256_cmp_ps_mask(value, _mm256_set1_ps(kSmallest), _CMP_GE_OQ);
    _mm256_storeu_ps(out_.scales + unit * layout_.rows + row_, _mm256_maskz_div_ps(some, value, top));
    alignas(32) float inverse[8];
    _mm256_store_ps(inverse, _mm256_maskz_div_ps(some, top, value));
    uint8_t* const codes = out_.codes + layout_.at(row_, unit * kUnit, kCodeRun);
    __m512i sums[4]; // of rows r and r + 4
    for (int r = 0; r < 4; ++r) {
      const __m512i pair = order_pair(words_of(unit, r, inverse[r]), words_of(unit, r + 4, inverse[r + 4]));
      const __m512i raised = _mm512_xor_si512(pair, _mm512_set1_epi8(static_cast<char>(out_.raise)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + r * kCodeRun), _mm512_castsi512_si256(raised));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + (r + 4) * kCodeRun), _mm512_extracti64x4_epi64(raised, 1));
      sums[r] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), pair), _mm512_set1_epi16(1));
    }
    if (needs_sums_) write_sums(unit, sums);
  }

  // Rows with an input that is not finite, as bits.
  unsigned not_finite() const {
    return _mm256_cmp_epu32_mask(largest_, _mm256_set1_epi32(0x7f800000), _MM_CMPINT_NLT);
  }

private:
  const float* at(int64_t unit, int r) const { return x_ + r * layout_.cols + unit * kUnit; }

  __m256i largest_of(int64_t unit) const {
    const auto join = [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); };
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i most[8];
    for (int r = 0; r < 8; ++r)
      most[r] = join(_mm512_and_si512(_mm512_loadu_si512(at(unit, r)), size),
                     _mm512_and_si512(_mm512_loadu_si512(at(unit, r) + 16), size));
    const __m512i low = join_four(most, join), high = join_four(most + 4, join);
    const __m512i both = join(_mm512_shuffle_i32x4(low, high, 0x44), _mm512_shuffle_i32x4(low, high, 0xee));
    const __m512i all = join(both, _mm512_shuffle_i32x4(both, both, 0xb1));
    return _mm512_castsi512_si256(_mm512_shuffle_i32x4(all, all, 0x08));
  }

  // Codes of 16 bits: in each lane four of the first sixteen inputs, then four of the others.
  __m512i words_of(int64_t unit, int r, float inverse) const {
    const __m512 factor = _mm512_set1_ps(inverse);
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(at(unit, r)), factor)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(at(unit, r) + 16), factor)));
  }

  // Bytes of both rows in the order that coded inputs have.
  static __m512i order_pair(__m512i first, __m512i second) {
    const __m512i natural = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), _mm512_packs_epi16(first, second));
    return _mm512_shuffle_epi8(
        natural, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  }

  void write_sums(int64_t unit, const __m512i (&sums)[4]) const {
    const __m512i lanes = join_four(sums, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
    const __m512i halves = _mm512_shuffle_i32x4(lanes, lanes, 0xd8); // of inputs 0..15, of inputs 16..31
    const __m256i low = _mm512_castsi512_si256(halves), high = _mm512_extracti64x4_epi64(halves, 1);
    const __m256i whole = _mm256_add_epi32(low, high);
    const int64_t first = 2 * unit * layout_.rows + row_, second = first + layout_.rows;
    const int64_t one = unit * layout_.rows + row_;
    if (out_.sums16) {
      _mm256_storeu_ps(out_.sums16 + first, _mm256_cvtepi32_ps(low));
      _mm256_storeu_ps(out_.sums16 + second, _mm256_cvtepi32_ps(high));
    }
    if (out_.sums32) _mm256_storeu_ps(out_.sums32 + one, _mm256_cvtepi32_ps(whole));
  }

  const float* x_;
  const RowLayout& layout_;
  int64_t row_;
  const CodedInputs& out_;
  bool needs_sums_;
  __m256i largest_ = _mm256_setzero_si256();
};

void quantize_eight(const float* x, const RowLayout& layout, int64_t row, const CodedInputs& out) {
  const int64_t units = layout.cols / kUnit;
  EightRows rows(x, layout, row, out, Row{layout, row, units, out}.needs_sums());
  for (int64_t unit = 0; unit < units; ++unit) rows.add_unit(unit);
  for (unsigned left = rows.not_finite(); left; left &= left - 1)
    for (int64_t unit = 0; unit < units; ++unit)
      out.scales[unit * layout.rows + row + __builtin_ctz(left)] = __builtin_nanf("");
}
#endif

// All rows of a span before the next span, if what belongs to a group stands together for all rows.
template <Coding C>
void quantize(const float* x, const RowLayout& layout, int64_t row, int count, const CodedInputs& out) {
#if defined(OCTAVO_ISA_AVX512)
  if (C == Coding::bytes && layout.in_runs && count == kQuantizedRows) return quantize_eight(x, layout, row, out);
#endif
  const int64_t units = layout.cols / kUnit, spans = span_count(C, units);
  const bool needs_sums = Row{layout, row, units, out}.needs_sums();
  Vec16 probe[kQuantizedRows];
  for (int r = 0; r < count; ++r) probe[r] = zero();
  for (int64_t span = 0; span < spans; ++span)
    for (int r = 0; r < count; ++r)
      quantize_span<C>(x + r * layout.cols, Row{layout, row + r, units, out}, span, needs_sums, probe[r]);
  for (int r = 0; r < count; ++r) {
    const float finite = sum(probe[r]);
    if (finite == finite) continue;
    for (int64_t span = 0; span < spans; ++span) out.scales[layout.of_group(row + r, span, spans)] = finite;
  }
}

} // namespace

void quantize_rows(const float* x, Coding coding, const RowLayout& layout, int64_t row, int count,
                   const CodedInputs& out) {
  if (coding == Coding::words)
    quantize<Coding::words>(x, layout, row, count, out);
  else
    quantize<Coding::bytes>(x, layout, row, count, out);
}

} // namespace octavo
