// How one layer's part of a page is laid out. For each kv head: its keys [key rows][block_size], transposed so that a
// vector's lanes are consecutive keys; its values [block_size][value row]; the scales of the keys [groups][block_size],
// then those of the values. Heads follow each other, so a task, which works for one head, reads one stretch. A layer's
// part is padded to 64 bytes. Scales are bf16.
//
// bf16 keys stand in pairs of dimensions, [key_width / 2][block_size][2]: a register full of them is widened in two
// steps. Codes of int8 and int4 stand by fours, as dot products of bytes take them (simd/coded_dot.h), all raised to
// unsigned numbers (by 128 and 8):
//
//   int8: keys [key_width / 4][block_size][4 dimensions], values [block_size / 4][value_width][4 tokens]
//   int4: keys [key_width / 8][block_size][4 bytes]: low halves are the first four of eight dimensions, high halves the
//         others; values [block_size / 4][value_width / 32][16][4 tokens]: low halves are the first 16 of 32 dimensions
//
// Widths of codes are rounded up to whole steps and registers.
#pragma once
#include <stdint.h>

#include "octavo/instruction.h"

namespace octavo {

constexpr int64_t kScaleGroup = 32; // elements that share a scale of int4

struct CacheLayout {
  int64_t key_width, value_width, block_size;
  int64_t bits;      // of an element
  bool pairs, coded; // coded: by fours, and rotated
  int64_t head_bytes = 0, layer_bytes = 0;

  CacheLayout(int32_t type, int64_t kv_heads, int64_t key_width, int64_t value_width, int64_t block_size)
      : key_width(key_width), value_width(value_width), block_size(block_size), bits(bits_of_type(type)),
        pairs(type == OCTAVO_CACHE_BF16), coded(type == OCTAVO_CACHE_INT8 || type == OCTAVO_CACHE_INT4), type_(type) {
    head_bytes = value_scales_at(0) + groups(value_width) * block_size * 2;
    layer_bytes = (keys_at(kv_heads) + 63) / 64 * 64;
  }

  // From the start of the layer's part, bytes.
  int64_t keys_at(int64_t head) const { return head * head_bytes; }
  int64_t values_at(int64_t head) const {
    return keys_at(head) + (coded ? code_rows() * 4 : key_rows() * bits / 8) * block_size;
  }
  int64_t key_scales_at(int64_t head) const {
    return values_at(head) + (coded ? (block_size + 3) / 4 * value_quad() : block_size * value_row());
  }
  int64_t value_scales_at(int64_t head) const { return key_scales_at(head) + groups(key_width) * block_size * 2; }

  int64_t key_rows() const { return pairs ? (key_width + 1) / 2 * 2 : key_width; }
  int64_t value_row() const { return value_width * bits / 8; } // bytes of a token's values

  // Of coded types: rows of 4 bytes a key; bytes of the values of four tokens.
  int64_t code_rows() const { return (key_width * bits + 31) / 32; }
  int64_t value_quad() const { return bits == 8 ? (value_width + 15) / 16 * 64 : (value_width + 31) / 32 * 64; }

  // Scales of a token's `width` elements.
  int64_t groups(int64_t width) const {
    if (type_ == OCTAVO_CACHE_INT4) return (width + kScaleGroup - 1) / kScaleGroup;
    return type_ == OCTAVO_CACHE_INT8 || type_ == OCTAVO_CACHE_FP8_E4M3 ? 1 : 0;
  }

private:
  static int64_t bits_of_type(int32_t type) {
    switch (type) {
    case OCTAVO_CACHE_F32: return 32;
    case OCTAVO_CACHE_F16:
    case OCTAVO_CACHE_BF16: return 16;
    case OCTAVO_CACHE_INT4: return 4;
    default: return 8;
    }
  }

  int32_t type_;
};

// One layer of one group in the pool. Instructions on the cache tell in i[5], i[8] and i[9] where it is.
struct CacheLayer {
  CacheLayout layout;
  const OctavoCache& cache;
  const int32_t* tables; // of the group: [slots][max_blocks]
  int64_t layer_at;

  CacheLayer(const OctavoCache& cache, const OctavoInstruction& code, int64_t kv_heads, int64_t key_width,
             int64_t value_width)
      : layout(code.i[8], kv_heads, key_width, value_width, cache.block_size), cache(cache),
        tables(cache.tables + static_cast<int64_t>(code.i[5]) * cache.slots * cache.max_blocks),
        layer_at(static_cast<int64_t>(code.i[9]) * 64) {}

  const int32_t* table(int32_t slot) const { return tables + static_cast<int64_t>(slot) * cache.max_blocks; }
  uint8_t* block(int32_t number) const { return cache.pool + number * cache.page_bytes + layer_at; }
};

} // namespace octavo
