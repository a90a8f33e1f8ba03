// How one layer's part of a page is laid out: for each kv head its keys [key_width][block_size], transposed so that a
// vector's lanes are consecutive keys, then its values [block_size][value_width]. Heads follow each other, so a task,
// which works for one head, reads one stretch. A layer's part is padded to 64 bytes.
//
// bf16 keys stand in pairs, [key_width / 2][block_size][2]: a shift and a mask widen a register full of them.
#pragma once
#include <stdint.h>

#include "octavo/instruction.h"

namespace octavo {

inline int64_t cache_element_bytes(int32_t format) { return format == OCTAVO_F32 ? 4 : 2; }

struct CacheLayout {
  int64_t key_width, value_width, block_size, element, layer_bytes;
  bool pairs;

  CacheLayout(int32_t format, int64_t kv_heads, int64_t key_width, int64_t value_width, int64_t block_size)
      : key_width(key_width), value_width(value_width), block_size(block_size), element(cache_element_bytes(format)),
        layer_bytes(0), pairs(format == OCTAVO_BF16) {
    layer_bytes = (keys_at(kv_heads) + 63) / 64 * 64;
  }

  // From the start of the layer's part, bytes.
  int64_t keys_at(int64_t head) const { return head * (key_rows() + value_width) * block_size * element; }
  int64_t values_at(int64_t head) const { return keys_at(head) + key_rows() * block_size * element; }
  int64_t key_rows() const { return pairs ? (key_width + 1) / 2 * 2 : key_width; }

  // From the start of a head's keys, elements: dimension d of the key at `offset`.
  int64_t key_at(int64_t d, int64_t offset) const {
    return pairs ? d / 2 * 2 * block_size + 2 * offset + d % 2 : d * block_size + offset;
  }
};

// One layer of one group in the pool.
struct CacheLayer {
  CacheLayout layout;
  const OctavoCache& cache;
  const int32_t* tables; // of the group: [slots][max_blocks]
  int64_t layer_at;

  CacheLayer(const OctavoCache& cache, int32_t group, int32_t index, int64_t kv_heads, int64_t head_dim)
      : layout(cache.format, kv_heads, head_dim, head_dim, cache.block_size), cache(cache),
        tables(cache.tables + static_cast<int64_t>(group) * cache.slots * cache.max_blocks),
        layer_at(index * layout.layer_bytes) {}

  const int32_t* table(int32_t slot) const { return tables + static_cast<int64_t>(slot) * cache.max_blocks; }
  uint8_t* block(int32_t number) const { return cache.pool + number * cache.page_bytes + layer_at; }
};

} // namespace octavo
