#include "linear_kernels.h"

#include <string.h>

#include <atomic>
#if defined(__AVX512BF16__)
#include <cpuid.h>
#endif

#include "linear_codes.h"
#include "linear_tile.h"

namespace octavo {
namespace {

// --- block formats ---

template <int Number> const float* group_sums(const LinearInputs& in, int64_t row) {
  return format_of(Number).group == 16 ? in.sums16 + row * (in.cols / 16) : in.sums32 + row * (in.cols / 32);
}

// A tile of few rows, held in registers while a strip's codes go by once.
template <int Number, int Rows, int Panels> struct BlockTile {
  static constexpr Format f = format_of(Number);
  const Strip& strip;
  const float* x;     // [Rows], cols apart
  const float* sums;  // [Rows], cols / f.group apart; null without mins
  int64_t cols;
  Vec16 sum[Rows][Panels], total[Rows][Panels];

  const uint8_t* panel(int p) const { return strip.panels + p * strip.layout.bytes; }

  // sum += values * inputs over eight inputs of a unit.
  template <int Row> void add_eight(int64_t unit) {
    const int64_t ahead = Panels * strip.layout.bytes;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const uint8_t* low = panel(p) + unit * 64 * f.low_bits;
      // The strip that comes next, at the same place: early enough for memory, late enough for the second level.
      if constexpr (f.low_bits == 8) __builtin_prefetch(low + Row * 128 + 64 + ahead, 0, 2);
      if constexpr (f.low_bits >= 4 || Row % 2 == 0) __builtin_prefetch(low + Row * 16 * f.low_bits + ahead, 0, 2);
      Vec16 value[8];
      read_eight<Number, Row>(low, panel(p) + strip.layout.high + unit * 64 * f.high_bits, value);
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k)
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          sum[r][p] = fma(value[k], set1(x[r * cols + unit * kUnit + 8 * Row + k]), sum[r][p]);
    }
  }

  // Adds the groups' sums to the totals, and starts new ones.
  void close_group(const SuperScales (&shared)[Panels], int64_t group) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 scale = group_scale<Number>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) total[r][p] = fma(scale, sum[r][p], total[r][p]);
      if constexpr (f.mins) {
        const Vec16 min = group_min<Number>(panel(p), strip.layout, shared[p], group);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          total[r][p] = fma(min, set1(sums[r * (cols / f.group) + group]), total[r][p]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sum[r][p] = zero();
    }
  }

  void add_unit(const SuperScales (&shared)[Panels], int64_t unit) {
    add_eight<0>(unit);
    add_eight<1>(unit);
    if constexpr (f.group == 16) close_group(shared, 2 * unit);
    add_eight<2>(unit);
    add_eight<3>(unit);
    close_group(shared, f.group == 16 ? 2 * unit + 1 : unit);
  }
};

template <int Number, int Rows, int Panels>
void few_block_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr Format f = format_of(Number);
  constexpr int64_t kUnits = f.block / kUnit;
  BlockTile<Number, Rows, Panels> tile{
      strip, in.values + row * in.cols, f.mins ? group_sums<Number>(in, row) : nullptr, in.cols, {}, {}};
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) tile.sum[r][p] = tile.total[r][p] = zero();
  for (int64_t block = 0; block < in.cols / f.block; ++block) {
    SuperScales shared[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) shared[p] = super_scales<Number>(tile.panel(p), strip.layout, block);
    for (int64_t unit = block * kUnits; unit < (block + 1) * kUnits; ++unit) tile.add_unit(shared, unit);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, tile.total[r][p]);
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
void many_block_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
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
      const SuperScales shared = super_scales<Number>(panel, strip.layout, unit / (kSuperblock / kUnit));
      for (int g = 0; g < kGroups; ++g) {
        const int64_t group = unit * kGroups + g;
        store(scales + (g * panels + p) * kLanes, group_scale<Number>(panel, strip.layout, shared, group));
        if constexpr (f.mins)
          store(mins + (g * panels + p) * kLanes, group_min<Number>(panel, strip.layout, shared, group));
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

template <int Number, int Rows, int Panels>
void few_dense_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr int64_t kBytes = format_of(Number).low_bits / 8 * kLanes;  // of one input
  const float* x = dense_inputs<Number>(in, row);
  const int64_t cols = dense_cols<Number>(in), ahead = Panels * strip.layout.bytes;
  Vec16 total[Rows][Panels];
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) total[r][p] = zero();
  for (int64_t start = 0; start < cols; start += kDenseGroup) {
    const int64_t end = start + kDenseGroup < cols ? start + kDenseGroup : cols;
    Vec16 sum[Rows][Panels];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = zero();
    int64_t k = start;
    for (; k + 2 <= end; k += 2) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* panel = strip.panels + p * strip.layout.bytes;
        __builtin_prefetch(panel + k * kBytes + ahead, 0, 2);
        if constexpr (Number == OCTAVO_F32) __builtin_prefetch(panel + (k + 1) * kBytes + ahead, 0, 2);
        Vec16 first, second;
        read_pair<Number>(panel, k, first, second);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          sum[r][p] = fma(second, set1(x[r * cols + k + 1]), fma(first, set1(x[r * cols + k]), sum[r][p]));
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec16 last = k < end ? read_last<Number>(strip.panels + p * strip.layout.bytes, k) : zero();
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        if (k < end) sum[r][p] = fma(last, set1(x[r * cols + k]), sum[r][p]);
        total[r][p] = sum[r][p] + total[r][p];
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, total[r][p]);
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
void many_dense_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
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
template <int Rows, int Panels>
void few_pair_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  const int64_t words = in.even_cols / 2, ahead = Panels * strip.layout.bytes;
  const uint32_t* x = in.pairs + row * words;
  __m512 total[Rows][Panels];
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) total[r][p] = _mm512_setzero_ps();
  for (int64_t start = 0; start < words; start += kPairGroup / 2) {
    const int64_t end = start + kPairGroup / 2 < words ? start + kPairGroup / 2 : words;
    __m512 sum[Rows][Panels];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = _mm512_setzero_ps();
    for (int64_t k = start; k < end; ++k) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* weights = strip.panels + p * strip.layout.bytes + k * 4 * kLanes;
        __builtin_prefetch(weights + ahead, 0, 2);
        const __m512bh weight = (__m512bh)_mm512_loadu_si512(weights);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const __m512bh input = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * words + k]));
          sum[r][p] = _mm512_dpbf16_ps(sum[r][p], weight, input);
        }
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) total[r][p] = _mm512_add_ps(sum[r][p], total[r][p]);
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) _mm512_storeu_ps(out + (r * Panels + p) * kLanes, total[r][p]);
}

void many_pair_rows(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total, float*) {
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

bool is_amd() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx && ecx == signature_AMD_ecx;
}
#endif

// --- the table ---

template <int Number> struct Blocks {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_block_rows<Number, Rows, Panels>;
  static constexpr ManyRows kMany = many_block_rows<Number>;
};

template <int Number> struct Dense {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_dense_rows<Number, Rows, Panels>;
  static constexpr ManyRows kMany = many_dense_rows<Number>;
};

#if defined(__AVX512BF16__)
struct Pairs {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_pair_rows<Rows, Panels>;
  static constexpr ManyRows kMany = many_pair_rows;
};
#endif

template <class Kernels> LinearKernel kernel_of() {
  LinearKernel kernel{};
  kernel.many = Kernels::kMany;
  kernel.few[0][0] = Kernels::template kFew<1, 1>;
  kernel.few[0][1] = Kernels::template kFew<1, 2>;
  kernel.few[0][2] = Kernels::template kFew<1, 4>;
  if constexpr (kFewRows == 4) {
    kernel.few[1][0] = Kernels::template kFew<2, 1>;
    kernel.few[1][1] = Kernels::template kFew<2, 2>;
    kernel.few[1][2] = Kernels::template kFew<2, 4>;
    kernel.few[2][0] = Kernels::template kFew<3, 1>;
    kernel.few[2][1] = Kernels::template kFew<3, 2>;
    kernel.few[3][0] = Kernels::template kFew<4, 1>;
    kernel.few[3][1] = Kernels::template kFew<4, 2>;
  }
  return kernel;
}

}  // namespace

bool bf16_in_pairs() {
#if defined(__AVX512BF16__)
  static std::atomic<int> known{-1};  // asking the processor takes microseconds in a virtual machine
  int answer = known.load(std::memory_order_relaxed);
  if (answer < 0) known.store(answer = is_amd() ? 1 : 0, std::memory_order_relaxed);
  return answer == 1;
#else
  return false;
#endif
}

LinearKernel linear_kernel(int32_t format) {
  switch (format) {
    case OCTAVO_F32: return kernel_of<Dense<OCTAVO_F32>>();
    case OCTAVO_F16: return kernel_of<Dense<OCTAVO_F16>>();
    case OCTAVO_BF16:
#if defined(__AVX512BF16__)
      if (bf16_in_pairs()) return kernel_of<Pairs>();
#endif
      return kernel_of<Dense<OCTAVO_BF16>>();
    case OCTAVO_Q4_0: return kernel_of<Blocks<OCTAVO_Q4_0>>();
    case OCTAVO_Q4_1: return kernel_of<Blocks<OCTAVO_Q4_1>>();
    case OCTAVO_Q5_0: return kernel_of<Blocks<OCTAVO_Q5_0>>();
    case OCTAVO_Q5_1: return kernel_of<Blocks<OCTAVO_Q5_1>>();
    case OCTAVO_Q8_0: return kernel_of<Blocks<OCTAVO_Q8_0>>();
    case OCTAVO_Q2_K: return kernel_of<Blocks<OCTAVO_Q2_K>>();
    case OCTAVO_Q3_K: return kernel_of<Blocks<OCTAVO_Q3_K>>();
    case OCTAVO_Q4_K: return kernel_of<Blocks<OCTAVO_Q4_K>>();
    case OCTAVO_Q5_K: return kernel_of<Blocks<OCTAVO_Q5_K>>();
    case OCTAVO_Q6_K: return kernel_of<Blocks<OCTAVO_Q6_K>>();
    case OCTAVO_IQ4_NL: return kernel_of<Blocks<OCTAVO_IQ4_NL>>();
    default: return kernel_of<Blocks<OCTAVO_MXFP4>>();
  }
}

}  // namespace octavo
