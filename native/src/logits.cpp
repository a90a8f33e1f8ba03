// The rules of a row, applied to its logits: permitted and allowed ids and bias, then repetition, frequency and presence penalties.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "kernels.h"
#include "sampling_rules.h"

namespace octavo {
namespace {

// Not by copying what is allowed over -inf: a NaN or +inf must show, wherever it is.
void ban(float& logit) { logit += -INFINITY; }

// allowed: bytes [vocab], scratch.
void keep_allowed(float* logits, const OctavoSampling& rules, int64_t vocab, uint8_t* allowed) {
  memset(allowed, 0, static_cast<size_t>(vocab));
  for (int32_t i = 0; i < rules.allowed_count; ++i) {
    if (in_vocabulary(rules.allowed_ids[i], vocab)) allowed[rules.allowed_ids[i]] = 1;
  }
  for (int64_t id = 0; id < vocab; ++id) {
    if (!allowed[id]) ban(logits[id]);
  }
}

// Ban what a bitmask [(vocab + 31) / 32] leaves out, a word at a time.
void keep_permitted(float* logits, const uint32_t* permitted, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += 32) {
    const uint32_t word = permitted[first / 32];
    const int64_t count = vocab - first < 32 ? vocab - first : 32;
    if (word == 0) {
      for (int64_t i = 0; i < count; ++i) ban(logits[first + i]);
    } else if (word != UINT32_MAX) {
      for (int64_t i = 0; i < count; ++i) {
        if ((word >> i & 1u) == 0) ban(logits[first + i]);
      }
    }
  }
}

// counts: [vocab], scratch; only what history touches is written, so it need not be cleared.
void penalize(float* logits, const OctavoSampling& rules, int64_t vocab, int32_t* counts) {
  constexpr int32_t kDone = -1;
  for (int32_t i = 0; i < rules.history_len; ++i) {
    if (in_vocabulary(rules.history[i], vocab)) counts[rules.history[i]] = 0;
  }
  for (int32_t i = rules.prompt_len; i < rules.history_len; ++i) {
    if (in_vocabulary(rules.history[i], vocab)) ++counts[rules.history[i]];
  }
  for (int32_t i = 0; i < rules.history_len; ++i) {
    const int32_t id = rules.history[i];
    if (!in_vocabulary(id, vocab) || counts[id] == kDone) continue;
    float& logit = logits[id];
    if (rules.repetition_penalty != 1.0f) {
      logit = logit > 0.0f ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
    }
    if (counts[id] > 0) {
      logit -= rules.frequency_penalty * static_cast<float>(counts[id]);
      logit -= rules.presence_penalty;
    }
    counts[id] = kDone;
  }
}

// A word of several tokens: once all but its last have been drawn, that one is as good as banned.
void ban_words(float* logits, const OctavoSampling& rules, int64_t vocab) {
  constexpr float kNever = -1e9f;
  const int32_t drawn = rules.history_len - rules.prompt_len;
  for (int32_t at = 0; at < rules.bad_words_size; at += rules.bad_words[at] + 1) {
    const int32_t before = rules.bad_words[at] - 1;
    const int32_t* word = rules.bad_words + at + 1;
    if (before > drawn || !in_vocabulary(word[before], vocab)) continue;
    if (std::equal(word, word + before, rules.history + rules.history_len - before)) logits[word[before]] += kNever;
  }
}

bool is_breaker(const OctavoSampling& rules, int32_t id) {
  return std::binary_search(rules.dry_breakers, rules.dry_breakers + rules.dry_breaker_count, id);
}

// Tokens that would continue a repetition of the text's end are discouraged the more, the longer it is ("DRY"). Lengths
// by the Z algorithm over the reversed text.  scratch: [vocab + history_len], only what the text touches is written.
void discourage_repeats(float* logits, const OctavoSampling& rules, int64_t vocab, int32_t* scratch) {
  const int32_t count = rules.dry_window < 0 ? rules.history_len : std::min(rules.dry_window, rules.history_len);
  const int32_t* last = rules.history + rules.history_len - 1;
  int32_t reach = 0; // tokens at the end without a breaker
  while (reach < count && !is_breaker(rules, last[-reach])) ++reach;
  if (reach < rules.dry_allowed_length) return;
  int32_t* longest = scratch;
  int32_t* lengths = scratch + vocab;
  for (int32_t i = 0; i < count; ++i) {
    if (in_vocabulary(last[-i], vocab)) longest[last[-i]] = 0;
  }
  int32_t left = 0;
  int32_t right = 0; // [left, right) is the match that reaches furthest
  for (int32_t i = 1; i < count; ++i) {
    int32_t length = i < right ? std::min(right - i, lengths[i - left]) : 0;
    while (i + length < count && last[-length] == last[-(i + length)]) ++length;
    lengths[i] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    const int32_t next = last[-(i - 1)];
    if (in_vocabulary(next, vocab)) longest[next] = std::max(longest[next], std::min(length, reach));
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = last[-i];
    if (!in_vocabulary(id, vocab) || longest[id] < std::max(rules.dry_allowed_length, 1)) continue;
    const double over = static_cast<double>(longest[id] - rules.dry_allowed_length);
    const double penalty = static_cast<double>(rules.dry_multiplier) * ::pow(static_cast<double>(rules.dry_base), over);
    logits[id] = static_cast<float>(static_cast<double>(logits[id]) - std::min(penalty, 1e30));
    longest[id] = 0;
  }
}

void apply(float* logits, const OctavoSampling& rules, int64_t vocab, float* scratch) {
  if (rules.permitted != nullptr) keep_permitted(logits, rules.permitted, vocab);
  if (rules.allowed_count > 0) keep_allowed(logits, rules, vocab, reinterpret_cast<uint8_t*>(scratch));
  for (int32_t i = 0; i < rules.bias_count; ++i) {
    if (!in_vocabulary(rules.bias_ids[i], vocab)) continue;
    float& logit = logits[rules.bias_ids[i]];
    logit = i < rules.scale_count ? logit * rules.bias_values[i] : logit + rules.bias_values[i];
  }
  if (rules.bad_words_size > 0) ban_words(logits, rules, vocab);
  if (has_penalties(rules)) penalize(logits, rules, vocab, reinterpret_cast<int32_t*>(scratch));
  if (rules.dry_multiplier > 0.0f && rules.history_len > 0) {
    discourage_repeats(logits, rules, vocab, reinterpret_cast<int32_t*>(scratch));
  }
}

} // namespace

void process_logits(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows,
                    bool copy_plain) {
  const int64_t vocab = code.width;
  float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  hide_unknown(in, step.sampling, rows, vocab);
  bool any = copy_plain && in != out;
  for (int64_t row = 0; row < rows; ++row) any = any || has_rules(step.sampling[row]);
  if (!any) return;
  team.parallel(rows, [&](int64_t row, int thread) {
    const OctavoSampling& rules = step.sampling[row];
    const bool plain = !has_rules(rules);
    if (plain && !copy_plain) return;
    float* logits = out + row * vocab;
    if (in != out) memcpy(logits, in + row * vocab, static_cast<size_t>(vocab) * sizeof(float));
    if (!plain) apply(logits, rules, vocab, team.scratch(thread, static_cast<size_t>(vocab + rules.history_len)));
  });
}

} // namespace octavo
