// Draws with the filters that few requests ask for, over the list of all candidates: plain, in double precision.
#pragma once
#include <math.h>

#include <algorithm>

#include "candidates.h"
#include "octavo/instruction.h"
#include "philox.h"

namespace octavo {

inline bool is_typical(const OctavoSampling& rules) { return rules.typical_p > 0.0f && rules.typical_p < 1.0f; }

inline bool is_shaped(const OctavoSampling& rules) {
  return is_typical(rules) || rules.top_n_sigma > 0.0f || rules.xtc_probability > 0.0f || rules.dynatemp_range > 0.0f;
}

// Candidates in vocabulary order, as filters leave them; `spare` has room for as many.
struct Shortlist {
  Candidate* list;
  Candidate* spare;
  int64_t count;

  double total() const {
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) sum += list[i].weight;
    return sum;
  }

  template <class Keep> void keep(Keep&& keeps) {
    count = std::remove_if(list, list + count, [&](const Candidate& c) { return !keeps(c); }) - list;
  }

  void weigh(double temperature) {
    double top = -INFINITY;
    for (int64_t i = 0; i < count; ++i) top = std::max(top, static_cast<double>(list[i].value));
    for (int64_t i = 0; i < count; ++i) {
      list[i].weight = ::exp((static_cast<double>(list[i].value) - top) / temperature);
    }
  }

  double entropy() const {
    const double sum = total();
    double result = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const double share = list[i].weight / sum;
      if (share > 0.0) result -= share * ::log(share);
    }
    return result;
  }
};

// Logits within n standard deviations of the largest (Tang et al. 2024, arXiv:2411.07641).
inline void keep_sigma(Shortlist& short_list, double n) {
  double sum = 0.0;
  double top = -INFINITY;
  for (int64_t i = 0; i < short_list.count; ++i) {
    sum += static_cast<double>(short_list.list[i].value);
    top = std::max(top, static_cast<double>(short_list.list[i].value));
  }
  const double mean = sum / static_cast<double>(short_list.count);
  double squares = 0.0;
  for (int64_t i = 0; i < short_list.count; ++i) {
    const double off = static_cast<double>(short_list.list[i].value) - mean;
    squares += off * off;
  }
  const double least = top - n * ::sqrt(squares / static_cast<double>(short_list.count));
  short_list.keep([=](const Candidate& c) { return static_cast<double>(c.value) >= least; });
}

// The tokens whose surprise is nearest to the expected one, up to a share (Meister et al. 2022, arXiv:2202.00666).
inline void keep_typical(Shortlist& short_list, double share) {
  const double sum = short_list.total();
  const double expected = short_list.entropy();
  const auto off = [=](const Candidate& c) { return fabs(-::log(c.weight / sum) - expected); };
  const auto nearer = [&](const Candidate& a, const Candidate& b) {
    const double left = off(a);
    const double right = off(b);
    return left < right || (left == right && a.id < b.id);
  };
  std::copy(short_list.list, short_list.list + short_list.count, short_list.spare);
  std::sort(short_list.spare, short_list.spare + short_list.count, nearer);
  double before = 0.0;
  int64_t edge = 0;
  for (int64_t i = 0; i < short_list.count && before < share * sum; ++i) {
    edge = i;
    before += short_list.spare[i].weight;
  }
  const Candidate last = short_list.spare[edge];
  short_list.keep([&](const Candidate& c) { return !nearer(last, c); });
}

inline void keep_usual(Shortlist& short_list, const OctavoSampling& rules) {
  if (rules.min_p > 0.0f) {
    double top = 0.0;
    for (int64_t i = 0; i < short_list.count; ++i) top = std::max(top, short_list.list[i].weight);
    const double least = static_cast<double>(rules.min_p) * top;
    short_list.keep([=](const Candidate& c) { return c.weight >= least; });
  }
  if (rules.top_k > 0 && rules.top_k < short_list.count) {
    std::copy(short_list.list, short_list.list + short_list.count, short_list.spare);
    std::nth_element(short_list.spare, short_list.spare + rules.top_k - 1, short_list.spare + short_list.count, better);
    const Candidate last = short_list.spare[rules.top_k - 1];
    short_list.keep([&](const Candidate& c) { return !better(last, c); });
  }
  if (rules.top_p < 1.0f && short_list.count > 1) {
    std::copy(short_list.list, short_list.list + short_list.count, short_list.spare);
    const double share = static_cast<double>(rules.top_p) * short_list.total();
    const Candidate edge = nucleus_edge(short_list.spare, short_list.count, share);
    short_list.keep([&](const Candidate& c) { return !better(edge, c); });
  }
}

// With a probability, only the least likely of the tokens above the threshold stays, and those below.
inline void exclude_top(Shortlist& short_list, const OctavoSampling& rules) {
  if (uniform(rules.seed, rules.output_index, 1) >= static_cast<double>(rules.xtc_probability)) return;
  const double least = static_cast<double>(rules.xtc_threshold) * short_list.total();
  const Candidate* worst = nullptr;
  for (int64_t i = 0; i < short_list.count; ++i) {
    const Candidate& c = short_list.list[i];
    if (c.weight >= least && (worst == nullptr || better(*worst, c))) worst = &c;
  }
  if (worst == nullptr) return;
  const Candidate stays = *worst;
  short_list.keep([&](const Candidate& c) { return c.weight < least || c.id == stays.id; });
}

// The temperature grows with the entropy of what is left, from T - range to T + range.
inline double dynamic_temperature(Shortlist& short_list, const OctavoSampling& rules) {
  const double middle = static_cast<double>(rules.temperature);
  const double range = static_cast<double>(rules.dynatemp_range);
  short_list.weigh(1.0);
  const double most = short_list.count > 1 ? ::log(static_cast<double>(short_list.count)) : 1.0;
  const double part = ::pow(short_list.entropy() / most, static_cast<double>(rules.dynatemp_exponent));
  const double low = std::max(0.0, middle - range);
  return low + (middle + range - low) * part;
}

// memory: [2 * vocab].
inline int32_t draw_shaped(const float* logits, int64_t vocab, const OctavoSampling& rules, int32_t best,
                           Candidate* memory) {
  constexpr double kGreedy = 1e-5;
  Shortlist short_list = {memory, memory + vocab, 0};
  for (int64_t id = 0; id < vocab; ++id) {
    if (logits[id] > -INFINITY) short_list.list[short_list.count++] = {logits[id], static_cast<int32_t>(id), 0.0};
  }
  if (rules.top_n_sigma > 0.0f) keep_sigma(short_list, static_cast<double>(rules.top_n_sigma));
  double temperature = static_cast<double>(rules.temperature);
  if (rules.dynatemp_range > 0.0f) temperature = dynamic_temperature(short_list, rules);
  if (temperature < kGreedy) return best;
  short_list.weigh(temperature);
  if (is_typical(rules)) keep_typical(short_list, static_cast<double>(rules.typical_p));
  keep_usual(short_list, rules);
  if (rules.xtc_probability > 0.0f) exclude_top(short_list, rules);
  double left = uniform(rules.seed, rules.output_index) * short_list.total();
  for (int64_t i = 0; i + 1 < short_list.count; ++i) {
    if (left < short_list.list[i].weight) return short_list.list[i].id;
    left -= short_list.list[i].weight;
  }
  return short_list.list[short_list.count - 1].id;
}

} // namespace octavo
