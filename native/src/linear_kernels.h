// Products of rows of inputs with a strip of 1, 2 or 4 panels, one pair of kernels a format.
//
// The sum of one output, the same in both kernels and for any number of rows: inputs in groups (of a block format, those
// that share a scale; else kDenseGroup or kPairGroup); in a group one chain of fused multiply-adds from 0, in input
// order; total = fma(scale, group sum, total), then with mins total = fma(min, sum of the group's inputs, total).
#pragma once
#include <stdint.h>

#include "formats.h"

namespace octavo {

constexpr int kDenseGroup = 64;
constexpr int kPairGroup = 256;       // of bf16 in pairs
constexpr int kMostPanels = 4;        // of a strip
#if defined(OCTAVO_ISA_AVX512)
constexpr int kFewRows = 4;           // that keep their sums in registers while codes are read
#else
constexpr int kFewRows = 1;
#endif
constexpr int kMostRows = 60;         // of one call
constexpr int kScratchFloats = (kMostPanels * kDenseGroup + 4 * kMostPanels) * kLanes;

// Whether bf16 weights meet bf16 inputs two at a time, by VDPBF16PS, or as floats. Both are exact products of the same
// rounded inputs, summed in different orders; a machine always takes the same. AMD's Zen 5 starts two of the
// instruction a cycle, twice what floats give; Intel's cores one every other cycle, half of what floats give.
bool bf16_in_pairs();

// The inputs of an instruction, prepared once. What no segment needs is null. [rows] of:
struct LinearInputs {
  const float* values;   // [cols]
  const float* rounded;  // [even_cols] values rounded to bf16, unless bf16_in_pairs()
  const uint32_t* pairs; // [even_cols / 2] likewise, two a word, otherwise
  const float* sums16;   // [cols / 16] sums of 16
  const float* sums32;   // [cols / 32] sums of 32
  int64_t cols, even_cols;
};

struct Strip {
  const uint8_t* panels;
  PanelLayout layout;
};

// total: [rows][panels][16]; rows and panels are the kernel's own
using FewRows = void (*)(const Strip& strip, const LinearInputs& in, int64_t row, float* total);
// total: [rows][panels][16], rows <= kMostRows; scratch: kScratchFloats of the thread
using ManyRows = void (*)(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                          float* scratch);

struct LinearKernel {
  // For rows <= kFewRows and 1, 2 or 4 panels, at [rows - 1][log2(panels)]; of three and four rows only up to 2 panels.
  FewRows few[4][3];
  ManyRows many;
};

LinearKernel linear_kernel(int32_t format);

}  // namespace octavo
