// Products of many rows with segments whose kernels take all rows of a strip: which thread takes which strips, and what
// it fetches meanwhile.
#include "linear_product.h"
#include "linear_strips.h"

namespace octavo {
namespace {

constexpr int64_t kNearInputs = 1 << 20; // that the second level keeps while strips go by
constexpr int64_t kLeastShare = 24;    // rows that are worth preparing a strip for: a thread keeps to its share of them
constexpr int64_t kReadingRows = 128;  // with more of them computing sets the pace
constexpr int64_t kPanelsAThread = 48; // with fewer, a thread that keeps to its rows finds more of them near

bool takes_all(const Product& product, const OctavoSegment& segment) {
  return linear_kernel(segment.format, product.coding).all != nullptr;
}

// Panels of a strip, of gates without those beside them.
int64_t strip_panels(const Product& product) { return product.gating ? kAllPanels / 2 : kAllPanels; }

bool all_take_all(const Product& product) {
  for (int s = 0; s < product.segment_count; ++s)
    if (!takes_all(product, product.segments[s])) return false;
  return true;
}

int64_t panels_of(const Product& product, const OctavoSegment& segment) {
  return takes_all(product, segment) ? panel_count(segment.rows) : 0;
}

int64_t panels_of(const Product& product) {
  int64_t panels = 0;
  for (int s = 0; s < product.segment_count; ++s) panels += panels_of(product, product.segments[s]);
  return panels;
}

// What a thread likely reads after a strip; without panels nothing is known.
struct Next {
  const uint8_t* panels;
  PanelLayout layout;
  int64_t apart; // of gates from what they let through, or 0
  int count;     // panels, those of both
};

// The strip of at most `count` panels that begins with one.
Next next_at(const OctavoSegment& segment, const PanelLayout& layout, int64_t panel, int64_t count,
             const Gating* gating) {
  const int64_t left = panel_count(segment.rows) - panel, most = gating ? kAllPanels / 2 : kAllPanels;
  const int64_t fits = left < most ? left : most;
  const int own = static_cast<int>(fits < count ? fits : count);
  const uint8_t* panels = static_cast<const uint8_t*>(segment.data) + panel * layout.bytes;
  return {panels, layout, gating ? gating->apart() : 0, gating ? 2 * own : own};
}

// The first strip that a thread will take of a product, if each has as many panels.
Next first_of(const OctavoInstruction& code, const Team& team, int thread) {
  const auto* segments = static_cast<const OctavoSegment*>(code.p[0]);
  Gating gating{};
  const bool gated = code.opcode == OCTAVO_GATED_LINEAR && find_gating(segments, code.i[1], code.width, gating);
  if (gated) segments = &gating.gate;
  const PanelAt at = locate(segments, team.run_start(all_panels(segments, gated ? 1 : code.i[1]), thread));
  const OctavoSegment& segment = segments[at.segment];
  const PanelLayout layout = panel_layout(segment.format, segment.cols);
  return next_at(segment, layout, at.panel, kAllPanels, gated ? &gating : nullptr);
}

// What strips of a format have in common.
struct Common {
  int32_t format;
  PanelLayout layout;
  LinearKernel kernel;
};

Common common_of(const Product& product, const OctavoSegment& segment) {
  return {segment.format, panel_layout(segment.format, segment.cols), linear_kernel(segment.format, product.coding)};
}

// Up to four panels of a segment, at.first_output counted from the product's first segment.
void run_strip(Team& team, int thread, const Product& product, const Common& common, const PanelAt& at, int count,
               int64_t row, int64_t rows, const Next& next) {
  const OctavoSegment& segment = product.segments[at.segment];
  const int panels = product.gating ? 2 * count : count;
  Strip strip{static_cast<const uint8_t*>(segment.data) + at.panel * common.layout.bytes, common.layout};
  if (product.gating) strip.apart = product.gating->apart();
  strip.next = next.panels;
  strip.next_layout = next.layout;
  strip.next_apart = next.apart;
  strip.next_panels = next.count;
  const int64_t column = product.first_output + at.first_output + at.panel * kLanes;
  const int64_t place = row * product.width + column;
  Results results{};
  results.out = product.out + place;
  results.stride = product.width;
  results.lanes = segment.rows - at.panel * kLanes;
  results.bias = product.bias ? product.bias + column : nullptr;
  results.residual = product.residual ? product.residual + place : nullptr;
  results.gating = product.gating;
  float* memory = team.scratch(thread, static_cast<size_t>(common.kernel.floats(product.in.cols, panels)));
  common.kernel.all(strip, panels, product.in, product.first_input + row, rows, results, memory);
}

// How many blocks the rows are cut into.
int64_t row_blocks(const Team& team, const Product& product, int64_t panels) {
  const int64_t most = product.rows / kLeastShare, least = strip_panels(product) * team.threads();
  // Of few rows strips are read by one thread each where they need no preparation and can be shared evenly.
  const bool once = product.coding == Coding::rows && product.rows <= kReadingRows &&
                    panels >= (most < team.threads() ? least : kPanelsAThread * least / kAllPanels);
  const int64_t shares = once || most < 1 ? 1 : most < team.threads() ? most : team.threads();
  const int64_t near = shares * kNearInputs;
  return shares * ((product.rows * product.in.cols + near - 1) / near);
}

// A block of rows with one strip after the other, all blocks' strips one after the other.
struct Strips {
  const Product& product;
  int64_t panels, blocks;
  bool all_segments; // have such kernels; panels are those of segments that have
  Common first;      // of the first of them, and mostly of all

  PanelAt locate(int64_t panel) const {
    if (all_segments) return octavo::locate(product.segments, panel);
    PanelAt place{0, panel, 0};
    for (int64_t here; place.panel >= (here = panels_of(product, product.segments[place.segment])); ++place.segment) {
      place.panel -= here;
      place.first_output += product.segments[place.segment].rows;
    }
    return place;
  }
  Common common(const OctavoSegment& segment) const {
    return segment.format == first.format ? first : common_of(product, segment);
  }
  int64_t first_row(int64_t block) const { return block * product.rows / blocks; }
  // What begins at a panel, counted through the blocks, of at most `count`, those of gates counted.
  Next at(int64_t panel, int64_t count) const {
    const PanelAt place = locate(panel % panels);
    const OctavoSegment& segment = product.segments[place.segment];
    return next_at(segment, common(segment).layout, place.panel, count, product.gating);
  }
};

void run_pieces(Team& team, int thread, const Strips& all, int64_t begin, int64_t end, Next last) {
  const Product& product = all.product;
  while (begin < end) {
    const int64_t block = begin / all.panels, row = all.first_row(block);
    const PanelAt at = all.locate(begin % all.panels);
    const int64_t inside = panel_count(product.segments[at.segment].rows) - at.panel;
    const int64_t count = end - begin < inside ? end - begin : inside;
    begin += count;
    run_strip(team, thread, product, all.common(product.segments[at.segment]), at, static_cast<int>(count), row,
              all.first_row(block + 1) - row, begin < end ? all.at(begin, end - begin) : last);
  }
}

} // namespace

void all_rows(Team& team, const Product& product) {
  const int64_t panels = panels_of(product);
  if (panels == 0) return;
  const Strips all{product, panels, row_blocks(team, product, panels), all_take_all(product),
                   common_of(product, product.segments[0])};
  const int64_t count = all.blocks * panels;
  team.parallel_runs(count, strip_panels(product), [&](int64_t begin, int64_t end, int thread) {
    const int64_t first = team.run_start(count, thread), own_end = team.run_start(count, thread + 1);
    const bool goes_on = begin >= first && end < own_end;
    const Next next = goes_on         ? all.at(end, own_end - end)
                      : product.after ? first_of(*product.after, team, thread)
                                      : Next{};
    run_pieces(team, thread, all, begin, end, next);
  });
}

bool all_rows_of(Team& team, int thread, const Product& product, int64_t row, int64_t rows) {
  const int64_t panels = panels_of(product), most = strip_panels(product);
  if (panels == 0) return false;
  const OctavoSegment& segment = product.segments[0];
  const Common common = common_of(product, segment);
  for (int64_t panel = 0; panel < panels; panel += most) {
    const PanelAt at{0, panel, 0};
    const int64_t left = panels - panel;
    const Next next = left > most ? next_at(segment, common.layout, panel + most, left - most, product.gating) : Next{};
    run_strip(team, thread, product, common, at, static_cast<int>(left < most ? left : most), row, rows, next);
  }
  return true;
}

const OctavoInstruction* product_after(const OctavoInstruction& instruction, const OctavoProgram& program) {
  const auto is_product = [](const OctavoInstruction& code) {
    return code.opcode == OCTAVO_LINEAR || code.opcode == OCTAVO_GATED_LINEAR;
  };
  const OctavoInstruction* const end = program.code + program.count;
  for (const OctavoInstruction* next = &instruction + 1; next < end; ++next)
    if (is_product(*next)) return next;
  for (const OctavoInstruction* next = program.code; next <= &instruction; ++next)
    if (is_product(*next)) return next;
  return nullptr;
}

bool find_gating(const OctavoSegment* segments, int count, int64_t width, Gating& gating) {
  if (count > 2 || is_ordered(segments[0].format) || width % kLanes != 0) return false;
  if (segments[0].rows != (count == 1 ? 2 * width : width) || segments[count - 1].format != segments[0].format)
    return false;
  gating.gate = gating.up = segments[0];
  gating.gate.rows = gating.up.rows = static_cast<int32_t>(width);
  gating.up.data = count == 2 ? segments[1].data : strip_at(segments[0], width / kLanes).panels;
  return true;
}

} // namespace octavo
