// Questions about a sampled row's rules.
#pragma once
#include <math.h>
#include <stdint.h>

#include "octavo/instruction.h"

namespace octavo {

// History may hold ids past the vocabulary: placeholders of another kind of input.
inline bool in_vocabulary(int32_t id, int64_t vocab) { return id >= 0 && id < vocab; }

inline bool has_penalties(const OctavoSampling& rules) {
  return rules.history_len > 0 &&
         (rules.repetition_penalty != 1.0f || rules.presence_penalty != 0.0f || rules.frequency_penalty != 0.0f);
}

inline bool has_rules(const OctavoSampling& rules) {
  return rules.permitted != nullptr || rules.bad_words_size > 0 || rules.dry_multiplier > 0.0f || rules.allowed_count > 0 || rules.bias_count > 0 || has_penalties(rules);
}

// A vocabulary may be padded: rows of the head for which the tokenizer has no token.
inline void hide_unknown(float* logits, const OctavoSampling* rules, int64_t rows, int64_t vocab) {
  for (int64_t row = 0; row < rows; ++row) {
    if (rules[row].known_tokens <= 0) continue;
    for (int64_t id = rules[row].known_tokens; id < vocab; ++id) logits[row * vocab + id] = -INFINITY;
  }
}

} // namespace octavo
