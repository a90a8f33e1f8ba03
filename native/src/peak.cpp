// How fast the team multiplies what registers hold: the ceiling that products of matrices are measured against.
#include "bf16_choice.h"
#include "linear_dot.h"
#include "octavo/abi.h"
#include "simd/vec.h"
#include "thread_team.h"

namespace octavo {
namespace {

// Independent sums, enough to hide an instruction's latency, few enough for the registers.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kChains = 16;
#else
constexpr int kChains = 6;
#endif
constexpr int64_t kPieces = 8; // a thread; one may be late

float multiply_floats(int64_t turns, float factor) {
  Vec16 sums[kChains];
  for (Vec16& each : sums) each = zero();
  const Vec16 a = set1(factor), b = set1(1.0f - factor);
  for (int64_t turn = 0; turn < turns; ++turn)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = fma(a, b, sums[i]);
  float total = 0.0f;
  for (const Vec16& each : sums) total += sum(each);
  return total;
}

float multiply_pairs([[maybe_unused]] int64_t turns, [[maybe_unused]] float factor) {
#if defined(OCTAVO_ISA_AVX512)
  Vec16 sums[kChains];
  for (Vec16& each : sums) each = zero();
  const Vec16 a = set1(factor), b = set1(1.0f - factor);
  for (int64_t turn = 0; turn < turns; ++turn)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = add_pairs(sums[i], a, b);
  float total = 0.0f;
  for (const Vec16& each : sums) total += sum(each);
  return total;
#else
  return 0.0f;
#endif
}

float multiply_codes(int64_t turns, int32_t inputs) {
  Int16 sums[kChains];
  for (Int16& each : sums) each = set_words(0);
  const Int16 codes = set_words(0x01020304);
  for (int64_t turn = 0; turn < turns; ++turn)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = dot<false>(sums[i], codes, inputs);
  float total = 0.0f;
  for (const Int16& each : sums) total += sum(to_float(each));
  return total;
}

} // namespace
} // namespace octavo

int64_t octavo_multiply(void* team, int32_t kind, int64_t turns) {
  constexpr int32_t kCodes = 1, kPairs = 2;
  if (kind == kPairs && !octavo::bf16_facts().has_pairs) return 0;
  octavo::Team& workers = *static_cast<octavo::Team*>(team);
  const int64_t pieces = workers.threads() * octavo::kPieces;
  workers.parallel(pieces, [&](int64_t piece, int) {
    const int32_t varying = static_cast<int32_t>(piece & 3);
    const float factor = static_cast<float>(varying) * 0.25f;
    volatile float kept = kind == kCodes   ? octavo::multiply_codes(turns, varying)
                          : kind == kPairs ? octavo::multiply_pairs(turns, factor)
                                           : octavo::multiply_floats(turns, factor);
    (void)kept;
  });
  return pieces * turns * octavo::kChains * octavo::kLanes * (kind == kCodes ? 8 : kind == kPairs ? 4 : 2);
}
