// Products with Hadamard matrices, held in registers.
#pragma once
#include "simd/vec.h"

namespace octavo {

// x = H x in place, H the Hadamard matrix of Sylvester's order, not normalized. Each stage takes halves and interleaves
// sums and differences (Pease 1968, doi:10.1145/321450.321457): the additions are those of butterflies of elements that
// are half, a quarter, ... of all apart, in this order. `Vectors`: of 16 elements.
template <int Vectors> inline void hadamard(Vec16 (&x)[Vectors]) {
#pragma GCC unroll 8
  for (int stage = 1; stage < 16 * Vectors; stage *= 2) {
    Vec16 to[Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Vectors / 2; ++i) {
      const Vec16 left = x[i], right = x[i + Vectors / 2];
      zip(left + right, left - right, to[2 * i], to[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; ++i) x[i] = to[i];
  }
}

template <int Vectors> inline void rotate_run(float* x) {
  Vec16 all[Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Vectors; ++i) all[i] = load(x + 16 * i);
  hadamard(all);
#pragma GCC unroll 16
  for (int i = 0; i < Vectors; ++i) store(x + 16 * i, all[i]);
}

} // namespace octavo
