#include "linear_quantize.h"

#include <string.h>

#include "linear_kernels.h"
#include "simd/math.h"

namespace octavo {
namespace {

constexpr float kLargestCode = 127.0f;
constexpr float kSmallest = 1e-30f; // below it a unit is zero: its inverse would overflow

struct UnitSums {
  int32_t low, high; // of inputs 0..15 and 16..31
};

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AVX2)
#if defined(OCTAVO_ISA_AVX512)
inline __m128i sixteen_codes(Vec16 a) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)); }
#else
inline __m128i eight_words(__m256 a) {
  const __m256i words = _mm256_cvtps_epi32(a);
  return _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline __m128i sixteen_codes(Vec16 a) { return _mm_packs_epi16(eight_words(a.a), eight_words(a.b)); }
#endif

inline int32_t sum_words(__m128i four) {
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

inline int32_t store_sixteen(uint8_t* p, Vec16 a) {
  const __m128i codes = sixteen_codes(a);
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(codes, order));
  return sum_words(_mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), codes), _mm_set1_epi16(1)));
}
#else
inline int32_t store_sixteen(uint8_t* p, const Vec16& a) {
  float value[kLanes];
  store(value, max(min(a, set1(kLargestCode)), set1(-kLargestCode))); // a NaN has no integer
  int32_t total = 0;
  for (int k = 0; k < kLanes; ++k) {
    const int32_t code = value[k] == value[k] ? static_cast<int32_t>(value[k]) : 0;
    p[k / 8 * 8 + k % 2 * 4 + k % 8 / 2] = static_cast<uint8_t>(code);
    total += code;
  }
  return total;
}
#endif

inline UnitSums quantize_unit(Vec16 low, Vec16 high, uint8_t* codes, float& scale) {
  const float most = largest(max(absolute(low), absolute(high)));
  const bool zero_unit = !(most >= kSmallest);
  const Vec16 inverse = set1(zero_unit ? 0.0f : kLargestCode / most);
  scale = zero_unit ? 0.0f : most / kLargestCode;
  UnitSums sums;
  sums.low = store_sixteen(codes, round_int(low * inverse));
  sums.high = store_sixteen(codes + 16, round_int(high * inverse));
  return sums;
}

} // namespace

void quantize_row(const float* x, const RowLayout& layout, int64_t row, const CodedInputs& out) {
  const int64_t units = layout.cols / kUnit;
  Vec16 probe = zero(); // becomes NaN with any input that is not finite
  for (int64_t unit = 0; unit < units; ++unit) {
    const Vec16 low = load(x + unit * kUnit), high = load(x + unit * kUnit + 16);
    probe = fma(high, zero(), fma(low, zero(), probe));
    const int64_t at = layout.of_group(row, unit, units);
    const int64_t first = layout.of_group(row, 2 * unit, 2 * units),
                  second = layout.of_group(row, 2 * unit + 1, 2 * units);
    float& scale = out.scales[at];
    const UnitSums sums = quantize_unit(low, high, out.codes + layout.at(row, unit * kUnit, kCodeRun), scale);
    if (out.sums16) {
      out.sums16[first] = scale * static_cast<float>(sums.low);
      out.sums16[second] = scale * static_cast<float>(sums.high);
    }
    if (out.sums32) out.sums32[at] = scale * static_cast<float>(sums.low + sums.high);
    for (int log = 0; log < kOffsets; ++log) {
      if (!out.starts[log]) continue;
      if (start_group(log) == 32) {
        out.starts[log][at] = (sums.low + sums.high) * -(1 << log);
      } else {
        out.starts[log][first] = sums.low * -(1 << log);
        out.starts[log][second] = sums.high * -(1 << log);
      }
    }
  }
  const float finite = sum(probe);
  if (finite == finite) return;
  for (int64_t unit = 0; unit < units; ++unit) out.scales[layout.of_group(row, unit, units)] = finite;
}

} // namespace octavo
