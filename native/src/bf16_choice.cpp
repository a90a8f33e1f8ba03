// The choice is made by what the processor does, not by who made it: how fast, and with which bits.
#include "bf16_choice.h"

#include <atomic>

#include "octavo/abi.h"

#if defined(OCTAVO_ISA_AVX512)
#include <cpuid.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "linear_codes.h"
#endif

namespace octavo {
namespace {

std::atomic<int32_t> forced{-1};
Bf16Facts known{};

#if defined(OCTAVO_ISA_AVX512)
// Processors do as much in pairs as with floats, half or twice of it: measured ratios lie clear of this one.
constexpr double kWorth = 1.4;
constexpr int kChains = 24;
constexpr int kTurns = 200; // of a run: one to four microseconds
constexpr int kRounds = 16;
constexpr int kVectors = 384; // of a kind

// Whether the processor has VDPBF16PS: this library does not need it.
bool has_pairs() {
  constexpr uint32_t kBf16 = 1u << 5;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && eax >= 1 &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kBf16) != 0;
}

// Seconds of one run.
template <bool Pairs> double time_of_run(Vec16 factor) {
  Vec16 sums[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) sums[i] = zero(); // loops that stay loops keep sums in memory
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) {
      sums[i] = Pairs ? add_pairs(sums[i], factor, factor) : fma(factor, factor, sums[i]);
      asm volatile("" : "+v"(sums[i].v)); // each at its turn
    }
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
}

void probe_rates(Bf16Facts& facts) {
  const Vec16 factor = set1(1.0f);
  double floats = 1.0, pairs = 1.0;
  for (int round = 0; round < kRounds; ++round) { // the first ones raise the clock
    const double a = time_of_run<false>(factor), b = time_of_run<true>(factor);
    floats = a < floats ? a : floats;
    pairs = b < pairs ? b : pairs;
  }
  constexpr double kProducts = static_cast<double>(kTurns) * kChains * kLanes;
  facts.floats = 2 * kProducts / floats;
  facts.pairs = 4 * kProducts / pairs;
}

// Numbers for the comparison: splitmix64.
uint32_t next_bits(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(z >> 32);
}

enum Kind { ordinary, tiny, subnormal, any, edge, kKinds };

uint32_t bits_of_kind(int kind, uint64_t& state) {
  // Zeros, the least and the largest numbers, infinities, NaN and halves of rounding steps, of float's upper half.
  static constexpr uint16_t kEdges[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x3f80, 0xbf80, 0x3f81,
                                        0x3b80, 0xbb80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x2000, 0x1fff};
  const uint32_t word = next_bits(state);
  switch (kind) {
  case ordinary: return (word & 0x81ffffffu) + 0x3e000000u; // 2^-3 to 2
  case tiny: return (word & 0x9fffffffu) + 0x14000000u;     // products about 2^-126
  case subnormal: return word & 0x81ffffffu;
  case any: return word;
  default:
    return uint32_t{kEdges[word % (sizeof kEdges / sizeof *kEdges)]} << 16 | ((word & 0x30000000u) ? 0 : word >> 16);
  }
}

// Not a number is not a number: nobody looks at which.
bool differ(Vec16 a, Vec16 b) {
  const __mmask16 numbers = _mm512_cmp_ps_mask(a.v, a.v, _CMP_ORD_Q) | _mm512_cmp_ps_mask(b.v, b.v, _CMP_ORD_Q);
  return _mm512_mask_cmpneq_epi32_mask(numbers, _mm512_castps_si512(a.v), _mm512_castps_si512(b.v)) != 0;
}

__attribute__((noinline)) Vec16 by_floats(const uint32_t* a, const uint32_t* b, const float* sum) {
  const auto load_part = [](const uint32_t* words, bool odd) {
    const Int16 both = load_words(reinterpret_cast<const uint8_t*>(words));
    return bits_as_float(odd ? keep_bits(both, 0xffff0000u) : shift_right<-16>(both));
  };
  float result[kLanes];
  const FlushSubnormals flush(true);
  const Vec16 odd = fma(load_part(a, true), load_part(b, true), load(sum));
  store(result, fma(load_part(a, false), load_part(b, false), odd));
  asm volatile("" : : "r"(result) : "memory"); // computed by now
  return load(result);
}

bool compare_bits() {
  uint64_t state = 1;
  for (int kind = 0; kind < kKinds; ++kind)
    for (int turn = 0; turn < kVectors; ++turn) {
      alignas(64) uint32_t words[3][kLanes];
      for (int i = 0; i < kLanes; ++i) {
        for (int row = 0; row < 2; ++row)
          words[row][i] = bits_of_kind(kind, state) >> 16 | (bits_of_kind(kind, state) & 0xffff0000u);
        words[2][i] = bits_of_kind(kind == tiny ? subnormal : kind, state);
      }
      float sum[kLanes];
      memcpy(sum, words[2], sizeof sum);
      const auto as_floats = [&](int row) { return bits_as_float(load_words(reinterpret_cast<uint8_t*>(words[row]))); };
      if (differ(by_floats(words[0], words[1], sum), add_pairs(load(sum), as_floats(0), as_floats(1)))) return false;
    }
  return true;
}

void find_facts() {
  known.has_pairs = has_pairs();
  if (!known.has_pairs) return;
  known.same_bits = compare_bits();
  probe_rates(known);
}
#endif

} // namespace

const Bf16Facts& bf16_facts() {
#if defined(OCTAVO_ISA_AVX512)
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_facts);
#endif
  return known;
}

bool choose_pairs() {
#if defined(OCTAVO_ISA_AVX512)
  const Bf16Facts& facts = bf16_facts();
  const int32_t way = forced.load(std::memory_order_relaxed);
  return facts.has_pairs && (way < 0 ? facts.pairs > kWorth * facts.floats : way == 1);
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
  return forced.load(std::memory_order_relaxed) != 0; // two multiply-adds a pair, like floats, but nothing is widened
#else
  return false;
#endif
}

void force_pairs(int32_t way) { forced.store(way, std::memory_order_relaxed); }

} // namespace octavo

extern "C" {

void octavo_bf16_facts(double* facts) {
  const octavo::Bf16Facts& known = octavo::bf16_facts();
  facts[0] = known.floats;
  facts[1] = known.pairs;
  facts[2] = known.same_bits ? 1.0 : 0.0;
}

} // extern "C"
