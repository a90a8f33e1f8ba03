#include "linear_quantize.h"

#include <string.h>

#include "linear_kernels.h"
#include "simd/math.h"

namespace octavo {
namespace {

constexpr float kSmallest = 1e-30f; // below it a span is zero: its inverse would overflow

constexpr float largest_code(Coding coding) { return coding == Coding::words ? 32767.0f : 127.0f; }

struct UnitSums {
  int32_t low, high; // of inputs 0..15 and 16..31
};

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AVX2)
// The sums of four words in each half.
inline UnitSums sum_words(__m256i eight) {
  const __m256i two = _mm256_add_epi32(eight, _mm256_shuffle_epi32(eight, 0xee));
  const __m256i one = _mm256_add_epi32(two, _mm256_shuffle_epi32(two, 0x55));
  return {_mm256_cvtsi256_si32(one), _mm_cvtsi128_si32(_mm256_extracti128_si256(one, 1))};
}

#if defined(OCTAVO_ISA_AVX512)
inline __m256i sixteen_words(Vec16 a) { return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)); }
inline __m256i unit_bytes(Vec16 low, Vec16 high) {
  return _mm256_set_m128i(_mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(high.v)),
                          _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(low.v)));
}
#else
inline __m256i sixteen_words(Vec16 a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b));
  return _mm256_permute4x64_epi64(words, 0xd8);
}
inline __m256i unit_bytes(Vec16 low, Vec16 high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(sixteen_words(low), sixteen_words(high)), 0xd8);
}
#endif

inline UnitSums store_unit_bytes(uint8_t* p, Vec16 low, Vec16 high) {
  const __m256i codes = unit_bytes(low, high);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(codes, order));
  return sum_words(_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1)));
}

inline __m256i store_sixteen_words(uint8_t* p, Vec16 a) {
  const __m256i codes = sixteen_words(a);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(codes, order));
  return _mm256_madd_epi16(codes, _mm256_set1_epi16(1));
}

inline UnitSums store_unit_words(uint8_t* p, Vec16 low, Vec16 high) {
  const __m256i first = store_sixteen_words(p, low), second = store_sixteen_words(p + 32, high);
  return sum_words(_mm256_add_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                                    _mm256_permute2x128_si256(first, second, 0x31)));
}
#else
// Codes of sixteen inputs, whose places are given; their sum.
template <class Code, class Place> int32_t store_sixteen(uint8_t* p, const Vec16& a, float limit, Place place) {
  float value[kLanes];
  store(value, max(min(round_int(a), set1(limit)), set1(-limit))); // a NaN has no integer
  int32_t total = 0;
  for (int k = 0; k < kLanes; ++k) {
    const Code code = static_cast<Code>(value[k] == value[k] ? static_cast<int32_t>(value[k]) : 0);
    memcpy(p + (k / 8 * 8 + place(k % 8)) * static_cast<int>(sizeof code), &code, sizeof code);
    total += code;
  }
  return total;
}

UnitSums store_unit_bytes(uint8_t* p, const Vec16& low, const Vec16& high) {
  const auto place = [](int k) { return k % 2 * 4 + k / 2; };
  return {store_sixteen<int8_t>(p, low, 127.0f, place), store_sixteen<int8_t>(p + 16, high, 127.0f, place)};
}

UnitSums store_unit_words(uint8_t* p, const Vec16& low, const Vec16& high) {
  const auto place = [](int k) { return k % 2 * 4 + k / 2 % 2 * 2 + k / 4; };
  return {store_sixteen<int16_t>(p, low, 32767.0f, place), store_sixteen<int16_t>(p + 32, high, 32767.0f, place)};
}
#endif

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
        starts[at] = out.first_sum - (sums.low + sums.high) * kStarts[index].offset;
      } else {
        starts[first] = out.first_sum - sums.low * kStarts[index].offset;
        starts[second] = out.first_sum - sums.high * kStarts[index].offset;
      }
    }
  }

  bool needs_sums() const {
    bool needs = out.sums16 || out.sums32;
    for (const int32_t* starts : out.starts) needs |= starts != nullptr;
    return needs;
  }
};

template <Coding C> void quantize(const float* x, const Row& to) {
  constexpr int kSpan = span_units(C);
  const int64_t spans = span_count(C, to.units);
  const bool needs_sums = to.needs_sums();
  Vec16 probe = zero(); // becomes NaN with any input that is not finite
  for (int64_t span = 0; span < spans; ++span) {
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
      const UnitSums sums = C == Coding::bytes ? store_unit_bytes(codes, low, high) : store_unit_words(codes, low, high);
      if (needs_sums) to.write_sums(unit, sums);
    }
    to.out.scales[to.layout.of_group(to.row, span, spans)] = is_zero ? 0.0f : most / largest_code(C);
  }
  const float finite = sum(probe);
  if (finite == finite) return;
  for (int64_t span = 0; span < spans; ++span) to.out.scales[to.layout.of_group(to.row, span, spans)] = finite;
}

} // namespace

void quantize_row(const float* x, Coding coding, const RowLayout& layout, int64_t row, const CodedInputs& out) {
  const Row to{layout, row, layout.cols / kUnit, out};
  if (coding == Coding::words)
    quantize<Coding::words>(x, to);
  else
    quantize<Coding::bytes>(x, to);
}

} // namespace octavo
