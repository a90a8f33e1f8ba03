// What a thread of the team fetches while it waits: for others' tasks, or for the next job.
#pragma once
#include <stdint.h>

namespace octavo {

// Memory that will likely be read next: `columns` stretches side by side, `stride` bytes apart, then the next ones.
struct Upcoming {
  const uint8_t* first = nullptr;
  int64_t stride = 0;
  int64_t stretches = 0; // of `stride` bytes
  int columns = 0;
  int64_t at = 0;   // bytes of a stretch that are fetched
  int64_t left = 0; // bytes to fetch

  // Brings a few lines into the second cache.
  void fetch() {
    for (int line = 0; line < 4 && left > 0; ++line) {
      const int64_t count = stretches < columns ? stretches : columns;
      for (int64_t column = 0; column < count; ++column) __builtin_prefetch(first + column * stride + at, 0, 2);
      left -= 64 * count;
      if ((at += 64) < stride) continue;
      at = 0;
      first += count * stride;
      if ((stretches -= count) <= 0) left = 0;
    }
  }
};

// For the thread that calls, a thread of a team inside of its task. Whether it is fetched changes no result.
void fetch_while_waiting(const Upcoming& upcoming);

} // namespace octavo
