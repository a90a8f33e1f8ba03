// Dense products of many rows: blocks of rows times strips of panels, group of inputs by group of inputs.
//
// A task keeps its block's inputs of one group in the second-level cache. For each pair of panels the first tile of
// rows writes the group's weights of 16 bits out as floats while it multiplies; they stay close while the other tiles
// pass over them. Sums of earlier groups wait in the thread's memory; the last group's tiles write the results
// themselves. While a tile is multiplied, the weights that come next are fetched.
#include <type_traits>

#include "bf16_choice.h"
#include "linear_codes.h"
#include "linear_dense.h"
#include "linear_dense_registers.h"
#include "linear_dense_tile.h"
#include "simd/vec.h"

namespace octavo {
namespace {

constexpr int64_t kBlockRows = 280;     // of a block, about: its inputs of a group take 700 kB, in bf16 560 kB
constexpr int64_t kRegisterGroup = 512; // words of two inputs, in tile registers
constexpr int kMostStrips = 4;          // of a task
constexpr int64_t kTasksOfThread = 8;   // that there should be, so that threads end together

// Strips of one segment that one task takes.
struct StripRun {
  int segment;
  int64_t column;      // of the segment's first output
  int64_t first, last; // panels
};

bool in_registers(int32_t format) { return kBf16InTiles && format == OCTAVO_BF16; }

// Panels of one segment, or gate by gate those of both.
struct Panels {
  const Gating* gating;
  int64_t count, strip; // of a strip, at least: a gate's two belong to one task

  Panels(const DenseProduct& product, const OctavoSegment& segment)
      : gating(product.gating), count(panel_count(segment.rows) * (gating ? 2 : 1)),
        strip(gating && kDensePanels == 1 ? 2 : kDensePanels) {}
  int64_t strips() const { return (count + strip - 1) / strip; }
};

// How the part of a product that is multiplied in tile registers, or the other part, is dealt out: its strips in runs,
// its tiles of rows in blocks.
class Deal {
public:
  Deal(const DenseProduct& product, int threads, bool registers)
      : product_(product), tiles_{product.rows, registers ? kBf16Tall : kDenseTall}, registers_(registers) {
    blocks_ = (tiles_.count() + block_tiles() - 1) / block_tiles();
    while (strips_ < kMostStrips && runs_of(2 * strips_) * blocks_ >= kTasksOfThread * threads) strips_ *= 2;
    runs_ = runs_of(strips_);
  }

  int64_t tasks() const { return runs_ * blocks_; }
  const RowTiles& tiles() const { return tiles_; }
  int64_t most_strips() const { return strips_; }
  int64_t most_rows() const { return product_.rows < kBlockRows ? product_.rows : block_tiles() * tiles_.tall; }

  // Blocks outermost: threads that work on neighbours read the same inputs.
  StripRun strips(int64_t task) const {
    int64_t index = task % runs_, column = product_.first_output;
    for (int s = 0;; ++s) {
      const OctavoSegment& segment = product_.segments[s];
      const int64_t here = runs_in(segment, strips_);
      if (index < here) {
        const Panels panels(product_, segment);
        const int64_t all = panels.strips(), last = (index + 1) * all / here * panels.strip;
        return {s, column, index * all / here * panels.strip, last < panels.count ? last : panels.count};
      }
      index -= here;
      column += segment.rows;
    }
  }
  int64_t first_tile(int64_t task) const { return task / runs_ * tiles_.count() / blocks_; }
  int64_t last_tile(int64_t task) const { return (task / runs_ + 1) * tiles_.count() / blocks_; }

private:
  int64_t block_tiles() const { return kBlockRows / tiles_.tall; }
  int64_t runs_in(const OctavoSegment& segment, int64_t strips) const {
    if (!format_of(segment.format).dense() || in_registers(segment.format) != registers_) return 0;
    return (Panels(product_, segment).strips() + strips - 1) / strips;
  }
  int64_t runs_of(int64_t strips) const {
    int64_t runs = 0;
    for (int s = 0; s < product_.segment_count; ++s) runs += runs_in(product_.segments[s], strips);
    return runs;
  }

  const DenseProduct& product_;
  RowTiles tiles_;
  bool registers_;
  int64_t blocks_, runs_, strips_ = 1;
};

// The words of a format: what its inputs and its weights are multiplied as.
struct Words {
  const void* inputs; // of the whole product, in tiles
  int64_t count;      // of a row that have weights
  int64_t stride;     // of a row
  int64_t group;
  int64_t bytes; // of a packed weight word
  DenseWeights read;
};

Words words_of(const LinearInputs& in, int32_t format) {
  if (format == OCTAVO_F32) return {in.tiled, in.cols, in.cols, dense_group(in.cols), 4, DenseWeights::floats};
  if (format == OCTAVO_F16) return {in.tiled, in.cols, in.cols, dense_group(in.cols), 2, DenseWeights::f16};
  const int64_t even = in.even_cols, pairs = even / 2, group = dense_group(even);
  if (kBf16InTiles) return {in.pairs, pairs, words_in_tiles(in.cols), kRegisterGroup, 4, DenseWeights::tiles};
  if (bf16_in_pairs()) return {in.pairs, pairs, pairs, group / 2, 4, DenseWeights::pairs};
  return {in.rounded, even, even, group, 2, DenseWeights::bf16};
}

struct NoRegisters {};

// One task: what it reads and where its memory is.
class Task {
public:
  Task(const DenseProduct& product, const Deal& deal, int64_t task, float* scratch)
      : product_(product), run_(deal.strips(task)), segment_(product.segments[run_.segment]),
        words_(words_of(product.in, segment_.format)), panel_bytes_(panel_layout(segment_.format, segment_.cols).bytes),
        tiles_(deal.tiles()), first_tile_(deal.first_tile(task)), last_tile_(deal.last_tile(task)), weights_(scratch),
        totals_(scratch + kDensePanels * kDenseGroup * kLanes) {}

  void run() {
    const FlushSubnormals flush(segment_.format == OCTAVO_BF16);
    flush_ = &flush;
#if defined(OCTAVO_VARIANT_AMX)
    if (words_.read == DenseWeights::tiles) return with_tiles([&](auto& registers) { run_groups(registers); });
#endif
    NoRegisters none;
    run_groups(none);
  }

private:
  template <class Registers> void run_groups(Registers& registers) {
    for (int64_t start = 0; start < words_.count; start += words_.group)
      for (int64_t panel = run_.first; panel < run_.last; panel += kDensePanels) run_strip(registers, panel, start);
  }

  const uint8_t* weights_at(int64_t panel, int64_t word) const {
    const Gating* gating = product_.gating;
    const int64_t at = gating ? panel / 2 * panel_bytes_ + panel % 2 * gating->apart() : panel * panel_bytes_;
    return static_cast<const uint8_t*>(segment_.data) + at + word * words_.bytes * kLanes;
  }

  template <class Registers> void run_strip(Registers& registers, int64_t panel, int64_t start) {
    const int panels = static_cast<int>(run_.last - panel < kDensePanels ? run_.last - panel : kDensePanels);
    const int64_t end = start + words_.group < words_.count ? start + words_.group : words_.count;
    DenseTile tile{};
    tile.count = end - start;
    DenseWeights read = words_.read;
    tile.weights = weights_at(panel, start);
    tile.panel_stride = product_.gating ? product_.gating->apart() : panel_bytes_;
    if (words_.bytes == 2 && last_tile_ - first_tile_ > 1) tile.widened = weights_;
    tile.panel_bytes = tile.panel_stride;
    tile.input_words = words_.stride;
    tile.ahead_bytes = (words_.bytes * kLanes + last_tile_ - first_tile_ - 1) / (last_tile_ - first_tile_);
    tile.ahead = panel + kDensePanels < run_.last ? weights_at(panel + kDensePanels, start)
                 : end < words_.count             ? weights_at(run_.first, end)
                                                  : weights_at(run_.last, 0);
    const int64_t column = run_.column + panel * kLanes;
    const bool last = end == words_.count, whole = !product_.gating && (panel + panels) * kLanes <= segment_.rows;
    if (last && product_.bias && whole) tile.bias = product_.bias + column;
    float* total = totals_ + (panel - run_.first) * kLanes * (tiles_.first(last_tile_) - tiles_.first(first_tile_));
    for (int64_t t = first_tile_; t < last_tile_; ++t) {
      const int64_t row = tiles_.first(t);
      const int height = tiles_.height(t);
      tile.inputs = static_cast<const float*>(words_.inputs) + (run_.segment * product_.set + row) * words_.stride +
                    start * (read == DenseWeights::tiles ? 1 : height);
      tile.total = start > 0 ? total : nullptr;
      if (last && whole) {
        tile.out = product_.out + row * product_.width + column;
        tile.row_stride = product_.width;
        tile.residual = product_.residual ? product_.residual + row * product_.width + column : nullptr;
      } else {
        tile.out = total;
        tile.row_stride = panels * kLanes;
      }
      if (last && product_.gating) fetch_gated(row, height, panel);
      if constexpr (std::is_same_v<Registers, NoRegisters>)
        run_dense_tile(tile, read, height, panels);
      else
        run_register_tile(registers, tile, height, panels);
      if (last && product_.gating)
        finish_gates(total, row, height, panel);
      else if (last && !whole)
        finish(total, row, height, panel, panels);
      tile.ahead += tile.ahead_bytes * tile.count;
      if (tile.widened) {
        tile.widened = nullptr;
        tile.weights = reinterpret_cast<const uint8_t*>(weights_);
        tile.panel_stride = kDenseGroup * kLanes * 4;
        read = DenseWeights::floats;
      }
      total += height * panels * kLanes;
    }
  }

  float* gated_at(int64_t row, int64_t panel) const { return product_.out + row * product_.width + panel / 2 * kLanes; }

  void fetch_gated(int64_t row, int height, int64_t panel) const {
    for (int r = 0; r < height; ++r) __builtin_prefetch(gated_at(row + r, panel), 1);
  }

  // Of a tile that has, or whose strip after the one before has, both of a gate's panels.
  void finish_gates(float* total, int64_t row, int height, int64_t panel) const {
    if (kDensePanels == 1 && panel % 2 == 0) return;
    constexpr int64_t kApart = kDensePanels * kLanes; // rows
    const int64_t rows = tiles_.first(last_tile_) - tiles_.first(first_tile_), column = panel / 2 * kLanes;
    float *up = kDensePanels == 1 ? total : total + kLanes, *gate = kDensePanels == 1 ? total - rows * kLanes : total;
    const GatedRows made{gate, up, kApart, gated_at(row, panel), product_.width, height, kLanes};
    if (product_.bias) made.add_bias(product_.bias + column, product_.bias + product_.width + column);
    flush_->pause([&] { made.write(product_.gating->activation); });
  }

  // For a strip with lanes past the end of the segment.
  void finish(const float* total, int64_t row, int height, int64_t panel, int panels) {
    for (int r = 0; r < height; ++r)
      for (int p = 0; p < panels; ++p) {
        const int64_t inside = (panel + p) * kLanes, left = segment_.rows - inside;
        const int lanes = static_cast<int>(left < kLanes ? left : kLanes);
        const int64_t column = run_.column + inside, at = (row + r) * product_.width + column;
        Vec16 value = load(total + (r * panels + p) * kLanes);
        if (product_.bias) value = value + load_n(product_.bias + column, lanes);
        if (product_.residual) value = value + load_n(product_.residual + at, lanes);
        store_n(product_.out + at, value, lanes);
      }
  }

  const DenseProduct& product_;
  const StripRun run_;
  const OctavoSegment& segment_;
  const Words words_;
  const int64_t panel_bytes_;
  const RowTiles& tiles_;
  const int64_t first_tile_, last_tile_;
  float* weights_;
  float* totals_;
  const FlushSubnormals* flush_ = nullptr;
};

void deal_out(Team& team, const DenseProduct& product, bool registers) {
  const Deal deal(product, team.threads(), registers);
  const int64_t panels = product.gating && kDensePanels == 1 ? 2 : kDensePanels; // of a strip
  const int64_t floats = kLanes * (kDensePanels * kDenseGroup + panels * deal.most_strips() * deal.most_rows());
  team.parallel(deal.tasks(), [&](int64_t task, int thread) {
    Task(product, deal, task, team.scratch(thread, static_cast<size_t>(floats))).run();
  });
}

} // namespace

void dense_rows(Team& team, const DenseProduct& product) {
  deal_out(team, product, false);
  if (kBf16InTiles) deal_out(team, product, true);
}

} // namespace octavo
