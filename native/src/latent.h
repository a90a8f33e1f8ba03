// Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): where a token's one vector lies in the cache.
//
// A layer's part of a page is [block_size][width], a token's row its normed latent of `rank` elements and the rotated
// key of `rope` elements that all heads share. The latent is key and value at once, so it is kept once.
#pragma once
#include "cache_layout.h"
#include "kernels.h"

namespace octavo {

struct LatentCache {
  const OctavoCache& cache;
  int64_t rank, rope, width;
  const int32_t* tables; // of the group: [slots][max_blocks]
  int64_t layer_at;

  LatentCache(const OctavoCache& cache, const OctavoInstruction& code, int64_t rank, int64_t rope)
      : cache(cache), rank(rank), rope(rope), width(rank + rope),
        tables(cache.tables + static_cast<int64_t>(code.i[5]) * cache.slots * cache.max_blocks),
        layer_at(static_cast<int64_t>(code.i[9]) * 64) {}

  template <class Type> Type* row(int32_t slot, int64_t position) const {
    const int32_t block = tables[static_cast<int64_t>(slot) * cache.max_blocks + position / cache.block_size];
    return reinterpret_cast<Type*>(cache.pool + block * cache.page_bytes + layer_at) +
           position % cache.block_size * width;
  }
};

} // namespace octavo
