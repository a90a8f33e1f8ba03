#include "linear_rows.h"

#include <string.h>

#include "linear_byte_rows.h"
#if defined(OCTAVO_VARIANT_AMX)
#include "linear_rows_registers.h"
#else
#include "linear_rows_tile.h"
#endif

namespace octavo {
namespace {

// --- few rows: codes go by once, sums stay in registers ---

template <int Rows, int Panels>
void few_rows_of_strip(const Strip& strip, const LinearInputs& in, int64_t row, float* out) {
  const int64_t units = in.cols / kUnit;
  const uint8_t* inputs = in.coded.codes + row * in.cols;
  AheadOf ahead(strip, units);
  Int16 sum[Rows][Panels];
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    const Int16 start = row_start(strip.panels + p * strip.layout.bytes, strip.layout);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) sum[r][p] = start;
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    ahead.move(unit * 512);
    ahead.fetch_rest<Panels>();
#pragma GCC unroll 8
    for (int step = 0; step < 8; ++step) {
      int32_t four[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) memcpy(&four[r], inputs + r * in.cols + unit * kUnit + 4 * step, 4);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        ahead.fetch(p, step * 64);
        const Int16 codes = load_once(strip.panels + p * strip.layout.bytes + unit * 512 + step * 64);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) sum[r][p] = add_four(sum[r][p], codes, four[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    const Vec16 scale = load_span_scales(strip.panels + p * strip.layout.bytes, strip.layout, 0);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
      store(out + (r * Panels + p) * kLanes, close_row(sum[r][p], scale, in.coded.scales[row + r]));
  }
}

// --- many rows: a strip against all of them ---

void write_row(const int32_t* sums, const float* scales, float input_scale, int panels, const float* residual,
               const Results& to, float* out) {
  for (int p = 0; p < panels; ++p) {
    const int64_t left = to.lanes - p * kLanes;
    const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
    const Int16 sum = load_words(reinterpret_cast<const uint8_t*>(sums + p * kLanes));
    Vec16 value = close_row(sum, load(scales + p * kLanes), input_scale);
    if (to.bias) value = value + load_n(to.bias + p * kLanes, lanes);
    if (residual) value = value + load_n(residual + p * kLanes, lanes);
    if (lanes == kLanes)
      store(out + p * kLanes, value);
    else
      store_n(out + p * kLanes, value, lanes);
  }
}

// sums: [rows][panels][16] of rows from `first` on
void write_rows(const int32_t* sums, const float* scales, const float* input_scales, int64_t first, int rows, int panels,
                const Results& to) {
  if (!to.gating) {
    for (int r = 0; r < rows; ++r) {
      const int64_t at = (first + r) * to.stride;
      const float* residual = to.residual ? to.residual + at : nullptr;
      write_row(sums + r * panels * kLanes, scales, input_scales[r], panels, residual, to, to.out + at);
    }
    return;
  }
  alignas(64) float totals[kRowTileRows * kAllPanels * kLanes];
  for (int i = 0; i < rows * panels; ++i) {
    const Int16 sum = load_words(reinterpret_cast<const uint8_t*>(sums + i * kLanes));
    store(totals + i * kLanes, close_row(sum, load(scales + i % panels * kLanes), input_scales[i / panels]));
  }
  write_results(to, first, rows, panels, totals);
}

// Tile `index` of `tiles` fetches its part of the strip that comes next; with gates first those, then the others.
void set_ahead(const Strip& strip, int panels, int64_t index, int64_t tiles, RowTile& tile) {
  if (!strip.next) return;
  const int64_t parts = strip.next_apart ? 2 : 1, bytes = panels / parts * strip.next_layout.bytes;
  const int64_t part = index * parts / tiles, own = (tiles + parts - 1) / parts; // tiles of a part
  const int64_t turns = own * tile.units;
  tile.ahead_lines = ((bytes + 63) / 64 + turns - 1) / turns;
  const uint8_t* first = strip.next + part * strip.next_apart;
  tile.ahead = first + (index - (part * tiles + parts - 1) / parts) * tile.units * tile.ahead_lines * 64;
  tile.ahead_end = first + bytes;
}

void all_rows_of_strip(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int64_t rows,
                       const Results& results, float*) {
  alignas(64) float scales[kAllPanels * kLanes];
  alignas(64) int32_t starts[kAllPanels * kLanes], sums[kRowTileRows * kAllPanels * kLanes];
  for (int p = 0; p < panels; ++p) {
    const uint8_t* panel = strip.panel(p);
    store(scales + p * kLanes, load_span_scales(panel, strip.layout, 0));
    store_words(reinterpret_cast<uint8_t*>(starts + p * kLanes), row_start(panel, strip.layout));
  }
  RowTile tile{};
  tile.codes = strip.panels;
  tile.panel_stride = strip.apart ? strip.apart : strip.layout.bytes;
  tile.pair_stride = strip.apart ? strip.layout.bytes : 2 * strip.layout.bytes;
  tile.starts = starts;
  tile.inputs = in.coded.codes + row * kCodeRun;
  tile.run_stride = in.layout.rows * kCodeRun;
  tile.units = in.cols / kUnit;
  tile.result_stride = results.stride;
  tile.result_panels = results.gating ? panels / 2 : panels;
  const int64_t tiles = (rows + kRowTileRows - 1) / kRowTileRows;
  with_registers([&](auto& registers) {
    for (int64_t index = 0; index < tiles; ++index) {
      const int64_t first = index * rows / tiles;
      const int count = static_cast<int>((index + 1) * rows / tiles - first);
      RowTile from = tile;
      from.inputs += first * kCodeRun;
      from.results = results.out + first * results.stride;
      set_ahead(strip, panels, index, tiles, from);
      add_tile(registers, from, count, panels, sums);
      write_rows(sums, scales, in.coded.scales + row + first, first, count, panels, results);
    }
  });
}

int64_t no_floats(int64_t, int) { return 0; }

struct RowKernels {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_rows_of_strip<Rows, Panels>;
  static constexpr ManyRows kMany = nullptr;
  static constexpr int kMost = kFewRows;
};

} // namespace

LinearKernel row_kernel() {
  LinearKernel kernel = kernel_of<RowKernels>();
  kernel.all = all_rows_of_strip;
  kernel.floats = no_floats;
  return kernel;
}

} // namespace octavo
