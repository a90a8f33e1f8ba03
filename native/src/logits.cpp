// The rules of a row, applied to its logits: permitted and allowed ids and bias, then repetition, frequency and presence penalties.
#include <math.h>
#include <string.h>

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

void apply(float* logits, const OctavoSampling& rules, int64_t vocab, float* scratch) {
  if (rules.permitted != nullptr) keep_permitted(logits, rules.permitted, vocab);
  if (rules.allowed_count > 0) keep_allowed(logits, rules, vocab, reinterpret_cast<uint8_t*>(scratch));
  for (int32_t i = 0; i < rules.bias_count; ++i) {
    if (in_vocabulary(rules.bias_ids[i], vocab)) logits[rules.bias_ids[i]] += rules.bias_values[i];
  }
  if (has_penalties(rules)) penalize(logits, rules, vocab, reinterpret_cast<int32_t*>(scratch));
}

} // namespace

void process_logits(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows,
                    bool copy_plain) {
  const int64_t vocab = code.width;
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  bool any = copy_plain && in != out;
  for (int64_t row = 0; row < rows; ++row) any = any || has_rules(step.sampling[row]);
  if (!any) return;
  team.parallel(rows, [&](int64_t row, int thread) {
    const OctavoSampling& rules = step.sampling[row];
    const bool plain = !has_rules(rules);
    if (plain && !copy_plain) return;
    float* logits = out + row * vocab;
    if (in != out) memcpy(logits, in + row * vocab, static_cast<size_t>(vocab) * sizeof(float));
    if (!plain) apply(logits, rules, vocab, team.scratch(thread, static_cast<size_t>(vocab)));
  });
}

} // namespace octavo
