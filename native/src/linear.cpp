// Deals a product out to the team: prepares the inputs once, then strips of panels, each for one row or a block of
// rows.
#include "linear.h"

#include <string.h>

#include "bf16_choice.h"
#include "linear_dense.h"
#include "linear_gather.h"
#include "linear_kernels.h"
#include "linear_prepare.h"
#include "linear_product.h"
#include "linear_strips.h"
#include "simd/vec.h"
#include "upcoming.h"

namespace octavo {
namespace {

constexpr int64_t kFetchAhead = 2048;      // bytes of each panel that few rows go through: enough for memory
constexpr int64_t kFetchWaiting = 1 << 18; // bytes of the next product that a thread fetches while it waits
constexpr int kTileStep = 12;              // blocks of rows are multiples of it
constexpr int kPartsAThread = 16;          // tasks a thread, if there are as many blocks of rows

// Adds bias and residual to a strip's totals of one row and writes what belongs to the segment.
void finish_row(const Product& product, const OctavoSegment& segment, int64_t first_output, int64_t panel, int panels,
                int64_t row, const float* total) {
  for (int p = 0; p < panels; ++p) {
    const int64_t inside = (panel + p) * kLanes;
    const int64_t left = segment.rows - inside;
    const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
    const int64_t column = first_output + inside, at = row * product.width + column;
    Vec16 value = load(total + p * kLanes);
    if (product.bias) value = value + load_n(product.bias + column, lanes);
    if (product.residual) value = value + load_n(product.residual + at, lanes);
    store_n(product.out + at, value, lanes);
  }
}

// --- few rows: memory sets the pace, so each thread takes one run of all panels, and codes are not written out ---

// Panels that are read one after the other, as what follows other ones.
struct Following {
  const uint8_t* panels;
  PanelLayout layout;
  int64_t count; // to the end of the segment
};

Following following_at(const OctavoSegment* segments, int64_t panel) {
  const PanelAt at = locate(segments, panel);
  const OctavoSegment& segment = segments[at.segment];
  const Strip strip = strip_at(segment, at.panel);
  return {strip.panels, strip.layout, panel_count(segment.rows) - at.panel};
}

// What this thread reads first of the product that comes next; without one, what `strip` has read.
Following next_product(const Team& team, int thread, const Product& product, const Strip& strip) {
  if (!product.after) return {strip.panels, strip.layout, 0};
  const OctavoSegment* segments = static_cast<const OctavoSegment*>(product.after->p[0]);
  const int64_t panels = all_panels(segments, product.after->i[1]);
  const int64_t first = team.run_start(panels, thread);
  return following_at(segments, first < panels ? first : panels - 1);
}

// Panels [panel, panel + panels) of a segment; next: what is read afterwards.
void few_rows_of(const Product& product, const OctavoSegment& segment, const PanelAt& at, int wide, Following next) {
  const LinearKernel kernel = linear_kernel(segment.format, product.coding);
  const int panels = 1 << wide, height = pass_rows(product.rows, kernel.most);
  Strip strip = strip_at(segment, at.panel);
  strip.next = next.panels;
  strip.next_layout = next.layout;
  strip.ahead = strip.layout.high < kFetchAhead ? strip.layout.high : kFetchAhead;
  for (int64_t row = 0; row < product.rows; row += height) {
    const int rows = static_cast<int>(product.rows - row < height ? product.rows - row : height);
    float total[kFewTotals * kLanes];
    kernel.few[rows - 1][wide](strip, product.in, product.first_input + row, total);
    for (int r = 0; r < rows; ++r)
      finish_row(product, segment, at.first_output, at.panel, panels, row + r, total + r * panels * kLanes);
    strip.ahead = strip.layout.high; // it has been read: what follows is fetched
  }
}

// Panels of a strip as a power of two, which every segment's kernel has for its passes.
int widest_of(const Product& product) {
  return widest_few(pass_rows(product.rows, product.coding == Coding::none ? kFewRows : kFewCodedRows));
}

// Panels [begin, end), counted through all segments; last: what follows them.
void run_few(const Product& product, int64_t begin, int64_t end, Following last) {
  const int widest = widest_of(product);
  while (begin < end) {
    PanelAt at = locate(product.segments, begin);
    const OctavoSegment& segment = product.segments[at.segment];
    at.first_output += product.first_output;
    const FlushSubnormals flush(segment.format == OCTAVO_BF16);
    const int64_t inside = panel_count(segment.rows) - at.panel, left = end - begin < inside ? end - begin : inside;
    const int fits = left >= 4 ? 2 : left >= 2 ? 1 : 0, wide = fits < widest ? fits : widest;
    begin += 1 << wide;
    few_rows_of(product, segment, at, wide, begin < end ? following_at(product.segments, begin) : last);
  }
}

void few_rows(Team& team, const Product& product) {
  const int64_t panels = all_panels(product.segments, product.segment_count);
  const int widest = 1 << widest_of(product);
  team.parallel_runs(panels, widest, [&](int64_t begin, int64_t end, int thread) {
    const int64_t first = team.run_start(panels, thread), last = team.run_start(panels, thread + 1);
    if (begin >= first && end < last) return run_few(product, begin, end, following_at(product.segments, end));
    const Following next = next_product(team, thread, product, strip_at(product.segments[0], 0));
    run_few(product, begin, end, next);
    if (end == last)
      fetch_while_waiting({next.panels, next.layout.bytes, next.count, widest, kFetchAhead, kFetchWaiting});
  });
}

// --- many rows: a task is one strip of panels for one block of rows ---

// Of a segment that is no matter of dense_rows() or all_rows().
int64_t strips_of(const Product& product, int s, int widest) {
  const OctavoSegment& segment = product.segments[s];
  return linear_kernel(segment.format, product.coding).many ? strip_count(panel_count(segment.rows), widest) : 0;
}

int64_t all_strips(const Product& product, int widest) {
  int64_t count = 0;
  for (int s = 0; s < product.segment_count; ++s) count += strips_of(product, s, widest);
  return count;
}

// Rows of a task: blocks of `height`, one after the other, while the strip's weights are near.
struct RowRange {
  int64_t first, last;
  int64_t height;
};

// gate, up: a strip's totals of both, [rows][panels][16].
void finish_gates(const Product& product, const StripRange& at, int64_t row, int64_t rows, float* gate, float* up) {
  const int64_t stride = at.panels * kLanes, column = at.panel * kLanes;
  float* out = product.out + row * product.width + column;
  const GatedRows made{gate, up, stride, out, product.width, rows, stride};
  if (product.bias) made.add_bias(product.bias + column, product.bias + product.width + column);
  made.write(product.gating->activation);
}

// further: how many strips after this one the thread's next task likely is.
void run_strip(Team& team, int thread, const Product& product, int widest, int64_t index, const RowRange& range,
               int64_t further) {
  int64_t first_output = product.first_output;
  int s = 0;
  for (;; ++s) {
    const int64_t here = strips_of(product, s, widest);
    if (index < here) break;
    index -= here;
    first_output += product.segments[s].rows;
  }
  const OctavoSegment& segment = product.segments[s];
  const StripRange at = strip_of(panel_count(segment.rows), widest, index);
  constexpr int kTotals = kMostCodedRows * kMostPanels * kLanes;
  float* total = team.scratch(thread, 2 * kTotals + kScratchFloats);
  const ManyRows many = linear_kernel(segment.format, product.coding).many;
  Strip strip = strip_at(segment, at.panel);
  const int64_t ahead = at.panel + at.panels * further;
  for (int64_t row = range.first; row < range.last; row += range.height) {
    const int64_t left = range.last - row;
    const int rows = static_cast<int>(left < range.height ? left : range.height);
    strip.cold = row == range.first;
    strip.next = further && left <= range.height && ahead < panel_count(segment.rows)
                     ? strip.panels + (ahead - at.panel) * strip.layout.bytes
                     : nullptr;
    strip.out = product.out + row * product.width + first_output + at.panel * kLanes;
    strip.out_stride = product.width;
    many(strip, at.panels, product.in, product.first_input + row, rows, total, total + 2 * kTotals);
    if (product.gating) {
      Strip up = strip;
      up.panels += product.gating->apart();
      if (up.next) up.next += product.gating->apart();
      many(up, at.panels, product.in, product.first_input + row, rows, total + kTotals, total + 2 * kTotals);
      finish_gates(product, at, row, rows, total, total + kTotals);
      continue;
    }
    const bool plain = !product.bias && !product.residual && (at.panel + at.panels) * kLanes <= segment.rows;
    for (int r = 0; r < rows; ++r) {
      const float* from = total + r * at.panels * kLanes;
      if (plain)
        memcpy(product.out + (row + r) * product.width + first_output + at.panel * kLanes, from,
               static_cast<size_t>(at.panels * kLanes) * sizeof(float));
      else
        finish_row(product, segment, first_output, at.panel, at.panels, row + r, from);
    }
  }
}

// --- many rows ---

DenseProduct dense_product(const Product& product, int64_t set) {
  DenseProduct dense{};
  dense.segments = product.segments;
  dense.segment_count = product.segment_count;
  dense.in = product.in;
  dense.rows = product.rows;
  dense.set = set;
  dense.first_output = product.first_output;
  dense.bias = product.bias;
  dense.residual = product.residual;
  dense.out = product.out;
  dense.width = product.width;
  dense.gating = product.gating;
  return dense;
}

void many_rows(Team& team, const Product& product) {
  const int most = product.in.coding == Coding::none ? kMostRows : kMostCodedRows;
  const int64_t fewest = (product.rows + most - 1) / most;
  const int64_t even = (product.rows + fewest - 1) / fewest;
  const int64_t height = (even + kTileStep - 1) / kTileStep * kTileStep;
  const int64_t blocks = (product.rows + height - 1) / height;
  dense_rows(team, dense_product(product, 0));
  all_rows(team, product);
  int widest = kWidestMany; // narrower strips when there would be too few to share evenly
  while (widest > 1 && team.threads() > 1 && all_strips(product, widest) * blocks < 6 * team.threads()) widest /= 2;
  const int64_t strips = all_strips(product, widest);
  int64_t parts = 1; // of the rows, that are tasks of their own: so many that threads end at about the same time
  while (parts < blocks && team.threads() > 1 && strips * parts < kPartsAThread * team.threads()) ++parts;
  const int64_t tall = (blocks + parts - 1) / parts * height;
  parts = (product.rows + tall - 1) / tall;
  team.parallel(strips * parts, [&](int64_t task, int thread) {
    const int64_t row = task % parts * tall, index = task / parts;
    const int64_t left = product.rows - row;
    run_strip(team, thread, product, widest, index, {row, row + (left < tall ? left : tall), height},
              (task + team.threads()) / parts - index);
  });
}

// --- one matrix a head ---

// The rows of one head, whose matrix is one segment, as a product of its own.
Product head_product(const Product& all, int64_t head, int64_t width) {
  Product product = all;
  product.first_input = head * all.rows;
  product.segments = all.segments + head;
  product.segment_count = 1;
  product.out = all.out + head * width;
  return product;
}

void run_head(Team& team, int thread, const Product& product, int64_t row, int64_t rows) {
  if (all_rows_of(team, thread, product, row, rows)) return;
  const int64_t panels = panel_count(product.segments[0].rows);
  for (int64_t strip = 0; strip < strip_count(panels, kWidestMany); ++strip)
    run_strip(team, thread, product, kWidestMany, strip, {row, row + rows, rows}, 1);
}

// Prepares the inputs for segments that take the same ones, and multiplies.
void run_product(Team& team, Product& product, const float* x, int64_t depth) {
  const Needs needs = needs_of(product.segments, product.segment_count, product.coding);
  const bool few = are_few(product.segments, product.segment_count, product.rows, product.coding);
  const RowLayout layout{product.rows, depth, !few};
  const bool placed = are_placed(product.segments[0], product.coding);
  const int64_t gathered = placed ? (product.rows * depth + 15) / 16 * 16 : 0;
  const int64_t floats = gathered + prepared_floats(needs, layout);
  float* memory = floats > 0 ? team.shared(static_cast<size_t>(floats)) : nullptr;
  if (placed) place_inputs(team, product.segments[0], x, product.rows, memory);
  product.in = prepare(team, needs, placed ? memory : x, layout, 1, memory + gathered);
  if (few)
    few_rows(team, product);
  else
    many_rows(team, product);
}

// One product for each run of segments that take the same inputs: all of them, but in odd checkpoints.
void run_products(Team& team, Product product, int segments, const float* x, int64_t depth) {
  const Coding asked = product.coding;
  for (int left = segments; left > 0; left -= product.segment_count) {
    product.segment_count = 1;
    product.coding = coding_of(product.segments[0], asked);
    while (product.segment_count < left &&
           same_inputs(product.segments[0], product.segments[product.segment_count], asked))
      ++product.segment_count;
    run_product(team, product, x, depth);
    for (int s = 0; s < product.segment_count; ++s) product.first_output += product.segments[s].rows;
    product.segments += product.segment_count;
  }
}

Product product_of(const OctavoInstruction& instruction, const OctavoProgram& program, int64_t rows) {
  Product product{};
  product.segments = static_cast<const OctavoSegment*>(instruction.p[0]);
  product.bias = static_cast<const float*>(instruction.p[1]);
  product.out = program.buffer[instruction.out];
  product.width = instruction.width;
  product.rows = rows;
  product.coding = static_cast<Coding>(instruction.i[2]);
  product.after = product_after(instruction, program);
  return product;
}

} // namespace

void linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep&,
            int64_t rows) {
  if (rows <= 0) return;
  Product product = product_of(instruction, program, rows);
  product.residual = instruction.in1 >= 0 ? program.buffer[instruction.in1] : nullptr;
  run_products(team, product, instruction.i[1], program.buffer[instruction.in0], instruction.depth);
}

void gated_linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep&,
                  int64_t rows) {
  if (rows <= 0) return;
  const float* x = program.buffer[instruction.in0];
  Product product = product_of(instruction, program, rows);
  Gating gating{};
  gating.activation = instruction.i[3];
  const Coding coding = coding_of(product.segments[0], product.coding);
  if (!are_few(product.segments, instruction.i[1], rows, coding) &&
      find_gating(product.segments, instruction.i[1], instruction.width, gating)) {
    product.gating = &gating;
    product.segments = &gating.gate;
    return run_products(team, product, 1, x, instruction.depth);
  }
  product.out = program.buffer[instruction.out2];
  product.width = 2 * instruction.width;
  run_products(team, product, instruction.i[1], x, instruction.depth);
  gate_halves(team, gating.activation, product.out, program.buffer[instruction.out], rows, instruction.width);
}

void head_linear(Team& team, const OctavoInstruction& instruction, const OctavoProgram& program, const OctavoStep&,
                 int64_t rows) {
  const int64_t heads = instruction.i[1], width = instruction.width / heads, depth = instruction.depth;
  Product product{};
  product.segments = static_cast<const OctavoSegment*>(instruction.p[0]);
  product.out = program.buffer[instruction.out];
  product.width = instruction.width;
  product.rows = rows;
  product.coding = coding_of(product.segments[0], static_cast<Coding>(instruction.i[3]));
  const Needs needs = needs_of(product.segments, instruction.i[1], product.coding);
  product.segment_count = instruction.i[1];
  const bool few = are_few(product.segments, product.segment_count, rows, product.coding);
  const RowLayout layout{heads * rows, depth, !few};
  const int64_t gathered = (heads * rows * depth + 15) / 16 * 16;
  float* memory = team.shared(static_cast<size_t>(gathered + prepared_floats(needs, layout)));
  const float* x = gather_heads(team, program.buffer[instruction.in0], instruction, rows, memory);
  if (are_placed(product.segments[0], product.coding)) place_inputs(team, product.segments[0], x, heads * rows, memory);
  product.in = prepare(team, needs, x, layout, heads, memory + gathered);
  if (!few) dense_rows(team, dense_product(product, rows));
  const int64_t blocks = few ? 1 : (rows + kMostRows - 1) / kMostRows;
  team.parallel(heads * blocks, [&](int64_t task, int thread) {
    const Product one = head_product(product, task / blocks, width);
    const int64_t row = task % blocks * kMostRows;
    if (few) return run_few(one, 0, panel_count(one.segments[0].rows), following_at(one.segments, 0));
    if (!format_of(one.segments[0].format).dense())
      run_head(team, thread, one, row, rows - row < kMostRows ? rows - row : kMostRows);
  });
}

} // namespace octavo
