#include "linear_prepare.h"

#include "linear_dot.h"
#include "simd/vec.h"

namespace octavo {
namespace {

void round_row(const float* x, int64_t cols, int64_t even_cols, uint16_t* out) {
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) store_bf16(out + k, load(x + k));
  for (; k < cols; ++k) out[k] = to_bf16(x[k]);
  if (cols < even_cols) out[cols] = 0;
}

void round_row_wide(const float* x, int64_t cols, int64_t even_cols, float* out) {
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, load(x + k));
    store(out + k, load_bf16(rounded));
  }
  for (; k < cols; ++k) out[k] = from_bf16(to_bf16(x[k]));
  if (cols < even_cols) out[cols] = 0.0f;
}

void sum_groups(const float* x, int64_t cols, int group, float* out) {
  for (int64_t k = 0; k < cols; k += group)
    *out++ = group == 16 ? sum(load(x + k)) : sum(load(x + k) + load(x + k + 16));
}

// Deals out pieces of one block of memory, each 64-byte aligned; first counts them, then gives them.
class Pieces {
public:
  explicit Pieces(float* memory) : memory_(memory) {}
  float* take(bool wanted, int64_t floats) {
    if (!wanted) return nullptr;
    float* piece = memory_ ? memory_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  int64_t used() const { return used_; }

private:
  float* memory_;
  int64_t used_ = 0;
};

// The memory of what is prepared. null: only its size is asked for.
struct Prepared {
  float* rounded;
  float* sums16;
  float* sums32;
  CodedInputs coded;
  int64_t floats;
};

Prepared lay_out(const Needs& needs, int64_t rows, int64_t cols, float* memory) {
  const int64_t even_cols = cols + cols % 2;
  Pieces pieces(memory);
  Prepared to{};
  to.rounded = pieces.take(needs.bf16, rows * (bf16_in_pairs() ? even_cols / 2 : even_cols));
  to.sums16 = pieces.take(needs.sums16, rows * (cols / 16));
  to.sums32 = pieces.take(needs.sums32, rows * (cols / 32));
  to.coded.codes = reinterpret_cast<uint8_t*>(pieces.take(needs.codes, rows * (cols / 4)));
  to.coded.scales = pieces.take(needs.codes, rows * (cols / kUnit));
  to.coded.sums16 = pieces.take(needs.code_sums16, rows * (cols / 16));
  to.coded.sums32 = pieces.take(needs.code_sums32, rows * (cols / 32));
  for (int log = 0; log < kOffsets; ++log)
    to.coded.starts[log] =
        reinterpret_cast<int32_t*>(pieces.take(needs.offsets >> log & 1, rows * (cols / start_group(log))));
  to.floats = pieces.used();
  return to;
}

} // namespace

Needs needs_of(const OctavoSegment* segments, int count, bool coded) {
  Needs needs;
  for (int s = 0; s < count; ++s) {
    const Format f = format_of(segments[s].format);
    needs.bf16 |= segments[s].format == OCTAVO_BF16;
    if (coded && !f.dense()) {
      needs.codes = true;
      needs.code_sums16 |= f.mins && f.group == 16;
      needs.code_sums32 |= f.mins && f.group == 32;
      needs.offsets |= static_cast<unsigned>(dot_offset(f)); // a power of two is its own bit
    } else {
      needs.sums16 |= f.mins && f.group == 16;
      needs.sums32 |= f.mins && f.group == 32;
    }
  }
  return needs;
}

int64_t prepared_floats(const Needs& needs, int64_t rows, int64_t cols) {
  return lay_out(needs, rows, cols, nullptr).floats;
}

LinearInputs prepare(Team& team, const Needs& needs, const float* x, int64_t rows, int64_t cols, float* memory) {
  const int64_t even_cols = cols + cols % 2;
  LinearInputs in{};
  in.values = x;
  in.cols = cols;
  in.even_cols = even_cols;
  if (prepared_floats(needs, rows, cols) == 0) return in;
  const Prepared to = lay_out(needs, rows, cols, memory);
  const bool pairs = bf16_in_pairs();
  uint16_t* words = reinterpret_cast<uint16_t*>(to.rounded);
  const auto prepare_rows = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * cols;
      if (needs.bf16 && pairs) round_row(from, cols, even_cols, words + row * even_cols);
      if (needs.bf16 && !pairs) round_row_wide(from, cols, even_cols, to.rounded + row * even_cols);
      if (needs.sums16) sum_groups(from, cols, 16, to.sums16 + row * (cols / 16));
      if (needs.sums32) sum_groups(from, cols, 32, to.sums32 + row * (cols / 32));
      if (needs.codes) quantize_row(from, cols, row, to.coded);
    }
  };
  if (rows * cols <= kWorthSharing)
    prepare_rows(0, rows, 0);
  else
    team.parallel_ranges(rows, 1, prepare_rows);
  if (pairs)
    in.pairs = reinterpret_cast<const uint32_t*>(to.rounded);
  else
    in.rounded = to.rounded;
  in.sums16 = to.sums16;
  in.sums32 = to.sums32;
  in.coded = to.coded;
  return in;
}

} // namespace octavo
