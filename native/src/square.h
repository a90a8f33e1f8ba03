// Sixteen rows of sixteen words, and how rows become columns.
#pragma once
#include "formats.h"

namespace octavo {
namespace {

// The compiler's vectors, since words are only moved.
template <class Word> struct Square {
  typedef Word Row __attribute__((vector_size(kLanes * sizeof(Word))));
  Row row[kLanes];
};

// Rows become columns. A word's place is the bits of its row, then of its column: each turn moves the first of these
// eight bits to their end, so four turns exchange row and column.
template <class Word> void turn(Square<Word>& x) {
  for (int turns = 0; turns < 4; ++turns) {
    Square<Word> next;
    for (int i = 0; i < kLanes / 2; ++i) {
      const auto a = x.row[i], b = x.row[i + kLanes / 2];
      next.row[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next.row[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    x = next;
  }
}

} // namespace
} // namespace octavo
