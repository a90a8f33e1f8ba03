// Tiles of inputs in 16 bits: one of each kind that a format needs.
#if defined(OCTAVO_VARIANT_AMX)
#include "linear_int_registers.h"
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
#include "linear_int_pairs.h"
#else
#include "linear_int_tile_body.h"
#endif

namespace octavo {

constexpr Coding kWords = Coding::words;

template void run_int_tile<kWords, 32, false, true, false>(const IntTile&, int, int);
template void run_int_tile<kWords, 32, true, false, false>(const IntTile&, int, int);
template void run_int_tile<kWords, 16, false, true, false>(const IntTile&, int, int);
template void run_int_tile<kWords, 16, true, false, false>(const IntTile&, int, int);
template void run_int_tile<kWords, 32, false, false, true>(const IntTile&, int, int);
template void run_int_tile<kWords, 32, true, false, true>(const IntTile&, int, int);

} // namespace octavo
