// Kernels of f32, f16 and bf16 weights with few rows.
#include "bf16_choice.h"
#include "linear_codes.h"
#include "linear_dense_registers.h"
#include "linear_dot.h"
#include "linear_kernels.h"
#include "octavo/abi.h"

namespace octavo {
namespace {

// The weights of inputs k and k + 1; of bf16 the second comes first, as rounded inputs do.
template <int Number> inline void read_pair(const uint8_t* panel, int64_t k, Vec16& first, Vec16& second) {
  if constexpr (Number == OCTAVO_F32) {
    first = load(reinterpret_cast<const float*>(panel) + k * kLanes);
    second = load(reinterpret_cast<const float*>(panel) + (k + 1) * kLanes);
  } else if constexpr (Number == OCTAVO_F16) {
    first = load_halves(panel + k * 2 * kLanes);
    second = load_halves(panel + (k + 1) * 2 * kLanes);
  } else {
    const Int16 words = load_words(panel + k * 2 * kLanes);
    first = bits_as_float(keep_bits(words, 0xffff0000u));
    second = bits_as_float(shift_right<-16>(words));
  }
}

template <int Number> inline Vec16 read_last(const uint8_t* panel, int64_t k) {
  return Number == OCTAVO_F32 ? load(reinterpret_cast<const float*>(panel) + k * kLanes)
                              : load_halves(panel + k * 2 * kLanes);
}

template <int Number> const float* dense_inputs(const LinearInputs& in) {
  return Number == OCTAVO_BF16 ? in.rounded : in.values;
}

template <int Number> int64_t dense_cols(const LinearInputs& in) {
  return Number == OCTAVO_BF16 ? in.even_cols : in.cols;
}

template <int Number, int Rows, int Panels>
void few_dense_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  constexpr int64_t kBytes = format_of(Number).low_bits / 8 * kLanes; // of one input
  const int64_t cols = dense_cols<Number>(in);
  AheadOf ahead(strip, 1);
  const float* x = dense_inputs<Number>(in) + row * cols;
  Vec16 total[Rows][Panels];
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) total[r][p] = zero();
  const int64_t group = dense_group(cols);
  for (int64_t start = 0; start < cols; start += group) {
    const int64_t end = start + group < cols ? start + group : cols;
    Vec16 sum[Rows][Panels];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = zero();
    int64_t k = start;
    for (; k + 2 <= end; k += 2) {
      ahead.move(k * kBytes);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* panel = strip.panels + p * strip.layout.bytes;
        ahead.fetch(p);
        if constexpr (Number == OCTAVO_F32) ahead.fetch(p, kBytes);
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

template <int Number> struct Dense {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_dense_rows<Number, Rows, Panels>;
  static constexpr int kMost = kFewRows;
  static constexpr ManyRows kMany = nullptr;
};

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_VARIANT_NEON_I8MM)
template <int Rows, int Panels>
void few_pair_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  const int64_t words = in.even_cols / 2;
  AheadOf ahead(strip, 1);
  const uint32_t* x = in.pairs + row * words;
  Vec16 total[Rows][Panels];
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) total[r][p] = zero();
  const int64_t group = dense_group(in.even_cols) / 2;
  for (int64_t start = 0; start < words; start += group) {
    const int64_t end = start + group < words ? start + group : words;
    Vec16 sum[Rows][Panels];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sum[r][p] = zero();
    for (int64_t k = start; k < end; ++k) {
      ahead.move(k * 4 * kLanes);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint8_t* weights = strip.panels + p * strip.layout.bytes + k * 4 * kLanes;
        ahead.fetch(p);
        const Vec16 weight = bits_as_float(load_words(weights));
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const Vec16 input = bits_as_float(set_words(static_cast<int32_t>(x[r * words + k])));
          sum[r][p] = add_pairs(sum[r][p], weight, input);
        }
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) total[r][p] = sum[r][p] + total[r][p];
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) store(out + (r * Panels + p) * kLanes, total[r][p]);
}

#if defined(OCTAVO_VARIANT_AMX)
template <int Rows, int Panels>
void few_register_rows(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  const int64_t words = words_in_tiles(in.cols), bytes = strip.layout.bytes;
  with_tiles([&](auto& registers) {
    for (int p = 0; p < Panels; p += 2) {
      DenseTile tile{};
      tile.weights = strip.panels + p * bytes;
      tile.panel_stride = tile.panel_bytes = bytes;
      tile.count = in.even_cols / 2;
      tile.inputs = in.pairs + row * words;
      tile.input_words = words;
      tile.out = out + p * kLanes;
      tile.row_stride = Panels * kLanes;
      tile.ahead = strip.next + p * strip.next_layout.bytes;
      tile.ahead_bytes = kTileBytes;
      run_register_tile(registers, tile, Rows, Panels == 1 ? 1 : 2);
    }
  });
}

struct InRegisters {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_register_rows<Rows, Panels>;
  static constexpr int kMost = kFewRows;
  static constexpr ManyRows kMany = nullptr;
};
#else
struct Pairs {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_pair_rows<Rows, Panels>;
  static constexpr int kMost = kFewRows;
  static constexpr ManyRows kMany = nullptr;
};

#endif
#endif

} // namespace

bool bf16_in_pairs() {
#if defined(OCTAVO_VARIANT_AMX)
  return true; // words are pairs
#else
  return choose_pairs();
#endif
}

LinearKernel dense_kernel(int32_t format) {
  if (format == OCTAVO_F32) return kernel_of<Dense<OCTAVO_F32>>();
  if (format == OCTAVO_F16) return kernel_of<Dense<OCTAVO_F16>>();
#if defined(OCTAVO_VARIANT_AMX)
  return kernel_of<InRegisters>();
#elif defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_VARIANT_NEON_I8MM)
  if (bf16_in_pairs()) return kernel_of<Pairs>();
#endif
  return kernel_of<Dense<OCTAVO_BF16>>();
}

} // namespace octavo

extern "C" {

int32_t octavo_bf16_way(void) {
#if defined(OCTAVO_VARIANT_AMX)
  return 2;
#else
  return octavo::choose_pairs() ? 1 : 0;
#endif
}

int32_t octavo_bf16_force(int32_t way) {
  octavo::force_pairs(way);
  return octavo_bf16_way();
}

} // extern "C"
