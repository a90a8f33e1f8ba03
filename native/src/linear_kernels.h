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
constexpr int kPairGroup = 256;       // bf16 dot products of the hardware
constexpr int kMostPanels = 4;        // of a strip
constexpr int kMostRows = 60;         // of a call of ManyRows
constexpr int kScratchFloats = (kMostPanels * kDenseGroup + 4 * kMostPanels) * kLanes;

#if defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

// The inputs of an instruction, prepared once. What no segment needs is null. [rows] of:
struct LinearInputs {
  const float* values;   // [cols]
  const float* rounded;  // [even_cols] values rounded to bf16, when !kHasPairs
  const uint32_t* pairs; // [even_cols / 2] likewise, two a word, when kHasPairs
  const float* sums16;   // [cols / 16] sums of 16
  const float* sums32;   // [cols / 32] sums of 32
  int64_t cols, even_cols;
};

struct Strip {
  const uint8_t* panels;
  PanelLayout layout;
};

// total: [panels][16]
using OneRow = void (*)(const Strip& strip, const LinearInputs& in, int64_t row, float* total);
// total: [rows][panels][16]; scratch: kScratchFloats of the thread
using ManyRows = void (*)(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int rows, float* total,
                          float* scratch);

struct LinearKernel {
  OneRow one_panel, two_panels, four_panels;
  ManyRows many_rows;
};

LinearKernel linear_kernel(int32_t format);

}  // namespace octavo
