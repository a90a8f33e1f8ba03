// Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): where a token's one vector lies in the cache.
//
// A layer's part of a page is [block_size][row bytes], a token's row its normed latent of `rank` elements and the
// rotated key of `rope` elements that all heads share, encoded as one; then the scales, [groups][block_size]. The latent
// is key and value at once, so it is kept once. Codes of int8 have a byte each, of int4 two share one: the lower half is
// the even one. Both are rotated, and in runs that `rank` is a multiple of: so the latent's numbers are those of the
// latent alone.
#pragma once
#include "cache_types.h"

namespace octavo {

struct LatentPlace {
  uint8_t* row;
  uint16_t* scales; // block_size apart

  LatentPlace(const CacheLayer& layer, int32_t slot, int64_t position) {
    const CacheLayout& layout = layer.layout;
    uint8_t* block = layer.block(layer.table(slot)[position / layout.block_size]);
    const int64_t offset = position % layout.block_size;
    row = block + offset * row_bytes(layout);
    scales = reinterpret_cast<uint16_t*>(block + layout.key_scales_at(0)) + offset;
  }

  static int64_t row_bytes(const CacheLayout& layout) {
    return layout.coded ? layout.code_rows() * 4 : layout.key_width * layout.bits / 8;
  }
};

// Sixteen codes, or the last `count` of a row.
template <class Format> inline Vec16 latent_codes(const uint8_t* row, int64_t at, int64_t count) {
  float lanes[16] = {};
  if constexpr (Format::kPerByte == 1) {
    if (count >= 16) {
      for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(row[at + i] - Format::kRaised);
    } else {
      for (int64_t i = 0; i < count; ++i) lanes[i] = static_cast<float>(row[at + i] - Format::kRaised);
    }
  } else if (count >= 16) {
    for (int i = 0; i < 8; ++i) {
      lanes[2 * i] = static_cast<float>((row[at / 2 + i] & 15) - Format::kRaised);
      lanes[2 * i + 1] = static_cast<float>((row[at / 2 + i] >> 4) - Format::kRaised);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      lanes[i] = static_cast<float>((row[(at + i) / 2] >> (at + i) % 2 * 4 & 15) - Format::kRaised);
    }
  }
  return load(lanes);
}

// A row as float32, which is exact: [width], zeros up to a whole vector.
template <class Format> void read_latent(const CacheLayout& layout, const LatentPlace& place, float* out) {
  using Type = typename Format::Type;
  const int64_t width = layout.key_width;
  const auto* row = reinterpret_cast<const Type*>(place.row);
  for (int64_t at = 0; at < width; at += 16) {
    Vec16 values;
    if constexpr (Format::kCoded) {
      values = latent_codes<Format>(place.row, at, width - at);
    } else if (width - at >= 16) {
      values = Format::load16(row + at);
    } else {
      float lanes[16] = {};
      for (int64_t i = 0; at + i < width; ++i) lanes[i] = Format::load_rest(row + at, i);
      values = load(lanes);
    }
    if constexpr (Format::kScaled) {
      const int64_t group = Format::kGrouped ? at / kScaleGroup : 0;
      values = values * set1(from_bf16(place.scales[group * layout.block_size]) * Format::kUnit);
    }
    store(out + at, values);
  }
}

} // namespace octavo
