// How weights and inputs in bf16 are multiplied: as floats, or two at a time by VDPBF16PS.
#pragma once
#include <stdint.h>

#if defined(OCTAVO_ISA_AVX512)
#include <immintrin.h>
#endif

namespace octavo {

struct Bf16Facts {
  bool has_pairs; // the processor has VDPBF16PS
  bool same_bits; // and it gives the bits that multiply-adds of the odd input, then of the even one, give
  double floats;  // operations a second of one thread by multiply-adds; 0: not probed
  double pairs;   // by VDPBF16PS
};

// Probed once, in less than a millisecond.
const Bf16Facts& bf16_facts();

// Whether VDPBF16PS multiplies, whatever the number of rows.
bool choose_pairs();

// For tests. way: 0 as floats, 1 in pairs where the processor has them, -1 as the facts say.
void force_pairs(int32_t way);

// While it lives numbers below 2^-126 count as 0 and become 0, as they do for VDPBF16PS, which asks no control
// register. What is computed must come out of memory and go there: the compiler keeps to that order alone.
class FlushSubnormals {
public:
#if defined(OCTAVO_ISA_AVX512)
  explicit FlushSubnormals(bool wanted) : wanted_(wanted) {
    if (!wanted) return;
    before_ = _mm_getcsr();
    set(before_ | kFlush);
  }
  ~FlushSubnormals() {
    if (wanted_) set(before_);
  }
  // f() as if it did not live; what f reads and writes is memory, too.
  template <class F> void pause(F&& f) const {
    if (wanted_) set(before_);
    f();
    if (wanted_) set(before_ | kFlush);
  }

private:
  static constexpr uint32_t kFlush = 0x8040; // results, operands
  static void set(uint32_t state) { asm volatile("ldmxcsr %0" : : "m"(state) : "memory"); }
  bool wanted_;
  uint32_t before_ = 0;

public:
#else
  explicit FlushSubnormals(bool) {}
  ~FlushSubnormals() {}
  template <class F> void pause(F&& f) const { f(); }
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

} // namespace octavo
