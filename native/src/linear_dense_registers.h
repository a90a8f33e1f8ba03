// The tile of linear_dense_tile.h in tile registers: up to 32 rows and two panels, four results at a time.
//
// A result is taken up by one step of 32 inputs after the other, whatever the rows beside it: few rows and many have the
// same bits, and sums that wait in memory between groups of inputs stay as they are.
#pragma once
#include "linear_dense_tile.h"
#include "simd/vec.h"
#include "tile_registers.h"

namespace octavo {

// The last words of a panel, filled with 0 to a whole step.
inline const uint8_t* fill_step(const uint8_t* weights, int64_t words, uint8_t* out) {
  memset(out, 0, kTileInner * kTileBytes);
  memcpy(out, weights, static_cast<size_t>(words) * kTileBytes);
  return out;
}

template <bool Tall, int Panels, class Registers> void multiply_steps(Registers& tiles, const DenseTile& t) {
  const auto* inputs = static_cast<const uint8_t*>(t.inputs);
  const int64_t stride = 4 * t.input_words, lines = (kTileInner * t.ahead_bytes + kTileBytes - 1) / kTileBytes;
  for (int64_t k = 0; k < t.count; k += kTileInner) {
    alignas(64) uint8_t last[2][kTileInner * kTileBytes];
    const uint8_t* weights[2];
    for (int p = 0; p < Panels; ++p) {
      weights[p] = t.weights + p * t.panel_stride + k * kTileBytes;
      if (t.count - k < kTileInner) weights[p] = fill_step(weights[p], t.count - k, last[p]);
      for (int64_t line = 0; line < lines; ++line)
        __builtin_prefetch(t.ahead + p * t.panel_bytes + k * t.ahead_bytes + line * kTileBytes, 0, 2);
    }
    tiles.template load<4>(inputs + 4 * k, stride);
    tiles.template load<6>(weights[0], kTileBytes);
    tiles.template add_bf16<0, 4, 6>();
    if constexpr (Panels == 2) {
      tiles.template load<7>(weights[1], kTileBytes);
      tiles.template add_bf16<1, 4, 7>();
    }
    if constexpr (Tall) {
      tiles.template load<5>(inputs + kTileHeight * stride + 4 * k, stride);
      tiles.template add_bf16<2, 5, 6>();
      if constexpr (Panels == 2) tiles.template add_bf16<3, 5, 7>();
    }
  }
}

// The result of a block of rows and a panel from `from` on, or 0.
template <int C, int Panels, class Registers> void open_result(Registers& tiles, const float* from) {
  const int64_t offset = (C / 2 * kTileHeight * Panels + C % 2) * kLanes;
  if (from)
    tiles.template load<C>(from + offset, Panels * kTileBytes);
  else
    tiles.template zero<C>();
}

template <int C, class Registers> void close_result(const Registers& tiles, float* to, int64_t stride) {
  tiles.template store<C>(to + C / 2 * kTileHeight * stride + C % 2 * kLanes, 4 * stride);
}

template <bool Tall, int Panels, class Registers> void run_registers(Registers& tiles, const DenseTile& t, int rows) {
  open_result<0, Panels>(tiles, t.total);
  if constexpr (Panels == 2) open_result<1, Panels>(tiles, t.total);
  if constexpr (Tall) open_result<2, Panels>(tiles, t.total);
  if constexpr (Tall && Panels == 2) open_result<3, Panels>(tiles, t.total);
  multiply_steps<Tall, Panels>(tiles, t);
  alignas(64) float made[2 * kTileHeight * Panels * kLanes];
  const bool as_it_is = !t.bias && !t.residual; // else it waits: out may be the residual
  float* to = as_it_is ? t.out : made;
  const int64_t stride = as_it_is ? t.row_stride : Panels * kLanes;
  close_result<0>(tiles, to, stride);
  if constexpr (Panels == 2) close_result<1>(tiles, to, stride);
  if constexpr (Tall) close_result<2>(tiles, to, stride);
  if constexpr (Tall && Panels == 2) close_result<3>(tiles, to, stride);
  if (as_it_is) return;
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < Panels; ++p) {
      Vec16 value = load(made + (r * Panels + p) * kLanes);
      if (t.bias) value = value + load(t.bias + p * kLanes);
      if (t.residual) value = value + load(t.residual + r * t.row_stride + p * kLanes);
      store(t.out + r * t.row_stride + p * kLanes, value);
    }
}

// weights: words of two inputs in bf16; rows <= kBf16Tall, panels <= 2.
template <class Registers> void run_register_tile(Registers& tiles, const DenseTile& tile, int rows, int panels) {
  const bool tall = rows > kTileHeight;
  tiles.shape({tall ? kTileHeight : rows, tall ? rows - kTileHeight : 0, kTileInner});
  if (panels == 2) return tall ? run_registers<true, 2>(tiles, tile, rows) : run_registers<false, 2>(tiles, tile, rows);
  return tall ? run_registers<true, 1>(tiles, tile, rows) : run_registers<false, 1>(tiles, tile, rows);
}

} // namespace octavo
