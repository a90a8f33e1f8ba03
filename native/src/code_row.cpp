#include "code_row.h"

#include "linear_quantize.h"
#include "simd/hadamard.h"
#include "simd/math.h"
#include "unit_codes.h"

namespace octavo {
namespace {

constexpr float kSmallest = 1e-30f; // below it a row is zero: its inverse would overflow
constexpr float kLargestCode = 127.0f;
constexpr float kNorm = 0.125f; // of a rotation: 1 / sqrt(64)
constexpr int kVectors = kRotated / kLanes;

// The largest |y| of a row as it goes by; NaN with any number that is not finite.
#if defined(OCTAVO_ISA_AVX512)
class Largest {
public:
  void add(Vec16 y) { // sizes of floats compare as integers, with what is not finite last
    most_ = _mm512_max_epu32(most_, _mm512_and_si512(_mm512_castps_si512(y.v), _mm512_set1_epi32(0x7fffffff)));
  }
  float value() const {
    const float most =
        _mm512_reduce_max_ps(_mm512_castsi512_ps(_mm512_min_epu32(most_, _mm512_set1_epi32(0x7f800000))));
    return most < __builtin_inff() ? most : __builtin_nanf("");
  }

private:
  __m512i most_ = _mm512_setzero_si512();
};
#else
class Largest {
public:
  void add(const Vec16& y) {
    most_ = max(absolute(y), most_);
    probe_ = fma(y, zero(), probe_);
  }
  float value() const { return largest(most_) + sum(probe_); }

private:
  Vec16 most_ = zero(), probe_ = zero();
};
#endif

inline void load_all(const float* x, Vec16 (&y)[kVectors]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) y[i] = load(x + kLanes * i);
}

float turn(const float* x, int64_t cols, float* out) {
  Largest largest;
  for (int64_t k = 0; k < cols; k += kRotated) {
    Vec16 y[kVectors];
    load_all(x + k, y);
    hadamard(y);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      largest.add(y[i]);
      store(out + k + kLanes * i, y[i]);
    }
  }
  return largest.value();
}

float largest_of(const float* x, int64_t cols) {
  Largest largest;
  for (int64_t k = 0; k < cols; k += kLanes) largest.add(load(x + k));
  return largest.value();
}

#if defined(OCTAVO_ISA_AVX512)
// 64 codes: four bytes of each vector in each 128 bits, then dword by dword in order, then in that of coded inputs.
inline void store_codes64(const float* y, Vec16 inverse, uint8_t raise, uint8_t* out) {
  __m512i code[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) code[i] = _mm512_cvtps_epi32((load(y + kLanes * i) * inverse).v);
  const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32(code[0], code[1]), _mm512_packs_epi32(code[2], code[3]));
  const __m512i natural =
      _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), mixed);
  const __m512i ordered = _mm512_shuffle_epi8(
      natural, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  _mm512_storeu_si512(out, _mm512_xor_si512(ordered, _mm512_set1_epi8(static_cast<char>(raise))));
}
#endif

void store_codes(const float* y, int64_t cols, float inverse, const RowCodes& to) {
  const Vec16 factor = set1(inverse);
  int64_t k = 0;
#if defined(OCTAVO_ISA_AVX512)
  for (; k + 64 <= cols; k += 64)
    store_codes64(y + k, factor, to.raise, to.codes + k / kCodeRun * to.run_stride + k % kCodeRun);
#endif
  for (; k < cols; k += kUnit)
    store_unit_bytes(to.codes + k / kCodeRun * to.run_stride + k % kCodeRun, load(y + k) * factor,
                     load(y + k + kLanes) * factor, to.raise);
}

} // namespace

void code_rows(const float* x, int64_t count, int64_t cols, bool rotated, float* turned, const RowCodes& to,
               float* scales) {
  RowCodes at = to;
  float most = 0.0f;
  const auto finish = [&](int64_t row) {
    const bool is_zero = most < kSmallest, is_nan = most != most;
    const float* y = rotated ? turned + row % 2 * cols : x + row * cols;
    store_codes(y, cols, is_zero || is_nan ? 0.0f : kLargestCode / most, at);
    scales[row] = is_zero ? 0.0f : most / kLargestCode * (rotated ? kNorm : 1.0f);
    at.codes += to.row_stride;
  };
  // A row waits for its largest number: the next one is rotated meanwhile.
  for (int64_t row = 0; row < count; ++row) {
    const float* from = x + row * cols;
    const float next = rotated ? turn(from, cols, turned + row % 2 * cols) : largest_of(from, cols);
    if (row > 0) finish(row - 1);
    most = next;
  }
  if (count > 0) finish(count - 1);
}

void rotate_row(const float* x, int64_t cols, float* out) {
  const Vec16 norm = set1(kNorm);
  for (int64_t k = 0; k < cols; k += kRotated) {
    Vec16 y[kVectors];
    load_all(x + k, y);
    hadamard(y);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(out + k + kLanes * i, y[i] * norm);
  }
}

} // namespace octavo
