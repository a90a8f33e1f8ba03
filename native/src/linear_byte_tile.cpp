// Products of many rows with inputs in 8 bits: one of each kind that a format needs.
#if defined(OCTAVO_VARIANT_AMX)
#include "linear_byte_registers.h"
#elif defined(OCTAVO_ISA_AVX512)
#include "linear_byte_tile_body.h"
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
#include "linear_int_pairs.h"
#else
#include "linear_int_tile_body.h"
#endif

namespace octavo {

#if defined(OCTAVO_ISA_AVX512)
template void run_byte_rows<32, false, true>(const ByteRows&, int64_t, int, const Results&);
template void run_byte_rows<32, true, true>(const ByteRows&, int64_t, int, const Results&);
template void run_byte_rows<16, false, true>(const ByteRows&, int64_t, int, const Results&);
template void run_byte_rows<16, true, true>(const ByteRows&, int64_t, int, const Results&);
template void run_byte_rows<32, false, false>(const ByteRows&, int64_t, int, const Results&);
template void run_byte_rows<32, true, false>(const ByteRows&, int64_t, int, const Results&);
#else
constexpr Coding kBytes = Coding::bytes;
constexpr bool kRaisedCodes = kRaise != 0; // signed ones

template void run_int_tile<kBytes, 32, false, true, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, true, false, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 16, false, true, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 16, true, false, false>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, false, kRaisedCodes, true>(const IntTile&, int, int);
template void run_int_tile<kBytes, 32, true, kRaisedCodes, true>(const IntTile&, int, int);
#endif

} // namespace octavo
