#include "linear_kernels.h"

#include <string.h>

#include "linear_codes.h"
#include "linear_tile.h"

namespace octavo {
namespace {

// --- block formats ---

template <int Number> const float* group_sums(const LinearInputs& in, int64_t row) {
  return format_of(Number).group == 16 ? in.sums16 + row * (in.cols / 16) : in.sums32 + row * (in.cols / 32);
}

// sum += values * inputs over eight inputs of a unit, panel by panel so that their chains overlap.
template <int Number, int Row, int Panels>
inline void add_eight(const Strip& strip, int64_t unit, const float* x, Vec16 (&sum)[Panels]) {
  constexpr Format f = format_of(Number);
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    const uint8_t* panel = strip.panels + p * strip.layout.bytes;
    const uint8_t* low = panel + unit * 64 * f.low_bits;
    // The strip that comes next, at the same place: long enough ahead for memory, soon enough for the second level.
    if constexpr (f.low_bits == 8) __builtin_prefetch(low + Row * 128 + 64 + Panels * strip.layout.bytes, 0, 2);
    if constexpr (f.low_bits >= 4 || Row % 2 == 0)
      __builtin_prefetch(low + Row * 16 * f.low_bits + Panels * strip.layout.bytes, 0, 2);
    Vec16 value[8];
    read_eight<Number, Row>(low, panel + strip.layout.high + unit * 64 * f.high_bits, value);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sum[p] = fma(value[k], set1(x[8 * Row + k]), sum[p]);
  }
}

// Adds the groups' sums to the totals, and starts new ones.
template <int Number, int Panels>
inline void close_group(const Strip& strip, int64_t group, const float* sums, Vec16 (&sum)[Panels],
                        Vec16 (&total)[Panels]) {
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    const uint8_t* panel = strip.panels + p * strip.layout.bytes;
    total[p] = fma(group_scale<Number>(panel, strip.layout, group), sum[p], total[p]);
    if constexpr (format_of(Number).mins)
      total[p] = fma(group_min<Number>(panel, strip.layout, group), set1(sums[group]), total[p]);
    sum[p] = zero();
  }
}

template <int Number, int Panels> void block_row(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr Format f = format_of(Number);
  const float* x = in.values + row * in.cols;
  const float* sums = f.mins ? group_sums<Number>(in, row) : nullptr;
  Vec16 total[Panels], sum[Panels];
  for (int p = 0; p < Panels; ++p) total[p] = sum[p] = zero();
  for (int64_t unit = 0; unit < in.cols / kUnit; ++unit, x += kUnit) {
    add_eight<Number, 0>(strip, unit, x, sum);
    add_eight<Number, 1>(strip, unit, x, sum);
    if constexpr (f.group == 16) close_group<Number>(strip, 2 * unit, sums, sum, total);
    add_eight<Number, 2>(strip, unit, x, sum);
    add_eight<Number, 3>(strip, unit, x, sum);
    close_group<Number>(strip, f.group == 16 ? 2 * unit + 1 : unit, sums, sum, total);
  }
  for (int p = 0; p < Panels; ++p) store(out + p * kLanes, total[p]);
}

template <int Number, int Row> inline void unpack_eight(const uint8_t* low, const uint8_t* high, float* out) {
  Vec16 value[8];
  read_eight<Number, Row>(low, high, value);
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) store(out + (8 * Row + k) * kLanes, value[k]);
}

template <int Number> void unpack_unit(const uint8_t* low, const uint8_t* high, float* out) {
  unpack_eight<Number, 0>(low, high, out);
  unpack_eight<Number, 1>(low, high, out);
  unpack_eight<Number, 2>(low, high, out);
  unpack_eight<Number, 3>(low, high, out);
}

template <int Number>
void block_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                float* scratch) {
  constexpr Format f = format_of(Number);
  constexpr int kGroups = kUnit / f.group;
  float* scales = scratch + kMostPanels * kUnit * kLanes;  // [group of the unit][panel][16]
  float* mins = scales + 2 * kMostPanels * kLanes;
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t unit = 0; unit < in.cols / kUnit; ++unit) {
    for (int p = 0; p < panels; ++p) {
      const uint8_t* panel = strip.panels + p * strip.layout.bytes;
      unpack_unit<Number>(panel + unit * 64 * f.low_bits, panel + strip.layout.high + unit * 64 * f.high_bits,
                          scratch + p * kUnit * kLanes);
      for (int g = 0; g < kGroups; ++g) {
        const int64_t group = unit * kGroups + g;
        store(scales + (g * panels + p) * kLanes, group_scale<Number>(panel, strip.layout, group));
        if constexpr (f.mins) store(mins + (g * panels + p) * kLanes, group_min<Number>(panel, strip.layout, group));
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      const int64_t group = unit * kGroups + g;
      FloatTile tile{};
      tile.weights = scratch + g * f.group * kLanes;
      tile.panel_stride = kUnit * kLanes;
      tile.count = f.group;
      tile.inputs = in.values + row * in.cols + group * f.group;
      tile.row_stride = in.cols;
      tile.scales = scales + g * panels * kLanes;
      if constexpr (f.mins) {
        tile.mins = mins + g * panels * kLanes;
        tile.sums = group_sums<Number>(in, row) + group;
        tile.sum_stride = in.cols / f.group;
      }
      tile.total = total;
      run_float_tile(tile, rows, panels);
    }
  }
}

// --- dense formats ---

// The weights of inputs k and k + 1.
template <int Number> inline void read_pair(const uint8_t* panel, int64_t k, Vec16& first, Vec16& second) {
  if constexpr (Number == OCTAVO_F32) {
    first = load(reinterpret_cast<const float*>(panel) + k * kLanes);
    second = load(reinterpret_cast<const float*>(panel) + (k + 1) * kLanes);
  } else if constexpr (Number == OCTAVO_F16) {
    first = load_halves(panel + k * 2 * kLanes);
    second = load_halves(panel + (k + 1) * 2 * kLanes);
  } else {
    const Int16 words = load_words(panel + k * 2 * kLanes);
    first = bits_as_float(shift_right<-16>(words));
    second = bits_as_float(keep_bits(words, 0xffff0000u));
  }
}

template <int Number> inline Vec16 read_last(const uint8_t* panel, int64_t k) {
  return Number == OCTAVO_F32 ? load(reinterpret_cast<const float*>(panel) + k * kLanes)
                              : load_halves(panel + k * 2 * kLanes);
}

template <int Number> const float* dense_inputs(const LinearInputs& in, int64_t row) {
  return Number == OCTAVO_BF16 ? in.rounded + row * in.even_cols : in.values + row * in.cols;
}

template <int Number> int64_t dense_cols(const LinearInputs& in) {
  return Number == OCTAVO_BF16 ? in.even_cols : in.cols;
}

template <int Number, int Panels> void dense_row(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr int64_t kBytes = format_of(Number).low_bits / 8 * kLanes;  // of one input
  const float* x = dense_inputs<Number>(in, row);
  const int64_t cols = dense_cols<Number>(in), ahead = Panels * strip.layout.bytes;
  Vec16 total[Panels];
  for (int p = 0; p < Panels; ++p) total[p] = zero();
  for (int64_t start = 0; start < cols; start += kDenseGroup) {
    const int64_t end = start + kDenseGroup < cols ? start + kDenseGroup : cols;
    Vec16 sum[Panels];
    for (int p = 0; p < Panels; ++p) sum[p] = zero();
    int64_t k = start;
    for (; k + 2 <= end; k += 2) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* panel = strip.panels + p * strip.layout.bytes;
        __builtin_prefetch(panel + k * kBytes + ahead, 0, 2);
        if constexpr (Number == OCTAVO_F32) __builtin_prefetch(panel + (k + 1) * kBytes + ahead, 0, 2);
        Vec16 first, second;
        read_pair<Number>(panel, k, first, second);
        sum[p] = fma(second, set1(x[k + 1]), fma(first, set1(x[k]), sum[p]));
      }
    }
    for (int p = 0; p < Panels; ++p) {
      if (k < end) sum[p] = fma(read_last<Number>(strip.panels + p * strip.layout.bytes, k), set1(x[k]), sum[p]);
      total[p] = sum[p] + total[p];
    }
  }
  for (int p = 0; p < Panels; ++p) store(out + p * kLanes, total[p]);
}

template <int Number> void unpack_dense(const uint8_t* panel, int64_t start, int64_t end, float* out) {
  int64_t k = start;
  for (; k + 2 <= end; k += 2, out += 2 * kLanes) {
    Vec16 first, second;
    read_pair<Number>(panel, k, first, second);
    store(out, first);
    store(out + kLanes, second);
  }
  if (k < end) store(out, read_last<Number>(panel, k));
}

template <int Number>
void dense_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                float* scratch) {
  const int64_t cols = dense_cols<Number>(in);
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t start = 0; start < cols; start += kDenseGroup) {
    const int64_t end = start + kDenseGroup < cols ? start + kDenseGroup : cols;
    FloatTile tile{};
    if constexpr (Number == OCTAVO_F32) {
      tile.weights = reinterpret_cast<const float*>(strip.panels) + start * kLanes;
      tile.panel_stride = strip.layout.bytes / static_cast<int64_t>(sizeof(float));
    } else {
      for (int p = 0; p < panels; ++p)
        unpack_dense<Number>(strip.panels + p * strip.layout.bytes, start, end, scratch + p * kDenseGroup * kLanes);
      tile.weights = scratch;
      tile.panel_stride = kDenseGroup * kLanes;
    }
    tile.count = end - start;
    tile.inputs = dense_inputs<Number>(in, row) + start;
    tile.row_stride = cols;
    tile.total = total;
    run_float_tile(tile, rows, panels);
  }
}

// --- bf16 with the hardware's dot product ---

#if defined(__AVX512BF16__)
template <int Panels> void pair_row(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  const int64_t words = in.even_cols / 2, ahead = Panels * strip.layout.bytes;
  const uint32_t* x = in.pairs + row * words;
  __m512 total[Panels];
  for (int p = 0; p < Panels; ++p) total[p] = _mm512_setzero_ps();
  for (int64_t start = 0; start < words; start += kPairGroup / 2) {
    const int64_t end = start + kPairGroup / 2 < words ? start + kPairGroup / 2 : words;
    __m512 sum[Panels];
    for (int p = 0; p < Panels; ++p) sum[p] = _mm512_setzero_ps();
    for (int64_t k = start; k < end; ++k) {
      const __m512bh input = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[k]));
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* weights = strip.panels + p * strip.layout.bytes + k * 4 * kLanes;
        __builtin_prefetch(weights + ahead, 0, 2);
        sum[p] = _mm512_dpbf16_ps(sum[p], (__m512bh)_mm512_loadu_si512(weights), input);
      }
    }
    for (int p = 0; p < Panels; ++p) total[p] = _mm512_add_ps(sum[p], total[p]);
  }
  for (int p = 0; p < Panels; ++p) _mm512_storeu_ps(out + p * kLanes, total[p]);
}

void pair_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total, float*) {
  const int64_t words = in.even_cols / 2;
  memset(total, 0, sizeof(float) * static_cast<size_t>(rows * panels * kLanes));
  for (int64_t start = 0; start < words; start += kPairGroup / 2) {
    PairTile tile{};
    tile.weights = strip.panels + start * 4 * kLanes;
    tile.panel_stride = strip.layout.bytes;
    tile.count = start + kPairGroup / 2 < words ? kPairGroup / 2 : words - start;
    tile.inputs = in.pairs + row * words + start;
    tile.row_stride = words;
    tile.total = total;
    run_pair_tile(tile, rows, panels);
  }
}

LinearKernel bf16_kernel() { return {pair_row<1>, pair_row<2>, pair_row<4>, pair_rows}; }
#else
LinearKernel bf16_kernel() {
  return {dense_row<OCTAVO_BF16, 1>, dense_row<OCTAVO_BF16, 2>, dense_row<OCTAVO_BF16, 4>, dense_rows<OCTAVO_BF16>};
}
#endif

template <int Number> LinearKernel dense_kernel() {
  return {dense_row<Number, 1>, dense_row<Number, 2>, dense_row<Number, 4>, dense_rows<Number>};
}

template <int Number> LinearKernel block_kernel() {
  return {block_row<Number, 1>, block_row<Number, 2>, block_row<Number, 4>, block_rows<Number>};
}

}  // namespace

LinearKernel linear_kernel(int32_t format) {
  switch (format) {
    case OCTAVO_F32: return dense_kernel<OCTAVO_F32>();
    case OCTAVO_F16: return dense_kernel<OCTAVO_F16>();
    case OCTAVO_BF16: return bf16_kernel();
    case OCTAVO_Q4_0: return block_kernel<OCTAVO_Q4_0>();
    case OCTAVO_Q4_1: return block_kernel<OCTAVO_Q4_1>();
    case OCTAVO_Q5_0: return block_kernel<OCTAVO_Q5_0>();
    case OCTAVO_Q5_1: return block_kernel<OCTAVO_Q5_1>();
    case OCTAVO_Q8_0: return block_kernel<OCTAVO_Q8_0>();
    case OCTAVO_Q2_K: return block_kernel<OCTAVO_Q2_K>();
    case OCTAVO_Q3_K: return block_kernel<OCTAVO_Q3_K>();
    case OCTAVO_Q4_K: return block_kernel<OCTAVO_Q4_K>();
    case OCTAVO_Q5_K: return block_kernel<OCTAVO_Q5_K>();
    case OCTAVO_Q6_K: return block_kernel<OCTAVO_Q6_K>();
    case OCTAVO_IQ4_NL: return block_kernel<OCTAVO_IQ4_NL>();
    default: return block_kernel<OCTAVO_MXFP4>();
  }
}

}  // namespace octavo
