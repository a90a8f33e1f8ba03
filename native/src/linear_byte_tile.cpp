// Tiles of inputs in 8 bits: one of each kind that a format needs.
#if defined(OCTAVO_VARIANT_AMX)
#include "linear_int_registers.h"
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
#include "linear_int_pairs.h"
#else
#include "linear_int_tile_body.h"
#endif

namespace octavo {

constexpr Coding kBytes = Coding::bytes;
constexpr bool kRaisedCodes = kRaise != 0; // signed ones

template void run_int_tile<kBytes, 32, false, true, false, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, true, false, false, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 16, false, true, false, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 16, true, false, false, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, false, kRaisedCodes, true, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, false, true, false, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, true, false, false, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, false, kRaisedCodes, true, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, true, kRaisedCodes, true, false>(const IntTile&, int, int);

} // namespace octavo
