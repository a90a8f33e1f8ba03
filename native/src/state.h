// Recurrent states: where a piece of a layer's state lies before and after the step's tokens of a sequence. Pieces are
// float32, so that a state that was stored and read again is the same bits, however a sequence is cut into steps.
#pragma once
#include <string.h>

#include "kernels.h"

namespace octavo {

class States {
public:
  // pieces: (page of the state, byte of the page) of each piece of a layer.
  States(const Program& program, const Step& step, const void* pieces)
      : cache_(*program.cache), step_(step), pieces_(static_cast<const int64_t*>(pieces)) {}

  // The piece's memory after the step, filled with what it was before: `floats` numbers, zeros at a sequence's start.
  float* open(int64_t sequence, int64_t piece, int64_t floats) const {
    float* memory = at(step_.state_writes, sequence, piece);
    const float* before = at(step_.state_reads, sequence, piece);
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (before == nullptr)
      memset(memory, 0, bytes);
    else if (before != memory)
      memcpy(memory, before, bytes);
    return memory;
  }

  // Single vectors of a piece: null before a sequence's start.
  const float* before(int64_t sequence, int64_t piece) const { return at(step_.state_reads, sequence, piece); }
  float* after(int64_t sequence, int64_t piece) const { return at(step_.state_writes, sequence, piece); }

private:
  float* at(const int32_t* pages, int64_t sequence, int64_t piece) const {
    const int32_t page = pages[pieces_[2 * piece] * step_.sequences + sequence];
    if (page < 0) return nullptr;
    return reinterpret_cast<float*>(cache_.pool + page * cache_.page_bytes + pieces_[2 * piece + 1]);
  }

  const OctavoCache& cache_;
  const Step& step_;
  const int64_t* pieces_;
};

} // namespace octavo
