// Products of rows of inputs with a strip of 1, 2 or 4 panels, one pair of kernels a format.
//
// The sum of one output, the same in both kernels and for any number of rows: inputs in groups (of a block format,
// those that share a scale; else dense_group()); in a group one chain of fused multiply-adds from 0, in
// input order; total = fma(scale, group sum, total), then with mins total = fma(min, sum of the group's inputs, total).
#pragma once
#include <stdint.h>

#include "activation.h"
#include "formats.h"
#include "linear_quantize.h"

// Sums stay in registers only if all that uses them is one function. What such functions call and only fetches must be
// one of them, too: GCC takes it for a function without effect.
#define OCTAVO_INLINE __attribute__((always_inline)) inline

namespace octavo {

constexpr int kDenseGroup = 640; // most inputs of a group of dense weights
constexpr int kMostPanels = 4;   // of a strip

// As many as there are registers for: rows that keep their sums in them while codes are read, of floats and of coded
// inputs, and panels with one such row; panels of a strip with many rows (with few registers one panel and many rows
// reuse more).
#if defined(OCTAVO_ISA_AVX512)
constexpr int kFewRows = 4, kFewCodedRows = 6, kWidestFew = 4, kWidestMany = 4;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kFewRows = 1, kFewCodedRows = 1, kWidestFew = 2, kWidestMany = 1;
#else
constexpr int kFewRows = 1, kFewCodedRows = 1, kWidestFew = 1, kWidestMany = 1;
#endif
// Rows of one pass of at most `most`, so that passes are as equal as can be: 10 are 5 and 5.
constexpr int pass_rows(int64_t rows, int most) {
  const int64_t passes = (rows + most - 1) / most;
  return static_cast<int>((rows + passes - 1) / passes);
}
// Panels of a strip with a pass of so many rows, as a power of two.
constexpr int widest_few(int rows) { return rows > 2 && kWidestFew > 1 ? 1 : kWidestFew / 2; }
constexpr int kFewTotals = 12; // rows * panels of a strip, at most

// Inputs of a group of dense weights: groups are as equal as can be, and even.
constexpr int64_t dense_group(int64_t cols) {
  const int64_t groups = cols > kDenseGroup ? (cols + kDenseGroup - 1) / kDenseGroup : 1;
  return ((cols + groups - 1) / groups + 1) / 2 * 2;
}

constexpr int kAllPanels = 4; // of a strip with all rows
// Whether products of many rows with inputs in 8 bits take these raised and all rows at once, see linear_byte_rows.h.
#if defined(OCTAVO_ISA_AVX512)
constexpr bool kBytesInStrips = true;
#else
constexpr bool kBytesInStrips = false;
#endif

constexpr int kMostRows = 60;                   // of one call
constexpr int kMostCodedRows = 216;             // likewise, with coded inputs: a strip's codes are written out for them
constexpr int kScratchUnits = kCodeRun / kUnit; // whose codes are written out at once for such
constexpr int kScratchFloats = kMostPanels * kScratchUnits * (kUnit / 2 + 4) * kLanes; // for codes, scales and mins

// Whether bf16 weights meet bf16 inputs two at a time, by VDPBF16PS, or as floats, multiplied and added in the same
// order. Both are exact products of the same rounded inputs. For any number of rows a processor takes the same.
bool bf16_in_pairs();

// The inputs of an instruction, prepared once, each as the layout says. What no segment needs is null. [rows] of:
struct LinearInputs {
  const float* values;   // [cols]
  const float* tiled;    // [cols] the same in tiles of rows
  const float* rounded;  // [even_cols] values rounded to bf16, unless bf16_in_pairs(), neighbours exchanged; many rows
                         // in tiles of rows
  const uint32_t* pairs; // [even_cols / 2] likewise, two a word, otherwise
  const float* sums16;   // [cols / 16] sums of 16
  const float* sums32;   // [cols / 32] sums of 32
  CodedInputs coded;     // as integers
  Coding coding;         // which
  int64_t cols, even_cols;
  RowLayout layout; // its rows are all that were prepared
};

struct Strip {
  const uint8_t* panels;
  PanelLayout layout;
  bool cold = false;             // not read just now: what follows is fetched ahead
  const uint8_t* next = nullptr; // the panels that this thread will likely read next, or null
  PanelLayout next_layout{};     // few rows: theirs
  int64_t ahead = 0;             // few rows: bytes of a panel's codes that are fetched before they are read
  const float* out = nullptr;    // where the rows' results will be written, or null
  int64_t out_stride = 0;        // how far rows are apart there
  int64_t apart = 0;             // `all` kernels: not 0: panels of gates and of what they let through take turns, these
                                 // so many bytes behind those
  int64_t next_apart = 0;        // likewise of the next panels
  int next_panels = 0;           // `all` kernels: how many those are

  const uint8_t* panel(int p) const {
    return apart ? panels + p / 2 * layout.bytes + p % 2 * apart : panels + p * layout.bytes;
  }
};

// What few rows fetch before it is read: a panel's codes `ahead` bytes on, where past their end come those of the next
// panels; and at every place what stands behind the codes at the same place of the next ones.
class AheadOf {
public:
  AheadOf(const Strip& strip, int64_t steps)
      : here_(strip.panels + strip.ahead), stride_(strip.layout.bytes), turn_(strip.layout.high - strip.ahead),
        next_(strip.next), next_stride_(strip.next_layout.bytes), rest_(strip.next_layout.high),
        rest_step_(((strip.next_layout.bytes - rest_) << kShift) / steps) {}
  // To the lines that are `offset` bytes after the codes' begin in each panel.
  OCTAVO_INLINE void move(int64_t offset) {
    const bool past = offset >= turn_;
    codes_ = (past ? next_ - turn_ : here_) + offset;
    apart_ = past ? next_stride_ : stride_;
  }
  OCTAVO_INLINE void fetch(int panel, int64_t more = 0) const {
    __builtin_prefetch(codes_ + panel * apart_ + more, 0, 2);
  }
  // Once each step.
  template <int Panels> OCTAVO_INLINE void fetch_rest() {
    for (reached_ += rest_step_; fetched_ < reached_ >> kShift; fetched_ += 64)
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) __builtin_prefetch(next_ + p * next_stride_ + rest_ + fetched_, 0, 2);
  }

private:
  static constexpr int kShift = 16;
  const uint8_t* here_;
  int64_t stride_, turn_;
  const uint8_t* next_;
  int64_t next_stride_, rest_, rest_step_;
  int64_t reached_ = 0, fetched_ = 0;
  const uint8_t* codes_ = nullptr;
  int64_t apart_ = 0;
};

// Where the results of a strip's rows go: those of its first lane, rows `stride` apart, each + bias, then + residual;
// with gating, of two panels act(one + bias) * (other + its bias).
struct Results {
  float* out;
  int64_t stride;
  int64_t lanes;         // that exist
  const float* bias;     // of the first lane; null: none
  const float* residual; // as out; null: none
  const Gating* gating;  // null: none
};

// total: [rows][panels][16]; rows and panels are the kernel's own
using FewRows = void (*)(const Strip& strip, const LinearInputs& in, int64_t row, float* total);
// total: [rows][panels][16], rows <= kMostRows or kMostCodedRows; scratch: kScratchFloats of the thread
using ManyRows = void (*)(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                          float* scratch);

// Of any number of rows of the prepared ones. memory: of the thread, as many floats as StripFloats says
using AllRows = void (*)(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int64_t rows,
                         const Results& results, float* memory);
using StripFloats = int64_t (*)(int64_t cols, int panels);

struct LinearKernel {
  // For rows up to `most` and 1, 2 or 4 panels, up to widest_few(rows): at [rows - 1][log2(panels)].
  FewRows few[6][3];
  int most;
  ManyRows many; // null: dense_rows() or `all` does it
  AllRows all;   // for strips of up to kAllPanels panels; null: there is none
  StripFloats floats;
};

LinearKernel dense_kernel(int32_t format);
LinearKernel legacy_kernel(int32_t format);
LinearKernel k_quant_kernel(int32_t format);
LinearKernel span_kernel(int32_t format);
LinearKernel byte_legacy_kernel(int32_t format);
LinearKernel byte_k_quant_kernel(int32_t format);
LinearKernel byte_span_kernel(int32_t format);
LinearKernel word_legacy_kernel(int32_t format);
LinearKernel word_k_quant_kernel(int32_t format);
LinearKernel word_span_kernel(int32_t format);
LinearKernel row_kernel(int32_t format); // of segments whose coding_of() is Coding::rows

// For coded inputs where the format can take them.
inline LinearKernel linear_kernel(int32_t format, Coding coding) {
  const Format f = format_of(format);
  if (f.dense()) return dense_kernel(format);
  if (coding == Coding::rows) return row_kernel(format);
  const bool is_span = f.scale == Scale::span;
  const int32_t number = is_span ? base_of(format) : format;
  if (coding == Coding::none || !f.codable())
    return is_span ? span_kernel(number) : f.two_level() ? k_quant_kernel(number) : legacy_kernel(number);
  if (coding == Coding::words)
    return is_span         ? word_span_kernel(number)
           : f.two_level() ? word_k_quant_kernel(number)
                           : word_legacy_kernel(number);
  return is_span ? byte_span_kernel(number) : f.two_level() ? byte_k_quant_kernel(number) : byte_legacy_kernel(number);
}

// The entries of a table, from a class with templates kFew<rows, panels> and kMany.
template <class Kernels> LinearKernel kernel_of() {
  LinearKernel kernel{};
  kernel.many = Kernels::kMany;
  kernel.most = Kernels::kMost;
  kernel.few[0][0] = Kernels::template kFew<1, 1>;
  if constexpr (kWidestFew >= 2) kernel.few[0][1] = Kernels::template kFew<1, 2>;
  if constexpr (kWidestFew >= 4) kernel.few[0][2] = Kernels::template kFew<1, 4>;
  if constexpr (kFewRows == 4) {
    kernel.few[1][0] = Kernels::template kFew<2, 1>;
    kernel.few[1][1] = Kernels::template kFew<2, 2>;
    kernel.few[1][2] = Kernels::template kFew<2, 4>;
    kernel.few[2][0] = Kernels::template kFew<3, 1>;
    kernel.few[2][1] = Kernels::template kFew<3, 2>;
    kernel.few[3][0] = Kernels::template kFew<4, 1>;
    kernel.few[3][1] = Kernels::template kFew<4, 2>;
  }
  if constexpr (Kernels::kMost == 6) {
    kernel.few[4][0] = Kernels::template kFew<5, 1>;
    kernel.few[4][1] = Kernels::template kFew<5, 2>;
    kernel.few[5][0] = Kernels::template kFew<6, 1>;
    kernel.few[5][1] = Kernels::template kFew<6, 2>;
  }
  return kernel;
}

} // namespace octavo
