// Rounds rows to codes of 4 bits with a step and a start for each 32 inputs and one scale a row (OCTAVO_INT4S).
//
// The row is scaled so that its largest number is 127, and taken in sixteenths. For each group the step that spans it
// and the next smaller ones are tried, each at several starts; the choice with the least squared error is kept, the
// first of equal ones. All numbers but scale and sixteenths are small integers, exact as floats: sums of them have no
// order, and octavo/quantization/stepped.py finds the same bits.
#pragma once
#include <stdint.h>

namespace octavo {

// y: [cols], a multiple of 32; overwritten. out: a stored row, see instruction.h.
void write_stepped_row(float* y, int64_t cols, uint8_t* out);

} // namespace octavo
