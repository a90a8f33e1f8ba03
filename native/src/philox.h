// The random numbers of the sampler: Philox 4x32 with ten rounds (Salmon et al. 2011). octavo/ops/philox.py is its
// twin.
#pragma once
#include <stdint.h>

namespace octavo {

// In [0, 1), 24 bits, of (seed, output index) alone; lanes are independent numbers of one draw.
inline double uniform(uint64_t seed, int32_t output_index, uint32_t lane = 0) {
  uint32_t counter[4] = {static_cast<uint32_t>(output_index), lane, 0, 0};
  uint32_t low = static_cast<uint32_t>(seed);
  uint32_t high = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(second),
                              static_cast<uint32_t>(first >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(first)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return static_cast<double>(counter[0] >> 8) * 0x1p-24;
}

} // namespace octavo
