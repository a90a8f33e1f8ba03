// From a file's rows to panels of 16 lanes, and the checks made on the way.
#include <atomic>
#include <cstring>

#include "formats.h"
#include "octavo/abi.h"
#include "pack_blocks.h"
#include "square.h"
#include "thread_team.h"

namespace octavo {
namespace {

constexpr int64_t kPage = 4096; // bytes that have a sum of their own

// Rows of one panel, as they stand in the file. Rows past the end of the matrix are not there.
struct SourcePanel {
  const uint8_t* first;
  int64_t row_bytes;
  int rows;
};

// Words of 16 lanes, the input dimension outermost. Word is 16 or 32 bits; missing lanes become 0.
template <class Word> void pack_words(const SourcePanel& source, int64_t words, uint8_t* out) {
  for (int64_t start = 0; start < words; start += kLanes) {
    const int64_t count = words - start < kLanes ? words - start : kLanes;
    Square<Word> square = {};
    for (int lane = 0; lane < source.rows; ++lane) {
      const uint8_t* from = source.first + lane * source.row_bytes + start * sizeof(Word);
      if (count == kLanes)
        std::memcpy(&square.row[lane], from, kLanes * sizeof(Word));
      else
        std::memcpy(&square.row[lane], from, count * sizeof(Word));
    }
    turn(square);
    if (count == kLanes)
      std::memcpy(out + start * kLanes * sizeof(Word), &square, sizeof square);
    else
      std::memcpy(out + start * kLanes * sizeof(Word), &square, count * kLanes * sizeof(Word));
  }
}

// Pairs of inputs are words; the last input of an odd row is paired with 0.
void pack_bf16(const SourcePanel& source, int64_t cols, uint8_t* out) {
  pack_words<uint32_t>(source, cols / 2, out);
  if (cols % 2 == 0) return;
  uint32_t last[kLanes] = {};
  for (int lane = 0; lane < source.rows; ++lane)
    std::memcpy(&last[lane], source.first + lane * source.row_bytes + (cols - 1) * 2, 2);
  std::memcpy(out + cols / 2 * sizeof last, last, sizeof last);
}

void write_scales(const Format& f, const PanelLayout& at, const BlockLanes& lanes, int64_t block, uint8_t* out) {
  const int64_t groups = f.block / f.group;
  const int64_t first = block * groups * kLanes;
  if (f.scale == Scale::half) {
    std::memcpy(out + at.scale + first * 2, lanes.d, sizeof lanes.d);
    if (f.mins) std::memcpy(out + at.min + first * 2, lanes.dmin, sizeof lanes.dmin);
  } else if (f.scale == Scale::exponent) {
    for (int lane = 0; lane < kLanes; ++lane) out[at.scale + first + lane] = static_cast<uint8_t>(lanes.d[lane]);
  } else {
    std::memcpy(out + at.super_scale + block * sizeof lanes.d, lanes.d, sizeof lanes.d);
    if (f.mins) std::memcpy(out + at.super_min + block * sizeof lanes.d, lanes.dmin, sizeof lanes.dmin);
    std::memcpy(out + at.scale + first, lanes.scale, groups * kLanes);
    if (f.mins && f.scale != Scale::nibbles) std::memcpy(out + at.min + first, lanes.min, groups * kLanes);
  }
}

void pack_blocks(int32_t format, const SourcePanel& source, int64_t cols, uint8_t* out) {
  const Format f = format_of(format);
  const PanelLayout at = panel_layout(format, cols);
  BlockLanes lanes{};
  for (int64_t block = 0; block < cols / f.block; ++block) {
    for (int lane = 0; lane < source.rows; ++lane)
      read_block(format, source.first + lane * source.row_bytes + block * f.source_bytes, lane, lanes);
    for (int unit = 0; unit < f.block / kUnit; ++unit) {
      const int64_t index = block * (f.block / kUnit) + unit;
      write_unit(f, lanes.code + unit * kUnit, out + at.low + index * 64 * f.low_bits,
                 out + at.high + index * 64 * f.high_bits);
    }
    write_scales(f, at, lanes, block, out);
  }
}

// --- formats whose scales belong to spans: a row is its codes, its scales, its zero points ---

// Parts of one row's source.
struct SpanRow {
  const uint8_t *codes, *scales, *zeros;
};

SpanRow span_row(int32_t number, const uint8_t* row, int64_t cols) {
  const Format f = format_of(number);
  const uint8_t* scales = row + cols / f.block * f.source_bytes;
  return {row, scales, row + source_row_bytes(number, cols) - zero_bytes(number, cols)};
}

int64_t scale_width(int32_t number) {
  const int type = scale_type_of(number);
  return type == OCTAVO_SCALE_F16 || type == OCTAVO_SCALE_BF16 ? 2 : 4;
}

void write_span_scales(int32_t number, const SourcePanel& source, int64_t cols, uint8_t* out) {
  const PanelLayout at = panel_layout(number, cols);
  const int64_t spans = span_count(number, cols), width = scale_width(number);
  const bool shared = scale_type_of(number) == OCTAVO_SCALE_SHARED;
  std::memset(out + at.scale, 0, static_cast<size_t>(at.bytes - at.scale));
  for (int lane = 0; lane < (shared ? 1 : source.rows); ++lane) {
    const SpanRow row = span_row(number, source.first + lane * source.row_bytes, cols);
    for (int64_t span = 0; span < spans; ++span) {
      const int64_t place = shared ? span : span * kLanes + lane;
      std::memcpy(out + at.scale + place * width, row.scales + span * width, static_cast<size_t>(width));
    }
    const int64_t zeros = zero_bytes(number, cols), units = cols / kUnit;
    for (int64_t i = 0; i < zeros; ++i) {
      const int64_t place = has_steps(number) ? i % units * 2 + i / units : i;
      out[at.min + place * kLanes + lane] = row.zeros[i];
    }
  }
}

// Of codes of 4 bits that have steps and starts.
int32_t stepped_sum(const SpanRow& row, int64_t cols) {
  const uint8_t *steps = row.zeros, *starts = row.zeros + cols / kUnit;
  int32_t total = 0;
  for (int64_t unit = 0; unit < cols / kUnit; ++unit) {
    int32_t codes = 0;
    for (int64_t pair = unit * kUnit / 2; pair < (unit + 1) * kUnit / 2; ++pair)
      codes += (row.codes[pair] & 15) + (row.codes[pair] >> 4);
    total += codes * steps[unit] + kUnit * static_cast<int8_t>(starts[unit]);
  }
  return total;
}

int32_t byte_sum(const SpanRow& row, int64_t cols) {
  int32_t total = 0;
  for (int64_t k = 0; k < cols; ++k) total += static_cast<int8_t>(row.codes[k]);
  return total;
}

void write_row_sums(int32_t number, const SourcePanel& source, int64_t cols, uint8_t* out) {
  int32_t sums[kLanes] = {};
  for (int lane = 0; lane < source.rows; ++lane) {
    const SpanRow row = span_row(number, source.first + lane * source.row_bytes, cols);
    sums[lane] = has_steps(number) ? stepped_sum(row, cols) : byte_sum(row, cols);
  }
  std::memcpy(out + panel_layout(number, cols).sums, sums, sizeof sums);
}

void pack_spans(int32_t number, const SourcePanel& source, int64_t cols, uint8_t* out) {
  const Format f = format_of(number);
  uint8_t code[kUnit][kLanes] = {};
  for (int64_t unit = 0; unit < cols / kUnit; ++unit) {
    for (int lane = 0; lane < source.rows; ++lane) {
      const uint8_t* codes = source.first + lane * source.row_bytes + unit * kUnit * f.low_bits / 8;
      for (int k = 0; k < kUnit; ++k)
        code[k][lane] = f.low_bits == 8 ? codes[k] : static_cast<uint8_t>(codes[k / 2] >> (4 * (k % 2)) & 15);
    }
    write_unit(f, code, out + unit * 64 * f.low_bits, nullptr);
  }
  write_span_scales(number, source, cols, out);
  if (has_row_sums(number)) write_row_sums(number, source, cols, out);
}

void pack_panel(int32_t format, const SourcePanel& source, int64_t cols, uint8_t* out) {
  if (format_of(format).scale == Scale::span) return pack_spans(format, source, cols, out);
  const PanelLayout at = panel_layout(format, cols);
  switch (format) {
  case OCTAVO_F32: pack_words<uint32_t>(source, cols, out); break;
  case OCTAVO_F16: pack_words<uint16_t>(source, cols, out); break;
  case OCTAVO_BF16: pack_bf16(source, cols, out); break;
  default: pack_blocks(format, source, cols, out); break;
  }
  const Format f = format_of(format);
  const int64_t groups = f.dense() ? 0 : cols / f.group;
  const int64_t last = f.mins && f.scale != Scale::nibbles ? groups * kLanes * (f.scale == Scale::half ? 2 : 1) : 0;
  const int64_t used = at.min + last;
  std::memset(out + used, 0, at.bytes - used);
}

bool finite_half(const uint8_t* p) { return (p[1] & 0x7c) != 0x7c; }

bool finite_block(int32_t format, const uint8_t* p) {
  switch (format) {
  case OCTAVO_MXFP4: return p[0] != 255; // E8M0 has one NaN
  case OCTAVO_Q2_K: return finite_half(p + 80) && finite_half(p + 82);
  case OCTAVO_Q3_K: return finite_half(p + 108);
  case OCTAVO_Q6_K: return finite_half(p + 208);
  case OCTAVO_Q4_1:
  case OCTAVO_Q5_1:
  case OCTAVO_Q4_K:
  case OCTAVO_Q5_K: return finite_half(p) && finite_half(p + 2);
  default: return finite_half(p);
  }
}

// No word has all its exponent bits set: added to, only such a one becomes negative.
template <class Word> bool finite_words(const uint8_t* p, int64_t count, Word exponent) {
  const Word lowest = exponent & (~exponent + 1);
  Word found = 0;
  for (int64_t k = 0; k < count; ++k) {
    Word word;
    std::memcpy(&word, p + k * sizeof word, sizeof word);
    found |= static_cast<Word>((word & exponent) + lowest);
  }
  return !(found >> (8 * sizeof(Word) - 1));
}

bool finite_span_row(int32_t number, const uint8_t* row, int64_t cols) {
  const Format f = format_of(number);
  const SpanRow parts = span_row(number, row, cols);
  const int64_t spans = span_count(number, cols);
  bool finite = true;
  if (f.values == Values::e4m3)
    for (int64_t k = 0; k < cols; ++k) finite &= !is_e4m3_nan(parts.codes[k]);
  switch (scale_type_of(number)) {
  case OCTAVO_SCALE_F16: return finite && finite_words<uint16_t>(parts.scales, spans, 0x7c00);
  case OCTAVO_SCALE_BF16: return finite && finite_words<uint16_t>(parts.scales, spans, 0x7f80);
  default: return finite && finite_words<uint32_t>(parts.scales, spans, 0x7f800000);
  }
}

bool finite_row(int32_t format, const uint8_t* row, int64_t cols) {
  const Format f = format_of(format);
  if (f.scale == Scale::span) return finite_span_row(format, row, cols);
  if (format == OCTAVO_F32) return finite_words<uint32_t>(row, cols, 0x7f800000);
  if (format == OCTAVO_F16) return finite_words<uint16_t>(row, cols, 0x7c00);
  if (format == OCTAVO_BF16) return finite_words<uint16_t>(row, cols, 0x7f80);
  for (int64_t block = 0; block < cols / f.block; ++block)
    if (!finite_block(format, row + block * f.source_bytes)) return false;
  return true;
}

// The least of the numbers that threads bring.
void note_least(std::atomic<int64_t>& least, int64_t number) {
  int64_t known = least.load();
  while (number < known && !least.compare_exchange_weak(known, number)) {
  }
}

// The first row of a panel that holds what is not finite, or -1.
int64_t invalid_lane(int32_t format, const SourcePanel& source, int64_t cols) {
  for (int lane = 0; lane < source.rows; ++lane)
    if (!finite_row(format, source.first + lane * source.row_bytes, cols)) return lane;
  return -1;
}

// Sum of a page's words, each times an odd number of its place: 1, 3, 5 ... Adding up the sums so far counts a word as
// often as others follow it, which spares the products.
uint64_t page_sum(const uint8_t* page) {
  constexpr int kWide = 8, kTurns = kPage / (8 * kWide);
  typedef uint64_t Words __attribute__((vector_size(8 * kWide)));
  Words sums = {}, followed = {};
  for (int turn = 0; turn < kTurns; ++turn) {
    Words words;
    std::memcpy(&words, page + turn * sizeof words, sizeof words);
    followed += sums;
    sums += words;
  }
  uint64_t total = 0;
  for (int k = 0; k < kWide; ++k) total += 2 * kWide * ((kTurns - 1) * sums[k] - followed[k]) + (2 * k + 1) * sums[k];
  return total;
}

int64_t row_bytes(int32_t format, int64_t cols) {
  const Format f = format_of(format);
  if (!f.known()) return -1;
  if (cols % f.block) return -2;
  return source_row_bytes(format, cols);
}

// Packs every panel; with `check` returns the first row that is not finite, whose panel is left out, or `rows`.
int64_t pack_rows(Team* team, int32_t format, const uint8_t* source, int64_t rows, int64_t cols, uint8_t* packed,
                  bool check) {
  const int64_t bytes = row_bytes(format, cols), panel_bytes = panel_layout(format, cols).bytes;
  std::atomic<int64_t> first{rows};
  // In runs, as few rows read: where memory has several parts (NUMA) a page lies beside the thread that first writes
  // it.
  team->parallel_runs(panel_count(rows), 1, [&](int64_t panel, int64_t, int) {
    const int64_t left = rows - panel * kLanes;
    const SourcePanel from{source + panel * kLanes * bytes, bytes, static_cast<int>(left < kLanes ? left : kLanes)};
    const int64_t lane = check ? invalid_lane(format, from, cols) : -1;
    if (lane >= 0) return note_least(first, panel * kLanes + lane);
    pack_panel(format, from, cols, packed + panel * panel_bytes);
  });
  return first.load();
}

} // namespace
} // namespace octavo

int64_t octavo_source_bytes(int32_t format, int64_t rows, int64_t cols) {
  const int64_t bytes = octavo::row_bytes(format, cols);
  return bytes < 0 ? bytes : bytes * rows;
}

int64_t octavo_packed_bytes(int32_t format, int64_t rows, int64_t cols) {
  const int64_t bytes = octavo::row_bytes(format, cols);
  if (bytes < 0) return bytes;
  return octavo::order_offset(format, rows, cols) + (octavo::is_ordered(format) ? cols * 4 : 0);
}

int32_t octavo_pack(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, void* packed) {
  const int64_t bytes = octavo::row_bytes(format, cols);
  if (bytes < 0) return static_cast<int32_t>(bytes);
  octavo::pack_rows(static_cast<octavo::Team*>(team), format, static_cast<const uint8_t*>(source), rows, cols,
                    static_cast<uint8_t*>(packed), false);
  return 0;
}

int64_t octavo_pack_finite(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, void* packed) {
  const int64_t bytes = octavo::row_bytes(format, cols);
  if (bytes < 0) return bytes;
  return octavo::pack_rows(static_cast<octavo::Team*>(team), format, static_cast<const uint8_t*>(source), rows, cols,
                           static_cast<uint8_t*>(packed), true);
}

int64_t octavo_find_invalid(void* team, int32_t format, const void* source, int64_t rows, int64_t cols) {
  const int64_t bytes = octavo::row_bytes(format, cols);
  if (bytes < 0 || rows == 0) return -1;
  constexpr int64_t kRun = 64; // rows a task
  std::atomic<int64_t> first{rows};
  static_cast<octavo::Team*>(team)->parallel((rows + kRun - 1) / kRun, [&](int64_t task, int) {
    const int64_t end = (task + 1) * kRun < rows ? (task + 1) * kRun : rows;
    for (int64_t row = task * kRun; row < end && row < first.load(); ++row)
      if (!octavo::finite_row(format, static_cast<const uint8_t*>(source) + row * bytes, cols))
        octavo::note_least(first, row);
  });
  return first.load() == rows ? -1 : first.load();
}

void octavo_page_sums(void* team, const void* data, int64_t pages, uint64_t* sums) {
  const auto sum = [&](int64_t begin, int64_t end, int) {
    for (int64_t page = begin; page < end; ++page)
      sums[page] = octavo::page_sum(static_cast<const uint8_t*>(data) + page * octavo::kPage);
  };
  if (team == nullptr) return sum(0, pages, 0);
  static_cast<octavo::Team*>(team)->parallel_ranges(pages, 256, sum);
}
