// How codes and coded inputs of many rows stand for instructions that multiply bytes of two rows, eight inputs each,
// with those of two outputs: SMMLA and USMMLA of Arm's FEAT_I8MM.
//
// Inputs: in a run, two neighbouring rows of a product are [eights][2][8]; the last of an odd number is [eights][8].
// Those of 16 bits are 256 * an upper byte, which is signed, + a lower byte, which is not: of each eight first all
// lower bytes.
// Codes: of a unit [4 eights][8 pairs of outputs][2][8], bytes whatever the inputs are: all formats' codes fit them.
// Of eight inputs those at 0, 2, 4, 6 come first, then those at 1, 3, 5, 7, as panels have them.
#pragma once
#include <arm_neon.h>
#include <string.h>

#include "linear_dot.h"
#include "linear_quantize.h"
#include "thread_team.h"

namespace octavo {

constexpr int kEights = kCodeRun / 8; // of a run

// p: a run of one row, or of two. Bytes of one row stand as they should.
template <Coding C> void pair_run(uint8_t* p, bool both) {
  constexpr int kRow = kCodeRun * code_bytes_of(C), kEight = 8 * code_bytes_of(C);
  static_assert(C != Coding::none);
  alignas(16) uint8_t from[2 * kRow];
  memcpy(from, p, static_cast<size_t>(both ? 2 : 1) * kRow);
  // Of eight inputs in 16 bits, at 0, 4, 2, 6, 1, 5, 3, 7: lower bytes, then upper ones.
  static constexpr uint8_t kApart[16] = {0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15};
  const uint8x16_t apart = vld1q_u8(kApart);
  for (int i = 0; i < kEights; ++i) {
    if constexpr (C == Coding::bytes) {
      if (both) vst1q_u8(p + 16 * i, vcombine_u8(vld1_u8(from + kEight * i), vld1_u8(from + kRow + kEight * i)));
    } else {
      const uint8x16_t first = vqtbl1q_u8(vld1q_u8(from + kEight * i), apart);
      if (both) {
        const uint8x16_t second = vqtbl1q_u8(vld1q_u8(from + kRow + kEight * i), apart);
        vst1q_u8(p + 32 * i, vcombine_u8(vget_low_u8(first), vget_low_u8(second)));
        vst1q_u8(p + 32 * i + 16, vcombine_u8(vget_high_u8(first), vget_high_u8(second)));
      } else {
        vst1q_u8(p + 16 * i, first);
      }
    }
  }
}

// Rows in runs, as quantize_rows() left them; those of each of `sets` products apart.
inline void pair_inputs(Team& team, Coding coding, const RowLayout& layout, int64_t sets, uint8_t* codes) {
  const int64_t rows = layout.rows / sets, pairs = (rows + 1) / 2;
  team.parallel_ranges(sets * pairs, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t row = pair % pairs * 2;
      for (int64_t k = 0; k < layout.cols; k += kCodeRun) {
        uint8_t* const run = codes + layout.at(pair / pairs * rows + row, k, kCodeRun) * code_bytes_of(coding);
        if (coding == Coding::bytes)
          pair_run<Coding::bytes>(run, row + 1 < rows);
        else
          pair_run<Coding::words>(run, row + 1 < rows);
      }
    }
  });
}

// Eight inputs of sixteen outputs, those at even places and those at odd ones.
inline void store_code_pairs(uint8_t* p, const Int16& even, const Int16& odd) {
  for (int i = 0; i < 4; ++i) {
    vst1q_u8(p + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(even.q[i], odd.q[i])));
    vst1q_u8(p + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(even.q[i], odd.q[i])));
  }
}

} // namespace octavo
