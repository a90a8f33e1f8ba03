// Registers of two dimensions, as AMX has: eight of up to 16 rows of 64 bytes, and products of two that a third takes up.
//
// One loop over tiles is written once and takes its registers as a class:
//
//   HardwareTiles   Intel's instructions; only where has_tiles()
//   EmulatedTiles   what they are defined to do, in plain C++: so that the loop is tested on processors without them
//
//   shape(rows, inner)        results are `rows` high; factors hold `inner` words of 4 bytes a row; clears all
//                             when anything changes
//   zero<C>()  load<T>(p, stride)  store<C>(p, stride)     stride: bytes from row to row
//   add_bf16<C, A, B>()       C += A * B of pairs of bf16
//   add_bytes<C, A, B, Signs> C += A * B of fours of bytes, in 32 bits
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS and TDPBSSD/TDPBSUD/TDPBUSD/
// TDPBUUD: of a row's pairs of bf16 the first and the second are two chains of fused multiply-adds from 0, in order;
// then C + (first + second). Every step rounds to nearest even; subnormals count as 0 and become 0.
#pragma once
#include <stdint.h>
#include <string.h>

namespace octavo {

// Whether the processor has tiles of bf16 and bytes and the operating system lets this process use them. Asks once for
// the permission: ARCH_REQ_XCOMP_PERM, for all threads of the process.
bool has_tiles();

constexpr int kTileHeight = 16; // rows of a register
constexpr int kTileBytes = 64;  // of a row
constexpr int kTileInner = 16;  // words of 4 bytes of a row

// What the registers hold: results 0 to 3, inputs (left factors) 4 and 5, weights (right factors) 6 and 7. Results 2, 3
// and inputs 5 belong to a second block of rows.
struct TileShape {
  int rows, more; // of the first and of the second block
  int inner;      // words

  bool operator==(const TileShape& other) const {
    return rows == other.rows && more == other.more && inner == other.inner;
  }
  int rows_of(int tile) const {
    if (tile >= 6) return inner;
    return tile == 2 || tile == 3 || tile == 5 ? more : rows;
  }
  int bytes_of(int tile) const { return tile == 4 || tile == 5 ? 4 * inner : kTileBytes; }
};

// Which factors are signed.
enum class TileSigns { both, inputs, weights, none };

class EmulatedTiles {
public:
  void shape(const TileShape& next) {
    if (next == shape_) return;
    shape_ = next;
    memset(data_, 0, sizeof data_);
  }
  template <int T> void zero() { memset(data_[T], 0, sizeof data_[T]); }
  template <int T> void load(const void* from, int64_t stride) {
    const auto* p = static_cast<const uint8_t*>(from);
    zero<T>();
    for (int r = 0; r < shape_.rows_of(T); ++r)
      memcpy(data_[T][r], p + r * stride, static_cast<size_t>(shape_.bytes_of(T)));
  }
  template <int T> void store(void* to, int64_t stride) const {
    auto* p = static_cast<uint8_t*>(to);
    for (int r = 0; r < shape_.rows_of(T); ++r)
      memcpy(p + r * stride, data_[T][r], static_cast<size_t>(shape_.bytes_of(T)));
  }
  template <int C, int A, int B> void add_bf16() { add_pairs(data_[C], data_[A], data_[B], shape_.rows_of(C)); }
  template <int C, int A, int B, TileSigns Signs> void add_bytes() {
    constexpr bool kInputs = Signs == TileSigns::both || Signs == TileSigns::inputs;
    constexpr bool kWeights = Signs == TileSigns::both || Signs == TileSigns::weights;
    add_fours(data_[C], data_[A], data_[B], shape_.rows_of(C), kInputs, kWeights);
  }

private:
  using Data = uint8_t[kTileHeight][kTileBytes];
  void add_pairs(Data& to, const Data& inputs, const Data& weights, int rows) const;
  void add_fours(Data& to, const Data& inputs, const Data& weights, int rows, bool signed_inputs,
                 bool signed_weights) const;

  TileShape shape_{0, 0, 0};
  Data data_[8];
};

#if defined(__x86_64__)
// Written as instructions, so that compilers need not be told of AMX.
class HardwareTiles {
public:
  HardwareTiles() = default;
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;
  ~HardwareTiles() { asm volatile("tilerelease" ::: "memory"); } // a core whose tiles are in use does not sleep deeply

  void shape(const TileShape& next) {
    if (next == shape_) return;
    shape_ = next;
    struct alignas(64) Configuration {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } configuration = {};
    static_assert(sizeof(Configuration) == 64, "what LDTILECFG reads");
    configuration.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      configuration.rows[tile] = static_cast<uint8_t>(shape_.rows_of(tile));
      configuration.bytes[tile] = static_cast<uint16_t>(shape_.rows_of(tile) ? shape_.bytes_of(tile) : 0);
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  }
  template <int T> void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
  template <int T> void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T> void store(void* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B> void add_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B, TileSigns Signs> void add_bytes() {
    if constexpr (Signs == TileSigns::both)
      asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    else if constexpr (Signs == TileSigns::inputs)
      asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    else if constexpr (Signs == TileSigns::weights)
      asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    else
      asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }

private:
  TileShape shape_{0, 0, 0};
};
#endif

// Calls body with the registers of this machine, or with emulated ones where it has none: a library that needs tiles
// is never chosen there, but tests load it.
template <class Body> void with_tiles(Body&& body) {
#if defined(__x86_64__)
  if (has_tiles()) {
    HardwareTiles tiles;
    return body(tiles);
  }
#endif
  EmulatedTiles tiles;
  body(tiles);
}

} // namespace octavo
