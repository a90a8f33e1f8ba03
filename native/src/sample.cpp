// Draws one token a row and measures its log-probability.
//
// Passes over the vocabulary are cut into pieces of a fixed size, so that few rows can still use all threads and sums
// have one order. Without filters the token is found from the weights of the pieces; with filters from a short list.
#include <math.h>

#include "candidates.h"
#include "draw_shaped.h"
#include "kernels.h"
#include "philox.h"
#include "sampling_rules.h"

namespace octavo {
namespace {

constexpr int64_t kPiece = 8192;
constexpr int64_t kGroup = 64; // weights summed in float32 before they join a double

struct PieceStats {
  float largest;
  bool invalid; // holds a NaN or +inf; `largest` then means nothing
};

PieceStats scan(const float* x, int64_t begin, int64_t end) {
  Vec16 top = set1(-INFINITY);
  Vec16 bad = zero();
  for (int64_t at = begin; at < end; at += 16) {
    const Vec16 values = load_up_to(x + at, end - at);
    bad = max(select_less(values, set1(INFINITY), zero(), set1(1.0f)), bad);
    top = max(end - at < 16 ? keep_range(values, 0, static_cast<int>(end - at), -INFINITY) : values, top);
  }
  return {largest(top), largest(bad) > 0.0f};
}

struct Weighing {
  float largest;
  float inverse_temperature;
};

// e^((x - largest) / temperature) of up to 16; 0 past the end.
Vec16 weights16(const float* x, int64_t left, Weighing weighing) {
  const Vec16 scaled = (load_up_to(x, left) - set1(weighing.largest)) * set1(weighing.inverse_temperature);
  const Vec16 weights = exp(scaled);
  return left < 16 ? keep_range(weights, 0, static_cast<int>(left), 0.0f) : weights;
}

double weigh_group(const float* x, int64_t left, Weighing weighing) {
  Vec16 total = zero();
  for (int64_t at = 0; at < kGroup && at < left; at += 16) total = total + weights16(x + at, left - at, weighing);
  return static_cast<double>(sum(total));
}

double weigh(const float* x, int64_t begin, int64_t end, Weighing weighing) {
  double total = 0.0;
  for (int64_t at = begin; at < end; at += kGroup) total += weigh_group(x + at, end - at, weighing);
  return total;
}

int64_t pieces_of(int64_t vocab) { return (vocab + kPiece - 1) / kPiece; }

// Everything a row's draw needs.
struct Row {
  const float* logits;
  int64_t vocab;
  const OctavoSampling& rules;
  Weighing weighing;
  int32_t best;                // the first of the largest
  const double* piece_weights; // null unless needs_weights
};

bool filters_by_rank(const OctavoSampling& rules, int64_t vocab) { return rules.top_k > 0 && rules.top_k < vocab; }

bool needs_weights(const OctavoSampling& rules, int64_t vocab) {
  return rules.temperature > 0.0f && !is_shaped(rules) && !filters_by_rank(rules, vocab) && !(rules.min_p > 0.0f);
}

double total_of(const double* weights, int64_t count) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weights[i];
  return total;
}

// Inverts the distribution over the whole vocabulary: the piece, in it the group, in it the token.
int32_t draw_from_all(const Row& row, double number) {
  const int64_t pieces = pieces_of(row.vocab);
  double left = number * total_of(row.piece_weights, pieces);
  int64_t piece = 0;
  while (piece + 1 < pieces && left >= row.piece_weights[piece]) left -= row.piece_weights[piece++];
  const int64_t end = std::min((piece + 1) * kPiece, row.vocab);
  int64_t at = piece * kPiece;
  for (; at + kGroup < end; at += kGroup) {
    const double weight = weigh_group(row.logits + at, end - at, row.weighing);
    if (left < weight) break;
    left -= weight;
  }
  int64_t chosen = -1;
  for (int64_t first = at; first < end && first < at + kGroup; first += 16) {
    float weights[16];
    store(weights, weights16(row.logits + first, end - first, row.weighing));
    for (int64_t i = 0; i < 16 && first + i < end; ++i) {
      if (weights[i] <= 0.0f) continue;
      chosen = first + i; // the last one stands when rounding leaves something over
      if (left < static_cast<double>(weights[i])) return static_cast<int32_t>(chosen);
      left -= static_cast<double>(weights[i]);
    }
  }
  return chosen >= 0 ? static_cast<int32_t>(chosen) : row.best;
}

// The least logit that can matter to the filters other than top-k. A little low, so that no candidate is lost.
float least_logit(const Row& row) {
  const double temperature = static_cast<double>(row.rules.temperature);
  double share = 1.0;
  if (row.rules.min_p > 0.0f) {
    share = static_cast<double>(row.rules.min_p);
  } else { // tokens below this weight sum to less than top-p leaves out
    const double total = total_of(row.piece_weights, pieces_of(row.vocab));
    share = std::min(1.0, (1.0 - static_cast<double>(row.rules.top_p)) * total / static_cast<double>(row.vocab));
  }
  const double slack = 1e-5 * (1.0 + fabs(static_cast<double>(row.weighing.largest)) / temperature);
  return static_cast<float>(static_cast<double>(row.weighing.largest) + temperature * (::log(share) - slack));
}

// Candidates in vocabulary order with their weights, in memory from allocate(count).
template <class Allocate> Shortlist list_candidates(const Row& row, Allocate&& allocate) {
  Shortlist left(nullptr, 0);
  if (filters_by_rank(row.rules, row.vocab)) {
    const int64_t capacity = std::max(top_capacity(row.rules.top_k), int64_t{2} * row.rules.top_k);
    Candidate* best = allocate(capacity + Shortlist::room(row.rules.top_k));
    const int64_t count = collect_top(row.logits, row.vocab, row.rules.top_k, best);
    std::sort(best, best + count, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    left = Shortlist(best + capacity, row.rules.top_k);
    for (int64_t i = 0; i < count; ++i) left.add(best[i].value, best[i].id);
  } else {
    left = Shortlist(allocate(Shortlist::room(row.vocab)), row.vocab);
    left.add_above(row.logits, row.vocab, nextafterf(least_logit(row), -INFINITY));
  }
  left.weigh(static_cast<double>(row.rules.temperature), static_cast<double>(row.weighing.largest));
  return left;
}

template <class Allocate> int32_t draw_filtered(const Row& row, double number, Allocate&& allocate) {
  Shortlist left = list_candidates(row, allocate);
  if (row.rules.min_p > 0.0f) {
    const double least = static_cast<double>(row.rules.min_p);
    left.keep([&](int64_t i) { return left.weight(i) >= least; });
  }
  if (row.rules.top_p < 1.0f) {
    const double total = row.piece_weights != nullptr ? total_of(row.piece_weights, pieces_of(row.vocab)) : left.total();
    left.keep_nucleus(static_cast<double>(row.rules.top_p) * total);
  }
  return left.id(left.at_share(number));
}

// Log-probabilities of the unprocessed logits: the token's, its rank, the likeliest.
void measure(const float* raw, int64_t vocab, const Step& step, int64_t row, Candidate* memory) {
  const int32_t token = step.out_tokens[row];
  float top = -INFINITY;
  for (int64_t begin = 0; begin < vocab; begin += kPiece) {
    const PieceStats stats = scan(raw, begin, std::min(begin + kPiece, vocab));
    if (stats.invalid) step.out_invalid[row] = 1;
    top = stats.largest > top ? stats.largest : top;
  }
  const double logsum = static_cast<double>(top) + ::log(weigh(raw, 0, vocab, {top, 1.0f}));
  const float value = raw[token];
  step.out_logprobs[row] = static_cast<float>(static_cast<double>(value) - logsum);
  int32_t rank = 1;
  for_above(raw, vocab, value, [&](int64_t) { ++rank; });
  for (int32_t id = 0; id < token; ++id) rank += raw[id] == value ? 1 : 0;
  step.out_ranks[row] = rank;
  const int64_t k = std::min(static_cast<int64_t>(std::min(step.sampling[row].logprobs, step.top_stride)), vocab);
  int64_t found = 0;
  if (k > 0) {
    found = collect_top(raw, vocab, k, memory);
    std::sort(memory, memory + found, better);
  }
  for (int64_t i = 0; i < step.top_stride; ++i) {
    const int64_t at = row * step.top_stride + i;
    step.top_ids[at] = i < found ? memory[i].id : -1;
    step.top_logprobs[at] = i < found ? static_cast<float>(static_cast<double>(memory[i].value) - logsum) : -INFINITY;
  }
}

struct Outcome {
  float largest;
  int32_t best; // the first of the largest
  bool invalid;
};

Outcome combine(const float* logits, int64_t vocab, const PieceStats* stats) {
  Outcome outcome = {-INFINITY, 0, false};
  int64_t piece = 0;
  for (int64_t i = 0; i < pieces_of(vocab); ++i) {
    outcome.invalid = outcome.invalid || stats[i].invalid;
    if (!(stats[i].largest > outcome.largest)) continue;
    outcome.largest = stats[i].largest;
    piece = i;
  }
  outcome.invalid = outcome.invalid || outcome.largest == -INFINITY;
  if (outcome.invalid) return outcome;
  int64_t best = piece * kPiece;
  while (logits[best] != outcome.largest) ++best;
  outcome.best = static_cast<int32_t>(best);
  return outcome;
}

// Arrays of a call, in the team's shared memory: [rows] and [rows][pieces].
struct Memory {
  double* weights;
  const float** logits;
  Outcome* outcomes;
  PieceStats* stats;

  Memory(Team& team, int64_t rows, int64_t pieces) {
    const size_t all = static_cast<size_t>(rows * pieces);
    const size_t count = static_cast<size_t>(rows);
    const size_t bytes = all * (sizeof(double) + sizeof(PieceStats)) + count * (sizeof(float*) + sizeof(Outcome));
    weights = reinterpret_cast<double*>(team.shared(bytes / sizeof(float) + 1));
    logits = reinterpret_cast<const float**>(weights + all);
    outcomes = reinterpret_cast<Outcome*>(logits + count);
    stats = reinterpret_cast<PieceStats*>(outcomes + count);
  }
};

Weighing weighing_of(const OctavoSampling& rules, float largest) {
  return {largest, std::min(1.0f / rules.temperature, 1e30f)};
}

void weigh_pieces(Team& team, const Step& step, int64_t rows, int64_t vocab, const Memory& memory) {
  const int64_t pieces = pieces_of(vocab);
  bool any = false;
  for (int64_t row = 0; row < rows; ++row) any = any || needs_weights(step.sampling[row], vocab);
  if (!any) return;
  team.parallel_ranges(rows * pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces;
      const int64_t first = task % pieces * kPiece;
      const OctavoSampling& rules = step.sampling[row];
      const Outcome& outcome = memory.outcomes[row];
      if (outcome.invalid || !needs_weights(rules, vocab)) continue;
      const Weighing weighing = weighing_of(rules, outcome.largest);
      memory.weights[task] = weigh(memory.logits[row], first, std::min(first + kPiece, vocab), weighing);
    }
  });
}

Candidate* candidates(Team& team, int thread, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(Candidate);
  return reinterpret_cast<Candidate*>(team.scratch(thread, bytes / sizeof(float)));
}

// mu: where mirostat leaves what the next token may surprise with.
int32_t draw(Team& team, int thread, const OctavoSampling& rules, const Row& row, float* mu) {
  if (rules.temperature <= 0.0f) return row.best;
  if (is_shaped(rules)) {
    return draw_shaped(row.logits, row.vocab, rules, candidates(team, thread, Shortlist::room(row.vocab)), mu);
  }
  const double number = uniform(rules.seed, rules.output_index);
  if (!filters_by_rank(rules, row.vocab) && !(rules.min_p > 0.0f) && !(rules.top_p < 1.0f)) {
    return draw_from_all(row, number);
  }
  return draw_filtered(row, number, [&](int64_t count) { return candidates(team, thread, count); });
}

void answer_invalid(const Step& step, int64_t row) {
  step.out_tokens[row] = 0;
  step.out_invalid[row] = 1;
  if (step.sampling[row].logprobs < 0) return;
  step.out_logprobs[row] = 0.0f;
  step.out_ranks[row] = 0;
  for (int64_t at = row * step.top_stride; at < (row + 1) * step.top_stride; ++at) {
    step.top_ids[at] = -1;
    step.top_logprobs[at] = -INFINITY;
  }
}

} // namespace

void sample(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows,
            bool plain_from_raw) {
  const int64_t vocab = code.width;
  const int64_t pieces = pieces_of(vocab);
  const float* processed = program.buffer[code.in0];
  float* raw = program.buffer[code.in1 >= 0 ? code.in1 : code.in0];
  hide_unknown(raw, step.sampling, rows, vocab);
  const Memory memory(team, rows, pieces);
  for (int64_t row = 0; row < rows; ++row) {
    const bool untouched = plain_from_raw && !has_rules(step.sampling[row]);
    memory.logits[row] = (untouched ? raw : processed) + row * vocab;
  }
  team.parallel_ranges(rows * pieces, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % pieces * kPiece;
      memory.stats[task] = scan(memory.logits[task / pieces], first, std::min(first + kPiece, vocab));
    }
  });
  bool all_done = true;
  for (int64_t row = 0; row < rows; ++row) {
    const OctavoSampling& rules = step.sampling[row];
    memory.outcomes[row] = combine(memory.logits[row], vocab, memory.stats + row * pieces);
    step.out_invalid[row] = 0;
    step.out_tokens[row] = memory.outcomes[row].best;
    all_done = all_done && !memory.outcomes[row].invalid && rules.temperature <= 0.0f && rules.logprobs < 0;
  }
  if (all_done) return;
  weigh_pieces(team, step, rows, vocab, memory);
  team.parallel(rows, [&](int64_t row, int thread) {
    const OctavoSampling& rules = step.sampling[row];
    const Outcome& outcome = memory.outcomes[row];
    if (outcome.invalid) return answer_invalid(step, row);
    const Row view = {memory.logits[row],
                      vocab,
                      rules,
                      weighing_of(rules, outcome.largest),
                      outcome.best,
                      needs_weights(rules, vocab) ? memory.weights + row * pieces : nullptr};
    step.out_tokens[row] = draw(team, thread, rules, view, rules.mirostat > 0 ? step.out_mu + row : nullptr);
    if (rules.logprobs < 0) return;
    measure(raw + row * vocab, vocab, step, row, candidates(team, thread, top_capacity(step.top_stride)));
    if (step.out_invalid[row] != 0) answer_invalid(step, row);
  });
}

} // namespace octavo
