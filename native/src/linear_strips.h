// How panels of a product's segments are counted, and cut into strips.
#pragma once
#include <stdint.h>

#include "formats.h"
#include "octavo/instruction.h"

namespace octavo {

// Of a product's panels, counted through its segments.
struct PanelAt {
  int segment;
  int64_t panel;        // in the segment
  int64_t first_output; // the column of the segment's first row
};

inline int64_t all_panels(const OctavoSegment* segments, int count) {
  int64_t panels = 0;
  for (int s = 0; s < count; ++s) panels += panel_count(segments[s].rows);
  return panels;
}

inline PanelAt locate(const OctavoSegment* segments, int64_t panel) {
  PanelAt at{0, panel, 0};
  for (int64_t here; at.panel >= (here = panel_count(segments[at.segment].rows)); ++at.segment) {
    at.panel -= here;
    at.first_output += segments[at.segment].rows;
  }
  return at;
}

// Strips of `widest` panels, then of fewer for what is left.
inline int64_t strip_count(int64_t panels, int widest) {
  int64_t count = panels / widest;
  for (int64_t left = panels % widest; left; left &= left - 1) ++count;
  return count;
}

struct StripRange {
  int64_t panel;
  int panels;
};

inline StripRange strip_of(int64_t panels, int widest, int64_t index) {
  int64_t panel = panels / widest * widest;
  if (index < panels / widest) return {index * widest, widest};
  int64_t after = index - panels / widest;
  for (int size = widest / 2; size; size /= 2) {
    if (!((panels - panel) & size)) continue;
    if (after-- == 0) return {panel, size};
    panel += size;
  }
  return {panels, 0};
}

} // namespace octavo
