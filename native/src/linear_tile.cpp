#include "linear_tile.h"

#include "linear_kernels.h"
#include "simd/vec.h"

namespace octavo {
namespace {

// Rows of one panel whose accumulators fit the registers.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kTallOne = 12;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kTallOne = 6;
#else
constexpr int kTallOne = 2;
#endif

template <int Rows, int Panels> void float_tile(const FloatTile& t) {
  Vec16 sum[Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) sum[r][p] = zero();
  for (int64_t k = 0; k < t.count; ++k) {
    Vec16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) weight[p] = load(t.weights + p * t.panel_stride + k * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec16 input = set1(t.inputs[r * kFloatRun + k]);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = fma(weight[p], input, sum[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      float* at = t.total + (r * Panels + p) * kLanes;
      Vec16 total = t.scales ? fma(load(t.scales + p * kLanes), sum[r][p], load(at)) : sum[r][p] + load(at);
      if (t.mins) total = fma(load(t.mins + p * kLanes), set1(t.sums[r]), total);
      store(at, total);
    }
}

template <int Rows, int Panels> void run(const FloatTile& tile, int rows) {
  if (rows == Rows) return float_tile<Rows, Panels>(tile);
  if constexpr (Rows > 1) run<Rows - 1, Panels>(tile, rows);
}

FloatTile skip(FloatTile t, int rows, int panels) {
  t.inputs += rows * kFloatRun;
  if (t.sums) t.sums += rows;
  t.total += rows * panels * kLanes;
  return t;
}

// As many full tiles as there are, then what is left.
template <int Tall, int Panels> void run_all(FloatTile tile, int rows) {
  for (; rows >= Tall; rows -= Tall) {
    run<Tall, Panels>(tile, Tall);
    tile = skip(tile, Tall, Panels);
  }
  if (rows > 0) run<Tall, Panels>(tile, rows);
}

void run_tile(const FloatTile& tile, int rows, int panels) {
  if constexpr (kWidestMany == 4) {
    if (panels == 4) return run_all<6, 4>(tile, rows);
    if (panels == 2) return run_all<12, 2>(tile, rows);
  }
  return run_all<kTallOne, 1>(tile, rows);
}

} // namespace

void run_float_tile(const FloatTile& tile, int rows, int panels) { run_tile(tile, rows, panels); }

} // namespace octavo
