// Products with Hadamard matrices, held in registers.
#pragma once
#include "simd/vec.h"

namespace octavo {

#if defined(OCTAVO_ISA_AVX512)
// Sums and differences of lanes that are `Apart` apart, each in its place: half of the shuffles of interleaving.
template <int Apart, int Vectors> inline void butterflies(Vec16 (&x)[Vectors]) {
  const __mmask16 right = Apart == 8 ? 0xff00 : Apart == 4 ? 0xf0f0 : Apart == 2 ? 0xcccc : 0xaaaa;
  const __m512 sign = _mm512_mask_blend_ps(right, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
#pragma GCC unroll 16
  for (int i = 0; i < Vectors; ++i) {
    const __m512 v = x[i].v;
    const __m512 other = Apart == 8   ? _mm512_shuffle_f32x4(v, v, 0x4e)
                         : Apart == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1)
                         : Apart == 2 ? _mm512_permute_ps(v, 0x4e)
                                      : _mm512_permute_ps(v, 0xb1);
    x[i].v = _mm512_fmadd_ps(v, sign, other); // a product with 1 or -1 is exact
  }
}
#endif

// x = H x in place, H the Hadamard matrix of Sylvester's order, not normalized. Each stage takes halves and interleaves
// sums and differences (Pease 1968, doi:10.1145/321450.321457): the additions are those of butterflies of elements that
// are half, a quarter, ... of all apart, in this order. `Vectors`: of 16 elements.
template <int Vectors> inline void hadamard(Vec16 (&x)[Vectors]) {
#if defined(OCTAVO_ISA_AVX512)
#pragma GCC unroll 8
  for (int apart = Vectors / 2; apart; apart /= 2)
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; ++i) {
      if (i & apart) continue;
      const Vec16 left = x[i], right = x[i + apart];
      x[i] = left + right;
      x[i + apart] = left - right;
    }
  butterflies<8>(x);
  butterflies<4>(x);
  butterflies<2>(x);
  butterflies<1>(x);
#else
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
#endif
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
