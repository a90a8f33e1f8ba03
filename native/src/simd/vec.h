// Sixteen floats at a time: the one vector type kernels are written on. Each instruction set brings the same names:
//
//   Vec16                                  sixteen float32 lanes
//   zero() set1(x) load(p) store(p, v)     any alignment; p is float*
//   load_n(p, n) store_n(p, v, n)          the first n lanes, 0 <= n <= 16; other lanes are 0 and not touched in memory
//   load_f16 load_bf16 store_f16 store_bf16 (uint16_t*)
//   load_bf16_pairs(p, even, odd)          32 of them: those at even and those at odd places
//   load_e4m3(p) load_e5m2(p)              uint8_t*: 16 floats of 8 bits, e4m3 times 2^-8, NaN not known
//   zip(even, odd, low, high)              the reverse: two vectors in order
//   + - * /   fma(a, b, c) = a * b + c     one rounding where the hardware has it (scalar: two)
//   max(a, b) min(a, b)                    b when a lane of either is NaN (NEON: NaN)
//   sqrt(v) round_int(v)                   to nearest even
//   round_int(v, rest)                     likewise; rest = v - round_int(v)
//   select_less(a, b, x, y)                lane by lane a < b ? x : y
//   keep_range(v, first, last, fill)       lanes outside of first <= lane < last become fill
//   scale2(v, n)                           v * 2^n, n integral, |n| <= 252
//   sum(v) largest(v)                      over lanes, in the order 8, 4, 2, 1 apart
//   any_greater(a, b)                      16 bits, bit i: a[i] > b[i]
//   sum_bytes64(p)                         sum of 64 bytes
//   kTileRows, kTileVectors                accumulators that fit the register file: rows x vectors
#pragma once

#if defined(OCTAVO_ISA_AVX512)
#include "simd/vec_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "simd/vec_avx2.h"
#elif defined(OCTAVO_ISA_NEON)
#include "simd/vec_neon.h"
#else
#include "simd/vec_scalar.h"
#endif
