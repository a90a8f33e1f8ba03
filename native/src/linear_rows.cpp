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

template <bool Stepped, int Rows, int Panels>
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
  constexpr int64_t kUnitBytes = Stepped ? 256 : 512, kLines = kUnitBytes / 4 / 64; // a row of eight inputs
  for (int64_t unit = 0; unit < units; ++unit) {
    ahead.move(unit * kUnitBytes);
    ahead.fetch_rest<Panels>();
    StepsOf<Stepped> steps[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p)
      steps[p] = steps_of<Stepped>(strip.panels + p * strip.layout.bytes, strip.layout, unit);
#pragma GCC unroll 4
    for (int eight = 0; eight < 4; ++eight) {
      int32_t four[Rows][2];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) memcpy(four[r], inputs + r * in.cols + unit * kUnit + 8 * eight, 8);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        ahead.fetch(p, eight * kLines * 64);
        if constexpr (!Stepped) ahead.fetch(p, eight * 128 + 64);
        Int16 codes[2];
        eight_bytes<Stepped>(strip.panels + p * strip.layout.bytes + unit * kUnitBytes, steps[p], eight, codes);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r)
          sum[r][p] = add_four(add_four(sum[r][p], codes[0], four[r][0]), codes[1], four[r][1]);
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

// Closed, + bias, then + residual. sums: [rows][Panels][16]; results: rows `stride` apart
template <int Panels, bool Bias, bool Residual>
void write_panels(const int32_t* sums, const float* scales, const float* input_scales, int rows, const float* bias,
                  const float* residual, float* out, int64_t stride) {
  for (int r = 0; r < rows; ++r, sums += Panels * kLanes, out += stride) {
#pragma GCC unroll 4
    for (int at = 0; at < Panels * kLanes; at += kLanes) {
      const Int16 sum = load_words(reinterpret_cast<const uint8_t*>(sums + at));
      Vec16 value = close_row(sum, load(scales + at), input_scales[r]);
      if (Bias) value = value + load(bias + at);
      if (Residual) value = value + load(residual + r * stride + at);
      store(out + at, value);
    }
  }
}

template <int Panels>
void write_panels(const int32_t* sums, const float* scales, const float* input_scales, int64_t first, int rows,
                  const Results& to) {
  const int64_t at = first * to.stride;
  const float* residual = to.residual ? to.residual + at : nullptr;
  const auto write = [&](auto with_bias, auto with_residual) {
    write_panels<Panels, with_bias, with_residual>(sums, scales, input_scales, rows, to.bias, residual, to.out + at,
                                                   to.stride);
  };
  constexpr std::true_type yes;
  constexpr std::false_type no;
  if (to.bias) return to.residual ? write(yes, yes) : write(yes, no);
  return to.residual ? write(no, yes) : write(no, no);
}

// sums: [rows][panels][16] of rows from `first` on
void write_rows(const int32_t* sums, const float* scales, const float* input_scales, int64_t first, int rows,
                int panels, const Results& to) {
  if (to.gating || to.lanes < panels * kLanes) {
    alignas(64) float totals[kMostTileRows * kAllPanels * kLanes];
    Results closed{};
    closed.out = totals;
    closed.stride = panels * kLanes;
    closed.lanes = closed.stride;
    write_rows(sums, scales, input_scales, 0, rows, panels, closed);
    return write_results(to, first, rows, panels, totals);
  }
  switch (panels) {
  case 1: return write_panels<1>(sums, scales, input_scales, first, rows, to);
  case 2: return write_panels<2>(sums, scales, input_scales, first, rows, to);
  case 3: return write_panels<3>(sums, scales, input_scales, first, rows, to);
  default: return write_panels<4>(sums, scales, input_scales, first, rows, to);
  }
}

// Tile `index` of `tiles` fetches its part of the strip that comes next; with gates first those, then the others.
void set_ahead(const Strip& strip, int64_t index, int64_t tiles, RowTile& tile) {
  if (!strip.next) return;
  const int64_t parts = strip.next_apart ? 2 : 1, bytes = strip.next_panels / parts * strip.next_layout.bytes;
  const int64_t part = index * parts / tiles, own = (tiles + parts - 1) / parts; // tiles of a part
  const int64_t turns = own * tile.units;
  tile.ahead_lines = ((bytes + 63) / 64 + turns - 1) / turns;
  const uint8_t* first = strip.next + part * strip.next_apart;
  tile.ahead = first + (index - (part * tiles + parts - 1) / parts) * tile.units * tile.ahead_lines * 64;
  tile.ahead_end = first + bytes;
}

// What a tile that reads its codes once goes on with: codes of the next strip; what stands behind these is fetched
// here, as much of it as rows have. The next strip may be of another format.
void set_next(const Strip& strip, RowTile& tile) {
  constexpr int64_t kRest = 4096; // bytes of a panel
  if (!strip.next) return;
  const PanelLayout& layout = strip.next_layout;
  tile.next = strip.next;
  tile.next_panel_stride = strip.next_apart ? strip.next_apart : layout.bytes;
  tile.next_pair_stride = strip.next_apart ? layout.bytes : 2 * layout.bytes;
  for (int p = 0; p < strip.next_panels; ++p)
    for (int64_t at = layout.high; at < layout.bytes && at < layout.high + kRest; at += 64)
      __builtin_prefetch(tile.next_panel(p) + at, 0, 2);
}

// The bytes of a strip's codes, [panels][units][8][64].
void write_bytes(const Strip& strip, int panels, int64_t units, uint8_t* out) {
  for (int p = 0; p < panels; ++p) {
    const uint8_t* panel = strip.panel(p);
    for (int64_t unit = 0; unit < units; ++unit, out += 512) {
      const Steps steps = steps_of<true>(panel, strip.layout, unit);
#pragma GCC unroll 4
      for (int eight = 0; eight < 4; ++eight) {
        Int16 codes[2];
        eight_bytes<true>(panel + unit * 256, steps, eight, codes);
        store_words(out + eight * 128, codes[0]);
        store_words(out + eight * 128 + 64, codes[1]);
      }
    }
  }
}

template <bool Stepped>
void all_rows_of_strip(const Strip& strip, int panels, const LinearInputs& in, int64_t row, int64_t rows,
                       const Results& results, float* memory) {
  alignas(64) float scales[kAllPanels * kLanes];
  alignas(64) int32_t starts[kAllPanels * kLanes], sums[kMostTileRows * kAllPanels * kLanes];
  for (int p = 0; p < panels; ++p) {
    const uint8_t* panel = strip.panel(p);
    store(scales + p * kLanes, load_span_scales(panel, strip.layout, 0));
    store_words(reinterpret_cast<uint8_t*>(starts + p * kLanes), row_start(panel, strip.layout));
  }
  RowTile tile{};
  const int64_t units = in.cols / kUnit;
  auto* bytes = reinterpret_cast<uint8_t*>(memory);
  tile.once = rows >= kOnceLeast && rows <= kOnceRows - (Stepped ? kStepsRows : 0);
  const bool written = Stepped && !tile.once;
  if (written) write_bytes(strip, panels, units, bytes);
  tile.codes = written ? bytes : strip.panels;
  tile.panel_stride = written ? units * 512 : strip.apart ? strip.apart : strip.layout.bytes;
  tile.pair_stride = !written && strip.apart ? strip.layout.bytes : 2 * tile.panel_stride;
  if (Stepped && tile.once) tile.steps = strip.panels + strip.layout.min;
  tile.starts = starts;
  tile.run_stride = in.layout.rows * kCodeRun;
  tile.units = units;
  tile.result_stride = results.stride;
  tile.result_panels = results.gating ? panels / 2 : panels;
  if (tile.once) set_next(strip, tile);
  const int64_t tiles = tile.once ? 1 : (rows + kRowTileRows - 1) / kRowTileRows;
  with_registers([&](auto& registers) {
    for (int64_t index = 0; index < tiles; ++index) {
      const int64_t first = index * rows / tiles;
      const int count = static_cast<int>((index + 1) * rows / tiles - first);
      // In place: what is copied right after its parts were written has to wait for them.
      tile.inputs = in.coded.codes + (row + first) * kCodeRun;
      tile.results = results.out + first * results.stride;
      if (!tile.once) set_ahead(strip, index, tiles, tile);
      add_tile(registers, tile, count, panels, sums);
      write_rows(sums, scales, in.coded.scales + row + first, first, count, panels, results);
    }
  });
}

int64_t no_floats(int64_t, int) { return 0; }
int64_t byte_floats(int64_t cols, int panels) { return cols * panels * kLanes / 4; }

template <bool Stepped> struct RowKernels {
  template <int Rows, int Panels> static constexpr FewRows kFew = few_rows_of_strip<Stepped, Rows, Panels>;
  static constexpr ManyRows kMany = nullptr;
  static constexpr int kMost = kFewRows;
  static LinearKernel all() {
    LinearKernel kernel = kernel_of<RowKernels>();
    kernel.all = all_rows_of_strip<Stepped>;
    kernel.floats = Stepped ? byte_floats : no_floats;
    return kernel;
  }
};

} // namespace

LinearKernel row_kernel(int32_t format) {
  return has_steps(format) ? RowKernels<true>::all() : RowKernels<false>::all();
}

} // namespace octavo
