#include "dense_tiles.h"

#include <string.h>

#include "simd/vec.h"

namespace octavo {
namespace {

// Sixteen words of each of up to sixteen rows: lane r of word k becomes lane k of word r.
#if defined(OCTAVO_ISA_AVX512)
inline __m512 quarters(__m512 a, __m512 b, const bool high) {
  return high ? _mm512_shuffle_f32x4(a, b, 0xdd) : _mm512_shuffle_f32x4(a, b, 0x88);
}
void transpose(Vec16 (&x)[kLanes]) {
  __m512 four[kLanes]; // 4 x 4 blocks of each four rows, turned
  for (int i = 0; i < kLanes; i += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i].v, x[i + 1].v));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i].v, x[i + 1].v));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2].v, x[i + 3].v));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2].v, x[i + 3].v));
    four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    four[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    four[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    four[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 even_low = quarters(four[i], four[i + 4], false), odd_low = quarters(four[i], four[i + 4], true);
    const __m512 even_high = quarters(four[i + 8], four[i + 12], false);
    const __m512 odd_high = quarters(four[i + 8], four[i + 12], true);
    x[i].v = quarters(even_low, even_high, false);
    x[i + 8].v = quarters(even_low, even_high, true);
    x[i + 4].v = quarters(odd_low, odd_high, false);
    x[i + 12].v = quarters(odd_low, odd_high, true);
  }
}
#else
void transpose(Vec16 (&x)[kLanes]) {
  float in[kLanes][kLanes], out[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i) store(in[i], x[i]);
  for (int i = 0; i < kLanes; ++i)
    for (int k = 0; k < kLanes; ++k) out[k][i] = in[i][k];
  for (int i = 0; i < kLanes; ++i) x[i] = load(out[i]);
}
#endif

// The first n of sixteen inputs, what is past them 0.
inline Vec16 first_inputs(const float* x, int64_t n) { return n >= kLanes ? load(x) : load_n(x, static_cast<int>(n)); }

struct Exact {
  static constexpr int64_t kInputs = 1; // of a word
  static Vec16 read(const float* x, int64_t left) { return first_inputs(x, left); }
};

struct Rounded {
  static constexpr int64_t kInputs = 1;
  static Vec16 read(const float* x, int64_t left) { return round_exchanged(first_inputs(x, left)); }
};

struct Paired {
  static constexpr int64_t kInputs = 2;
  static Vec16 read(const float* x, int64_t left) {
    const Vec16 low = first_inputs(x, left), high = left > kLanes ? first_inputs(x + kLanes, left - kLanes) : zero();
#if defined(OCTAVO_ISA_AVX512)
    return {
        _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(round_to_bf16(low)), round_to_bf16(high), 1))};
#else
    uint16_t rounded[2 * kLanes];
    store_bf16(rounded, low);
    store_bf16(rounded + kLanes, high);
    float words[kLanes];
    memcpy(words, rounded, sizeof words);
    return load(words);
#endif
  }
};

template <class Read> void write_tile(const float* x, int64_t cols, int64_t words, int height, float* out) {
  for (int64_t word = 0; word < words; word += kLanes) {
    Vec16 block[kLanes];
    const int64_t first = word * Read::kInputs, left = cols - first;
    for (int r = 0; r < kLanes; ++r) block[r] = r < height ? Read::read(x + r * cols + first, left) : zero();
    transpose(block);
    const int64_t here = words - word < kLanes ? words - word : kLanes;
    for (int64_t k = 0; k < here; ++k) store_n(out + (word + k) * height, block[k], height);
  }
}

void write_rows(const float* x, int64_t cols, int height, float* out) {
  const int64_t words = words_in_tiles(cols);
  for (int r = 0; r < height; ++r)
    for (int64_t word = 0; word < words; word += kLanes)
      store(out + r * words + word, Paired::read(x + r * cols + 2 * word, cols - 2 * word));
}

} // namespace

void write_tile(const float* x, int64_t cols, TileWords kind, int height, float* out) {
  switch (kind) {
  case TileWords::exact: return write_tile<Exact>(x, cols, cols, height, out);
  case TileWords::rounded: return write_tile<Rounded>(x, cols, cols + cols % 2, height, out);
  case TileWords::pairs: return write_tile<Paired>(x, cols, (cols + 1) / 2, height, out);
  case TileWords::rows: return write_rows(x, cols, height, out);
  }
}

} // namespace octavo
