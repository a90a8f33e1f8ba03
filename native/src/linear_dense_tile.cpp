#include "linear_dense_tile.h"

#include <string.h>

#include "linear_codes.h"
#include "linear_kernels.h"
#include "simd/vec.h"

namespace octavo {
namespace {

constexpr int64_t kWord = 4;           // bytes
constexpr int64_t kInputsAhead = 1024; // bytes: what comes from the second-level cache in time

inline float word_at(const uint8_t* p) {
  float word;
  memcpy(&word, p, kWord);
  return word;
}

// What a step multiplies: weight(p, k) reads step k, 0 or 1, of the two that stand at p; kBytes: of a step of one
// panel.
struct Floats {
  static constexpr int64_t kBytes = kLanes * kWord;
  static constexpr bool kWidens = false;
  static Vec16 weight(const uint8_t* p, int k) { return load(reinterpret_cast<const float*>(p + k * kBytes)); }
  static Vec16 multiply_add(Vec16 a, Vec16 b, Vec16 c) { return fma(a, b, c); }
};

struct F16 : Floats {
  static constexpr int64_t kBytes = kLanes * 2;
  static Vec16 weight(const uint8_t* p, int k) { return load_halves(p + k * kBytes); }
};

struct Bf16 : Floats {
  static constexpr int64_t kBytes = kLanes * 2;
  static Vec16 weight(const uint8_t* p, int k) {
    if (k) return bits_as_float(shift_right<-16>(load_words(p)));
#if defined(OCTAVO_ISA_AVX512)
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaaaaaau, p))}; // sums leave no register for a mask of bits
#else
    return bits_as_float(keep_bits(load_words(p), 0xffff0000u));
#endif
  }
#if defined(OCTAVO_ISA_AVX512)
  // Written as an instruction that adds in place: with another form the compiler moves sums to memory and back.
  static Vec16 multiply_add(Vec16 a, Vec16 b, Vec16 c) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(c.v) : "v"(a.v), "v"(b.v));
    return c;
  }
#endif
};

// Writes the weights out as floats for the tiles that follow: what that costs is hidden behind the products.
template <class Words> struct Widening : Words {
  static constexpr bool kWidens = true;
};

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_VARIANT_NEON_I8MM)
struct Pairs : Floats {
  static Vec16 multiply_add(Vec16 a, Vec16 b, Vec16 c) { return add_pairs(c, a, b); }
};
#endif

// Hides where an address comes from: a compiler that keeps those of all rows at once has no registers left for sums.
template <class T> inline T* next_row(T* row, int64_t stride) {
  row += stride;
#if defined(__GNUC__)
  asm("" : "+r"(row));
#endif
  return row;
}

void fetch_results(const DenseTile& t, int rows, int panels) {
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < panels; ++p) {
      __builtin_prefetch(t.out + r * t.row_stride + p * kLanes, 1);
      if (t.residual) __builtin_prefetch(t.residual + r * t.row_stride + p * kLanes);
    }
}

template <class Words, int Rows, int Panels> void multiply(const DenseTile& t) {
  fetch_results(t, Rows, Panels);
  Vec16 sum[Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) sum[r][p] = zero();
  const uint8_t* weights = t.weights;
  const uint8_t* inputs = static_cast<const uint8_t*>(t.inputs);
  const uint8_t* ahead = t.ahead;
  float* widened = t.widened;
  const auto step = [&](int k) __attribute__((always_inline)) {
    Vec16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      weight[p] = Words::weight(weights + p * t.panel_stride, k);
      if constexpr (Words::kWidens) store(widened + (p * kDenseGroup + k) * kLanes, weight[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec16 input = set1(word_at(inputs + (k * Rows + r) * kWord));
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = Words::multiply_add(weight[p], input, sum[r][p]);
    }
  };
  int64_t k = 0;
  for (; k + 2 <= t.count; k += 2) {
    step(0);
    __builtin_prefetch(inputs + kInputsAhead, 0, 3);
    if (Rows > 8) __builtin_prefetch(inputs + kInputsAhead + 64, 0, 3);
    step(1);
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) __builtin_prefetch(ahead + p * t.panel_bytes, 0, 2);
    weights += 2 * Words::kBytes;
    inputs += 2 * Rows * kWord;
    ahead += 2 * t.ahead_bytes;
    if constexpr (Words::kWidens) widened += 2 * kLanes;
  }
  if (k < t.count) step(0);
  const float* total = t.total;
  const float* residual = t.residual;
  float* out = t.out;
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      Vec16 value = sum[r][p] + (total ? load(total + (r * Panels + p) * kLanes) : zero());
      if (t.bias) value = value + load(t.bias + p * kLanes);
      if (residual) value = value + load(residual + p * kLanes);
      store(out + p * kLanes, value);
    }
    out = next_row(out, t.row_stride);
    if (residual) residual = next_row(residual, t.row_stride);
  }
}

template <class Words, int Rows, int Panels> void run(const DenseTile& tile, int rows) {
  if (rows == Rows) return multiply<Words, Rows, Panels>(tile);
  if constexpr (Rows > 1) run<Words, Rows - 1, Panels>(tile, rows);
}

template <class Words> void run(const DenseTile& tile, int rows, int panels) {
  if constexpr (kDensePanels > 1)
    if (panels == kDensePanels) return run<Words, kDenseTall, kDensePanels>(tile, rows);
  run<Words, kDenseTall, 1>(tile, rows);
}

} // namespace

void run_dense_tile(const DenseTile& tile, DenseWeights weights, int rows, int panels) {
  switch (weights) {
  case DenseWeights::floats: return run<Floats>(tile, rows, panels);
  case DenseWeights::f16: return tile.widened ? run<Widening<F16>>(tile, rows, panels) : run<F16>(tile, rows, panels);
  case DenseWeights::bf16: return tile.widened ? run<Widening<Bf16>>(tile, rows, panels) : run<Bf16>(tile, rows, panels);
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_VARIANT_NEON_I8MM)
  case DenseWeights::pairs: return run<Pairs>(tile, rows, panels);
#endif
  default: return;
  }
}

} // namespace octavo
