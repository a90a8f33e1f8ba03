#include "linear_prepare.h"

#include <string.h>

#include "code_row.h"
#include "dense_tiles.h"
#include "linear_dot.h"
#include "linear_rows.h"
#include "simd/vec.h"
#if defined(OCTAVO_VARIANT_NEON_I8MM)
#include "code_pairs.h"
#endif

namespace octavo {
namespace {

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

// As pairs.
void round_row(const float* x, int64_t cols, uint16_t* out) {
  for_vectors(x, cols, [&](int64_t k, Vec16 value, int count) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, value);
    memcpy(out + k, rounded, static_cast<size_t>(count + count % 2) * 2);
  });
}

void round_row_wide(const float* x, int64_t cols, float* out) {
  for_vectors(x, cols,
              [&](int64_t k, Vec16 value, int count) { store_n(out + k, round_exchanged(value), count + count % 2); });
}

void sum_groups(const float* x, int group, const RowLayout& to, int64_t row, float* out) {
  const int64_t groups = to.cols / group;
  for (int64_t g = 0; g < groups; ++g, x += group)
    out[to.of_group(row, g, groups)] = group == 16 ? sum(load(x)) : sum(load(x) + load(x + 16));
}

// Words of a row's inputs in bf16.
int64_t bf16_words(int64_t cols) {
  if (kBf16InTiles) return words_in_tiles(cols);
  return bf16_in_pairs() ? (cols + 1) / 2 : cols + cols % 2;
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
  float* exact;
  float* rounded;
  float* sums16;
  float* sums32;
  CodedInputs coded;
  int64_t floats;
};

void lay_out_codes(const Needs& needs, const RowLayout& layout, Pieces& pieces, CodedInputs& to) {
  const bool wanted = needs.coding != Coding::none, by_rows = needs.coding == Coding::rows;
  const int64_t rows = layout.rows, cols = layout.cols, spans = by_rows ? 1 : span_count(needs.coding, cols / kUnit);
  const int64_t bytes = layout.size(kCodeRun) * code_bytes_of(needs.coding);
  const bool in_strips = kBytesInStrips && layout.in_runs && needs.coding == Coding::bytes;
  to.raise = by_rows ? kRowRaise : in_strips ? 128 : 0;
  to.codes = reinterpret_cast<uint8_t*>(pieces.take(wanted, bytes / 4));
  to.scales = pieces.take(wanted, rows * spans);
  to.sums16 = pieces.take(needs.code_sums16, rows * (cols / 16));
  to.sums32 = pieces.take(needs.code_sums32, rows * (cols / 32));
  for (int index = 0; index < kStartCount; ++index)
    to.starts[index] = reinterpret_cast<int32_t*>(
        pieces.take(!in_strips && (needs.starts >> index & 1), rows * (cols / kStarts[index].group)));
}

Prepared lay_out(const Needs& needs, const RowLayout& layout, float* memory) {
  const int64_t rows = layout.rows, cols = layout.cols;
  Pieces pieces(memory);
  Prepared to{};
  to.values = pieces.take(needs.values && layout.in_runs, layout.size(kFloatRun));
  to.exact = pieces.take(needs.exact && layout.in_runs, rows * cols);
  to.rounded = pieces.take(needs.bf16, rows * bf16_words(cols));
  to.sums16 = pieces.take(needs.sums16, rows * (cols / 16));
  to.sums32 = pieces.take(needs.sums32, rows * (cols / 32));
  lay_out_codes(needs, layout, pieces, to.coded);
  to.floats = pieces.used();
  return to;
}

void prepare_row(const Needs& needs, const float* x, const RowLayout& layout, int64_t row, const Prepared& to) {
  if (to.values) copy_row(x, layout, row, to.values);
  if (needs.bf16 && !layout.in_runs) {
    float* out = to.rounded + row * bf16_words(layout.cols);
    if (kBf16InTiles)
      write_tile(x, layout.cols, TileWords::rows, 1, out);
    else if (bf16_in_pairs())
      round_row(x, layout.cols, reinterpret_cast<uint16_t*>(out));
    else
      round_row_wide(x, layout.cols, out);
  }
  if (needs.sums16) sum_groups(x, 16, layout, row, to.sums16);
  if (needs.sums32) sum_groups(x, 32, layout, row, to.sums32);
}

// Rows in tiles for dense products of many rows.
void prepare_tiles(Team& team, const float* x, const RowLayout& layout, int64_t sets, int tall, TileWords kind,
                   int64_t words, float* out) {
  const RowTiles tiles{layout.rows / sets, tall};
  team.parallel(tiles.count() * sets, [&](int64_t tile, int) {
    const int64_t row = tile / tiles.count() * tiles.rows + tiles.first(tile % tiles.count());
    write_tile(x + row * layout.cols, layout.cols, kind, tiles.height(tile % tiles.count()), out + row * words);
  });
}

// Rows of block formats that are few, though each pass reads the codes again: passes follow memory more closely than
// kernels of many rows, which gain with rows (measured; with tile registers earlier).
int64_t few_limit(Coding coding) {
  if (kFewRows == 1) return 1;
  if (coding == Coding::rows) return kFewRows;
  if (coding == Coding::none) return 2 * kFewRows;
#if defined(OCTAVO_VARIANT_AMX)
  return coding == Coding::bytes ? kFewCodedRows : 2 * kFewRows;
#else
  return (coding == Coding::bytes ? 2 : 4) * kFewCodedRows;
#endif
}

} // namespace

bool are_few(const OctavoSegment* segments, int count, int64_t rows, Coding coding) {
  int64_t most = kFewRows;
  for (int s = 0; s < count; ++s) {
    const Format f = format_of(segments[s].format);
    if (f.dense()) continue;
    const int64_t limit = few_limit(f.codable() ? coding : Coding::none);
    most = most > limit ? most : limit;
  }
  return rows <= most;
}

Needs needs_of(const OctavoSegment* segments, int count, Coding coding) {
  Needs needs;
  for (int s = 0; s < count; ++s) {
    const Format f = format_of(segments[s].format);
    const bool coded = coding != Coding::none;
    needs.bf16 |= segments[s].format == OCTAVO_BF16;
    needs.exact |= f.dense() && segments[s].format != OCTAVO_BF16;
    needs.values |= !f.dense() && !(coded && f.codable());
    if (coded && f.codable()) {
      needs.coding = coding;
      needs.rotated |= coding == Coding::rows && is_rotated(segments[s].format);
      needs.code_sums16 |= f.mins && f.group == 16;
      needs.code_sums32 |= f.mins && f.group == 32;
      const int offset = coding == Coding::rows ? 0 : dot_offset(f, coding);
      if (offset != 0) needs.starts |= 1u << start_index(offset, f.group);
    } else {
      needs.sums16 |= f.mins && f.group == 16;
      needs.sums32 |= f.mins && f.group == 32;
    }
  }
  return needs;
}

int64_t prepared_floats(const Needs& needs, const RowLayout& layout) { return lay_out(needs, layout, nullptr).floats; }

LinearInputs prepare(Team& team, const Needs& needs, const float* x, const RowLayout& layout, int64_t sets,
                     float* memory) {
  const int64_t rows = layout.rows, cols = layout.cols;
  LinearInputs in{};
  in.values = x;
  in.cols = cols;
  in.even_cols = cols + cols % 2;
  in.layout = layout;
  if (prepared_floats(needs, layout) == 0) return in;
  const Prepared to = lay_out(needs, layout, memory);
  const auto prepare_rows = [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) prepare_row(needs, x + row * cols, layout, row, to);
    if (needs.coding == Coding::none) return;
    if (needs.coding == Coding::rows) {
      float* turned = team.scratch(thread, static_cast<size_t>(2 * cols));
      uint8_t* codes = to.coded.codes + layout.at(begin, 0, kCodeRun);
      const bool runs = layout.in_runs;
      return code_rows(x + begin * cols, end - begin, cols, needs.rotated, turned,
                       {codes, runs ? rows * kCodeRun : kCodeRun, runs ? kCodeRun : cols, to.coded.raise},
                       to.coded.scales + begin);
    }
    for (int64_t row = begin; row < end; row += kQuantizedRows) {
      const int count = static_cast<int>(end - row < kQuantizedRows ? end - row : kQuantizedRows);
      quantize_rows(x + row * cols, needs.coding, layout, row, count, to.coded);
    }
  };
  if (layout.in_runs && to.exact) prepare_tiles(team, x, layout, sets, kDenseTall, TileWords::exact, cols, to.exact);
  if (layout.in_runs && to.rounded) {
    const TileWords kind = kBf16InTiles ? TileWords::rows : bf16_in_pairs() ? TileWords::pairs : TileWords::rounded;
    prepare_tiles(team, x, layout, sets, kBf16Tall, kind, bf16_words(cols), to.rounded);
  }
  const bool by_rows = !layout.in_runs || to.values || needs.sums16 || needs.sums32 || needs.coding != Coding::none;
  if (by_rows && rows * cols <= kWorthSharing)
    prepare_rows(0, rows, 0);
  else if (by_rows)
    team.parallel_ranges(rows, needs.coding != Coding::none && layout.in_runs ? kQuantizedRows : 1, prepare_rows);
#if defined(OCTAVO_VARIANT_NEON_I8MM)
  if (needs.coding != Coding::none && needs.coding != Coding::rows && layout.in_runs)
    pair_inputs(team, needs.coding, layout, sets, to.coded.codes);
#endif
  if (to.values) in.values = to.values;
  in.tiled = to.exact;
  if (bf16_in_pairs())
    in.pairs = reinterpret_cast<const uint32_t*>(to.rounded);
  else
    in.rounded = to.rounded;
  in.sums16 = to.sums16;
  in.sums32 = to.sums32;
  in.coded = to.coded;
  in.coding = needs.coding;
  return in;
}

} // namespace octavo
