// Reads one GGUF block of one row into codes and scales, lane by lane, and writes a unit's codes as bit planes.
#pragma once
#include <cstdint>

#include "formats.h"

namespace octavo {

// The blocks of 16 rows at the same inputs. Codes are unsigned (Q8_0: the signed byte's bits).
struct BlockLanes {
  uint8_t code[kSuperblock][kLanes];
  uint16_t d[kLanes];    // f16; MXFP4: the exponent byte
  uint16_t dmin[kLanes]; // f16
  uint8_t scale[16][kLanes];
  uint8_t min[8][kLanes];
};

void read_block(int32_t format, const uint8_t* block, int lane, BlockLanes& lanes);

// Writes the codes of one unit into the low plane and, where the format has one, the high plane.
void write_unit(const Format& format, const uint8_t (*code)[kLanes], uint8_t* low, uint8_t* high);

} // namespace octavo
