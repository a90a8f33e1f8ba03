// Whether this CPU can run this library. Compiled for the baseline of the architecture, so that any CPU can ask.
#include <stdint.h>

#include "octavo/abi.h"

namespace {
constexpr int32_t kAbiVersion = 14;
} // namespace

#if defined(OCTAVO_VARIANT_NEON_DOTPROD) || defined(OCTAVO_VARIANT_NEON_I8MM)
#include <sys/auxv.h>

namespace {

constexpr unsigned long kDotProducts = 1ul << 20;                                      // HWCAP_ASIMDDP
[[maybe_unused]] constexpr unsigned long kByteMatrices = 1ul << 13, kBf16 = 1ul << 14; // HWCAP2_I8MM, HWCAP2_BF16

bool has(unsigned long kind, unsigned long bits) { return (getauxval(kind) & bits) == bits; }

} // namespace
#endif
#if defined(OCTAVO_VARIANT_AMX)
#include <atomic>
#include <sys/syscall.h>
#include <unistd.h>

#include "tile_registers.h"
#endif

#if defined(__x86_64__)
#include <cpuid.h>

namespace {

// Register state the operating system saves: XCR0.
uint64_t saved_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

struct Features {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_ecx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t saved = 0;
};

[[maybe_unused]] Features read_features() {
  Features features;
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) features.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    features.leaf7_ebx = ebx;
    features.leaf7_ecx = ecx;
    features.leaf7_edx = edx;
    const uint32_t most = eax;
    if (most >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) features.leaf7_1_eax = eax;
  }
  if (features.leaf1_ecx & bit_OSXSAVE) features.saved = saved_state();
  return features;
}

bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

[[maybe_unused]] bool has_avx2(const Features& features) {
  constexpr uint64_t kYmm = 0x6;
  return has(features.leaf1_ecx, bit_AVX | bit_FMA | bit_F16C) &&
         has(features.leaf7_ebx, bit_AVX2 | bit_BMI | bit_BMI2) && (features.saved & kYmm) == kYmm;
}

[[maybe_unused]] bool has_avx512(const Features& features) {
  constexpr uint64_t kZmm = 0xe6;
  return has_avx2(features) && has(features.leaf7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
         has(features.leaf7_ecx, bit_AVX512VNNI) && (features.saved & kZmm) == kZmm;
}

[[maybe_unused]] bool has_avx_vnni(const Features& features) {
  constexpr uint32_t kVnni = 1u << 4;
  return has_avx2(features) && has(features.leaf7_1_eax, kVnni);
}

[[maybe_unused]] bool has_amx(const Features& features) {
  constexpr uint32_t kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr uint64_t kTiles = 0x60000;
  return has_avx512(features) && has(features.leaf7_edx, kBf16 | kTile | kInt8) && (features.saved & kTiles) == kTiles;
}

} // namespace

#if defined(OCTAVO_VARIANT_AMX)
namespace octavo {

// The kernel saves tiles only of processes that asked: Documentation/arch/x86/xstate.rst.
bool has_tiles() {
  constexpr long kAskPermission = 0x1023, kTileData = 18;
  static std::atomic<int> known{-1};
  int answer = known.load(std::memory_order_relaxed);
  if (answer < 0) {
    answer = has_amx(read_features()) && syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0 ? 1 : 0;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == 1;
}

} // namespace octavo
#endif
#endif

extern "C" {

int32_t octavo_isa_supported(void) {
#if defined(OCTAVO_VARIANT_AMX)
  return octavo::has_tiles() ? 1 : 0;
#elif defined(OCTAVO_ISA_AVX512)
  return has_avx512(read_features()) ? 1 : 0;
#elif defined(OCTAVO_VARIANT_AVX2_VNNI)
  return has_avx_vnni(read_features()) ? 1 : 0;
#elif defined(OCTAVO_ISA_AVX2)
  return has_avx2(read_features()) ? 1 : 0;
#elif defined(OCTAVO_VARIANT_NEON_DOTPROD)
  return has(AT_HWCAP, kDotProducts) ? 1 : 0;
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
  return has(AT_HWCAP, kDotProducts) && has(AT_HWCAP2, kByteMatrices | kBf16) ? 1 : 0;
#else
  return 1;
#endif
}

const char* octavo_isa(void) {
#if defined(OCTAVO_VARIANT_AMX)
  return "amx";
#elif defined(OCTAVO_ISA_AVX512)
  return "avx512";
#elif defined(OCTAVO_VARIANT_AVX2_VNNI)
  return "avx2_vnni";
#elif defined(OCTAVO_ISA_AVX2)
  return "avx2";
#elif defined(OCTAVO_VARIANT_NEON_DOTPROD)
  return "neon_dotprod";
#elif defined(OCTAVO_VARIANT_NEON_I8MM)
  return "neon_i8mm";
#elif defined(OCTAVO_ISA_NEON)
  return "neon";
#else
  return "scalar";
#endif
}

int32_t octavo_abi_version(void) { return kAbiVersion; }

} // extern "C"
