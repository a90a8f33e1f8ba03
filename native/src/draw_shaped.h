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
  return is_typical(rules) || rules.top_n_sigma > 0.0f || rules.xtc_probability > 0.0f || rules.dynatemp_range > 0.0f ||
         rules.mirostat > 0 || rules.sampler_order != 0;
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

  const Candidate& best() const {
    return *std::min_element(list, list + count, [](const Candidate& a, const Candidate& b) { return better(a, b); });
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

inline void keep_min_p(Shortlist& short_list, double part) {
  double top = 0.0;
  for (int64_t i = 0; i < short_list.count; ++i) top = std::max(top, short_list.list[i].weight);
  short_list.keep([=](const Candidate& c) { return c.weight >= part * top; });
}

inline void keep_top_k(Shortlist& short_list, int64_t k) {
  if (k >= short_list.count) return;
  std::copy(short_list.list, short_list.list + short_list.count, short_list.spare);
  std::nth_element(short_list.spare, short_list.spare + k - 1, short_list.spare + short_list.count, better);
  const Candidate last = short_list.spare[k - 1];
  short_list.keep([&](const Candidate& c) { return !better(last, c); });
}

inline void keep_top_p(Shortlist& short_list, double part) {
  if (short_list.count <= 1) return;
  std::copy(short_list.list, short_list.list + short_list.count, short_list.spare);
  const Candidate edge = nucleus_edge(short_list.spare, short_list.count, part * short_list.total());
  short_list.keep([&](const Candidate& c) { return !better(edge, c); });
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

// The inverse of the uniform number in what is left, in vocabulary order.
inline Candidate draw_from(const Shortlist& short_list, const OctavoSampling& rules) {
  double left = uniform(rules.seed, rules.output_index) * short_list.total();
  for (int64_t i = 0; i + 1 < short_list.count; ++i) {
    if (left < short_list.list[i].weight) return short_list.list[i];
    left -= short_list.list[i].weight;
  }
  return short_list.list[short_list.count - 1];
}

// How many of the likeliest tokens, 1 to `count`, make a surprise of `mu` bits under Zipf's law (algorithm 1 of Basu et
// al.), with the law's exponent estimated from the likeliest hundred.
inline int64_t mirostat_count(Shortlist& short_list, double mu) {
  constexpr int64_t kEstimated = 100;
  const int64_t count = short_list.count;
  const int64_t first = std::min(count, kEstimated);
  std::copy(short_list.list, short_list.list + count, short_list.spare);
  std::partial_sort(short_list.spare, short_list.spare + first, short_list.spare + count, better);
  double products = 0.0;
  double squares = 0.0;
  for (int64_t i = 0; i + 1 < first; ++i) {
    const double rank = ::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    if (!(short_list.spare[i + 1].weight > 0.0)) break;
    products += rank * ::log(short_list.spare[i].weight / short_list.spare[i + 1].weight);
    squares += rank * rank;
  }
  const double exponent = squares > 0.0 ? products / squares : 0.0;
  if (exponent < 1e-3) return squares > 0.0 ? count : 1; // as good as uniform, or one alone
  const double excess = exponent - 1.0;
  const double all = static_cast<double>(count);
  const double ratio = fabs(excess) < 1e-9 ? 1.0 / ::log(all) : excess / (1.0 - ::pow(all, -excess));
  const double k = ::pow(ratio * ::exp2(mu), 1.0 / exponent);
  return k < all ? std::max(static_cast<int64_t>(::floor(k + 0.5)), int64_t{1}) : count;
}

// Draws so that the surprise tends to tau (Basu et al. 2021, arXiv:2007.14966): version 1 cuts by rank, version 2 by
// surprise itself. Surprise is that of the distribution before the cut, in bits.
inline int32_t draw_mirostat(Shortlist& short_list, const OctavoSampling& rules, float* next_mu) {
  const double total = short_list.total();
  const double mu = static_cast<double>(rules.mirostat_mu);
  if (rules.mirostat == 1) {
    keep_top_k(short_list, mirostat_count(short_list, mu));
  } else {
    const int32_t likeliest = short_list.best().id;
    short_list.keep([=](const Candidate& c) { return c.id == likeliest || -::log2(c.weight / total) <= mu; });
  }
  const Candidate drawn = draw_from(short_list, rules);
  const double error = -::log2(drawn.weight / total) - static_cast<double>(rules.mirostat_tau);
  *next_mu = static_cast<float>(mu - static_cast<double>(rules.mirostat_eta) * error);
  return drawn.id;
}

// memory: [2 * vocab]. next_mu: null without mirostat.
inline int32_t draw_shaped(const float* logits, int64_t vocab, const OctavoSampling& rules, Candidate* memory,
                           float* next_mu) {
  constexpr double kGreedy = 1e-5;
  constexpr uint32_t kUsual = 0x7654321;
  if (next_mu != nullptr) *next_mu = rules.mirostat_mu;
  Shortlist short_list = {memory, memory + vocab, 0};
  for (int64_t id = 0; id < vocab; ++id) {
    if (logits[id] > -INFINITY) short_list.list[short_list.count++] = {logits[id], static_cast<int32_t>(id), 0.0};
  }
  if (rules.sampler_order != 0) short_list.weigh(1.0);
  for (uint32_t order = rules.sampler_order != 0 ? rules.sampler_order : kUsual; order != 0; order >>= 4) {
    switch (order & 15u) {
      case OCTAVO_TOP_N_SIGMA:
        if (rules.top_n_sigma > 0.0f) keep_sigma(short_list, static_cast<double>(rules.top_n_sigma));
        break;
      case OCTAVO_TEMPERATURE: {
        const bool varies = rules.dynatemp_range > 0.0f;
        const double temperature =
            varies ? dynamic_temperature(short_list, rules) : static_cast<double>(rules.temperature);
        if (temperature < kGreedy) return short_list.best().id;
        short_list.weigh(temperature);
        break;
      }
      case OCTAVO_TYPICAL:
        if (is_typical(rules)) keep_typical(short_list, static_cast<double>(rules.typical_p));
        break;
      case OCTAVO_MIN_P:
        if (rules.min_p > 0.0f) keep_min_p(short_list, static_cast<double>(rules.min_p));
        break;
      case OCTAVO_TOP_K:
        if (rules.top_k > 0) keep_top_k(short_list, rules.top_k);
        break;
      case OCTAVO_TOP_P:
        if (rules.top_p < 1.0f) keep_top_p(short_list, static_cast<double>(rules.top_p));
        break;
      case OCTAVO_XTC:
        if (rules.xtc_probability > 0.0f) exclude_top(short_list, rules);
        break;
    }
  }
  return rules.mirostat > 0 ? draw_mirostat(short_list, rules, next_mu) : draw_from(short_list, rules).id;
}

} // namespace octavo
