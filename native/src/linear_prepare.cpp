#include "linear_prepare.h"

#include <string.h>

#include "linear_dot.h"
#include "simd/vec.h"

namespace octavo {
namespace {

RowLayout even(const RowLayout& layout) { return {layout.rows, layout.cols + layout.cols % 2, layout.in_runs}; }

// Eight inputs and more at a time, for formats of any width: what is past the row counts as 0.
template <class Write> void for_vectors(const float* x, int64_t cols, Write&& write) {
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) write(k, load(x + k), kLanes);
  if (k < cols) write(k, load_n(x + k, static_cast<int>(cols - k)), static_cast<int>(cols - k));
}

void copy_row(const float* x, const RowLayout& to, int64_t row, float* out) {
  for_vectors(x, to.cols,
              [&](int64_t k, Vec16 value, int count) { store_n(out + to.at(row, k, kFloatRun), value, count); });
}

// As pairs; `to` counts single inputs.
void round_row(const float* x, int64_t cols, const RowLayout& to, int64_t row, uint16_t* out) {
  for_vectors(x, cols, [&](int64_t k, Vec16 value, int count) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, value);
    memcpy(out + to.at(row, k, 2 * kPairRun), rounded, static_cast<size_t>(count + count % 2) * 2);
  });
}

void round_row_wide(const float* x, int64_t cols, const RowLayout& to, int64_t row, float* out) {
  for_vectors(x, cols, [&](int64_t k, Vec16 value, int count) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, value);
    store_n(out + to.at(row, k, kFloatRun), load_bf16(rounded), count + count % 2);
  });
}

void sum_groups(const float* x, int group, const RowLayout& to, int64_t row, float* out) {
  const int64_t groups = to.cols / group;
  for (int64_t g = 0; g < groups; ++g, x += group)
    out[to.of_group(row, g, groups)] = group == 16 ? sum(load(x)) : sum(load(x) + load(x + 16));
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
  float* values;
  float* rounded;
  float* sums16;
  float* sums32;
  CodedInputs coded;
  int64_t floats;
};

Prepared lay_out(const Needs& needs, const RowLayout& layout, float* memory) {
  const int64_t rows = layout.rows, cols = layout.cols;
  Pieces pieces(memory);
  Prepared to{};
  to.values = pieces.take(needs.values && layout.in_runs, layout.size(kFloatRun));
  to.rounded =
      pieces.take(needs.bf16, bf16_in_pairs() ? even(layout).size(2 * kPairRun) / 2 : even(layout).size(kFloatRun));
  to.sums16 = pieces.take(needs.sums16, rows * (cols / 16));
  to.sums32 = pieces.take(needs.sums32, rows * (cols / 32));
  to.coded.codes = reinterpret_cast<uint8_t*>(pieces.take(needs.codes, layout.size(kCodeRun) / 4));
  to.coded.scales = pieces.take(needs.codes, rows * (cols / kUnit));
  to.coded.sums16 = pieces.take(needs.code_sums16, rows * (cols / 16));
  to.coded.sums32 = pieces.take(needs.code_sums32, rows * (cols / 32));
  for (int log = 0; log < kOffsets; ++log)
    to.coded.starts[log] =
        reinterpret_cast<int32_t*>(pieces.take(needs.offsets >> log & 1, rows * (cols / start_group(log))));
  to.floats = pieces.used();
  return to;
}

void prepare_row(const Needs& needs, const float* x, const RowLayout& layout, int64_t row, const Prepared& to) {
  if (to.values) copy_row(x, layout, row, to.values);
  if (needs.bf16 && bf16_in_pairs())
    round_row(x, layout.cols, even(layout), row, reinterpret_cast<uint16_t*>(to.rounded));
  else if (needs.bf16)
    round_row_wide(x, layout.cols, even(layout), row, to.rounded);
  if (needs.sums16) sum_groups(x, 16, layout, row, to.sums16);
  if (needs.sums32) sum_groups(x, 32, layout, row, to.sums32);
  if (needs.codes) quantize_row(x, layout, row, to.coded);
}

} // namespace

Needs needs_of(const OctavoSegment* segments, int count, bool coded) {
  Needs needs;
  for (int s = 0; s < count; ++s) {
    const Format f = format_of(segments[s].format);
    needs.bf16 |= segments[s].format == OCTAVO_BF16;
    needs.values |= segments[s].format != OCTAVO_BF16 && !(coded && f.codable());
    if (coded && f.codable()) {
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

int64_t prepared_floats(const Needs& needs, const RowLayout& layout) { return lay_out(needs, layout, nullptr).floats; }

LinearInputs prepare(Team& team, const Needs& needs, const float* x, const RowLayout& layout, float* memory) {
  const int64_t rows = layout.rows, cols = layout.cols;
  LinearInputs in{};
  in.values = x;
  in.cols = cols;
  in.even_cols = cols + cols % 2;
  in.layout = layout;
  if (prepared_floats(needs, layout) == 0) return in;
  const Prepared to = lay_out(needs, layout, memory);
  const auto prepare_rows = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) prepare_row(needs, x + row * cols, layout, row, to);
  };
  if (rows * cols <= kWorthSharing)
    prepare_rows(0, rows, 0);
  else
    team.parallel_ranges(rows, 1, prepare_rows);
  if (to.values) in.values = to.values;
  if (bf16_in_pairs())
    in.pairs = reinterpret_cast<const uint32_t*>(to.rounded);
  else
    in.rounded = to.rounded;
  in.sums16 = to.sums16;
  in.sums32 = to.sums32;
  in.coded = to.coded;
  return in;
}

} // namespace octavo
