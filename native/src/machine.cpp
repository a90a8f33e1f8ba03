// Measurements of the machine, made with the team that will run the kernels.
#include <atomic>

#include "octavo/abi.h"
#include "simd/vec.h"
#include "thread_team.h"

namespace {

constexpr int64_t kPiece = 1 << 20;
// Streams read side by side, fetched ahead, as kernels do: one alone waits for memory more often.
constexpr int64_t kStreams = 4;
constexpr int64_t kAhead = 1024; // bytes

uint64_t sum_bytes(const uint8_t* data, int64_t bytes) {
  uint64_t total = 0;
  const int64_t part = bytes / (64 * kStreams) * 64;
  for (int64_t at = 0; at < part; at += 64) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const uint8_t* place = data + stream * part + at;
      __builtin_prefetch(place + kAhead);
      total += octavo::sum_bytes64(place);
    }
  }
  int64_t at = kStreams * part;
  for (; at + 64 <= bytes; at += 64) total += octavo::sum_bytes64(data + at);
  for (; at < bytes; ++at) total += data[at];
  return total;
}

} // namespace

extern "C" {

uint64_t octavo_read_bytes(void* team, const void* data, int64_t bytes) {
  std::atomic<uint64_t> total{0};
  static_cast<octavo::Team*>(team)->parallel((bytes + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    const int64_t begin = piece * kPiece;
    const int64_t length = begin + kPiece < bytes ? kPiece : bytes - begin;
    total.fetch_add(sum_bytes(static_cast<const uint8_t*>(data) + begin, length), std::memory_order_relaxed);
  });
  return total.load();
}

} // extern "C"
