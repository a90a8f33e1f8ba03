#include "linear_int_tile.h"

#include <string.h>

#include "linear_dot.h"
#include "linear_kernels.h"
#include "simd/vec.h"

namespace octavo {
namespace {

template <IntTileKind const& Kind, int Rows, int Panels> struct Body {
  static constexpr int kGroups = kUnit / Kind.group;
  const IntTile& t;
  Int16 sum[Rows][Panels];

  void open(int64_t group) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Int16 start = set_words(Kind.starts ? t.starts[group * t.stride + r] : 0);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = start;
    }
  }

  template <int Step> void add(int64_t unit) {
    Int16 weight[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) weight[p] = load_words(t.codes + ((unit * Panels + p) * 8 + Step) * 64);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      int32_t input;
      memcpy(&input, t.inputs + r * kCodeRun + unit * kUnit + 4 * Step, sizeof input);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = dot<Kind.is_signed>(sum[r][p], weight[p], input);
    }
  }

  void close(int64_t unit, int64_t group) {
    Vec16 scale[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) scale[p] = load(t.scales + (group * Panels + p) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec16 input = set1(t.input_scales[unit * t.stride + r]);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        float* at = t.total + (r * Panels + p) * kLanes;
        Vec16 total = fma(scale[p] * input, to_float(sum[r][p]), load(at));
        if constexpr (Kind.mins)
          total = fma(load(t.mins + (group * Panels + p) * kLanes), set1(t.sums[group * t.stride + r]), total);
        store(at, total);
      }
    }
  }

  void run() {
    for (int64_t unit = 0; unit < t.units; ++unit) {
      open(unit * kGroups);
      add<0>(unit);
      add<1>(unit);
      add<2>(unit);
      add<3>(unit);
      if constexpr (kGroups == 2) {
        close(unit, 2 * unit);
        open(2 * unit + 1);
      }
      add<4>(unit);
      add<5>(unit);
      add<6>(unit);
      add<7>(unit);
      close(unit, unit * kGroups + kGroups - 1);
    }
  }
};

template <IntTileKind const& Kind> IntTile skip(IntTile t, int rows, int panels) {
  t.inputs += rows * kCodeRun;
  t.input_scales += rows;
  if (Kind.mins) t.sums += rows;
  if (Kind.starts) t.starts += rows;
  t.total += rows * panels * kLanes;
  return t;
}

template <IntTileKind const& Kind, int Rows, int Panels> void run(const IntTile& tile, int rows) {
  if (rows == Rows) return Body<Kind, Rows, Panels>{tile, {}}.run();
  if constexpr (Rows > 1) run<Kind, Rows - 1, Panels>(tile, rows);
}

// As many full tiles as there are, then what is left.
template <IntTileKind const& Kind, int Tall, int Panels> void run_all(IntTile tile, int rows) {
  for (; rows >= Tall; rows -= Tall) {
    run<Kind, Tall, Panels>(tile, Tall);
    tile = skip<Kind>(tile, Tall, Panels);
  }
  if (rows > 0) run<Kind, Tall, Panels>(tile, rows);
}

// Rows of one panel whose accumulators fit the registers.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kTall = 8;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kTall = 5;
#else
constexpr int kTall = 2;
#endif

template <int Group, bool Mins, bool Starts, bool Signed> struct Kinds {
  static constexpr IntTileKind kind{Group, Mins, Starts, Signed};
};

} // namespace

template <int Group, bool Mins, bool Starts, bool Signed> void run_int_tile(const IntTile& tile, int rows, int panels) {
  constexpr const IntTileKind& kKind = Kinds<Group, Mins, Starts, Signed>::kind;
  if constexpr (kWidestMany == 4) {
    if (panels == 4) return run_all<kKind, 6, 4>(tile, rows);
    if (panels == 2) return run_all<kKind, kTall, 2>(tile, rows);
  }
  return run_all<kKind, kTall, 1>(tile, rows);
}

// One of each that a format needs.
template void run_int_tile<32, false, true, false>(const IntTile&, int, int);
template void run_int_tile<32, true, false, false>(const IntTile&, int, int);
template void run_int_tile<16, false, true, false>(const IntTile&, int, int);
template void run_int_tile<16, true, false, false>(const IntTile&, int, int);
#if defined(OCTAVO_ISA_AVX512)
template void run_int_tile<32, false, true, true>(const IntTile&, int, int);
template void run_int_tile<32, true, true, true>(const IntTile&, int, int);
#else
template void run_int_tile<32, false, false, true>(const IntTile&, int, int);
template void run_int_tile<32, true, false, true>(const IntTile&, int, int);
#endif

} // namespace octavo
