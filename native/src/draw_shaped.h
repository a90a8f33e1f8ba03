// Draws with the filters that few requests ask for, over the list of all candidates, in double precision.
#pragma once
#include <math.h>

#include <algorithm>

#include "octavo/instruction.h"
#include "philox.h"
#include "shortlist.h"

namespace octavo {

inline bool is_typical(const OctavoSampling& rules) { return rules.typical_p > 0.0f && rules.typical_p < 1.0f; }

inline bool is_shaped(const OctavoSampling& rules) {
  return is_typical(rules) || rules.top_n_sigma > 0.0f || rules.xtc_probability > 0.0f || rules.dynatemp_range > 0.0f ||
         rules.mirostat > 0 || rules.sampler_order != 0;
}

// Logits within n standard deviations of the largest (Tang et al. 2024, arXiv:2411.07641).
inline void keep_sigma(Shortlist& left, double n) {
  const double least = static_cast<double>(left.largest_value()) - n * left.deviation();
  left.keep([&](int64_t i) { return static_cast<double>(left.value(i)) >= least; });
}

// The tokens whose surprise is nearest to the expected one, up to a share (Meister et al. 2022, arXiv:2202.00666).
inline void keep_typical(Shortlist& left, double share) {
  const double sum = left.total();
  left.keep_nearest(::log(sum) - left.entropy(), share * sum);
}

inline void keep_min_p(Shortlist& left, double part) {
  double top = 0.0;
  for (int64_t i = 0; i < left.count(); ++i) top = std::max(top, left.weight(i));
  left.keep([&](int64_t i) { return left.weight(i) >= part * top; });
}

// With a probability, only the least likely of the tokens above the threshold stays, and those below.
inline void exclude_top(Shortlist& left, const OctavoSampling& rules) {
  if (uniform(rules.seed, rules.output_index, 1) >= static_cast<double>(rules.xtc_probability)) return;
  const double least = static_cast<double>(rules.xtc_threshold) * left.total();
  int64_t worst = -1;
  for (int64_t i = 0; i < left.count(); ++i) {
    if (left.weight(i) >= least && (worst < 0 || better(left.at(worst), left.at(i)))) worst = i;
  }
  if (worst < 0) return;
  const int32_t stays = left.id(worst);
  left.keep([&](int64_t i) { return left.weight(i) < least || left.id(i) == stays; });
}

// The temperature grows with the entropy of what is left, from T - range to T + range.
inline double dynamic_temperature(Shortlist& left, const OctavoSampling& rules) {
  const double middle = static_cast<double>(rules.temperature);
  const double range = static_cast<double>(rules.dynatemp_range);
  left.weigh(1.0);
  const double most = left.count() > 1 ? ::log(static_cast<double>(left.count())) : 1.0;
  const double part = ::pow(left.entropy() / most, static_cast<double>(rules.dynatemp_exponent));
  const double low = std::max(0.0, middle - range);
  return low + (middle + range - low) * part;
}

// The inverse of the uniform number in what is left: an index.
inline int64_t draw_from(const Shortlist& left, const OctavoSampling& rules) {
  return left.at_share(uniform(rules.seed, rules.output_index));
}

// How many of the likeliest tokens, 1 to `count`, make a surprise of `mu` bits under Zipf's law (algorithm 1 of Basu et
// al.), with the law's exponent estimated from the likeliest hundred.
inline int64_t mirostat_count(Shortlist& left, double mu) {
  constexpr int64_t kEstimated = 100;
  const int64_t count = left.count();
  const int64_t first = std::min(count, kEstimated);
  const Candidate* ranked = left.ranked(first);
  double products = 0.0;
  double squares = 0.0;
  for (int64_t i = 0; i + 1 < first; ++i) {
    const double rank = ::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    if (!(ranked[i + 1].weight > 0.0)) break;
    products += rank * ::log(ranked[i].weight / ranked[i + 1].weight);
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
inline int32_t draw_mirostat(Shortlist& left, const OctavoSampling& rules, float* next_mu) {
  constexpr double kBit = 0.6931471805599453; // nats
  const double log_total = ::log(left.total());
  const double mu = static_cast<double>(rules.mirostat_mu);
  const auto surprise = [&](float value) { return (log_total - left.log_weight(value)) / kBit; };
  if (rules.mirostat == 1) {
    left.keep_best(mirostat_count(left, mu));
  } else {
    const int32_t likeliest = left.best();
    left.keep([&](int64_t i) { return left.id(i) == likeliest || surprise(left.value(i)) <= mu; });
  }
  const int64_t drawn = draw_from(left, rules);
  const double error = surprise(left.value(drawn)) - static_cast<double>(rules.mirostat_tau);
  *next_mu = static_cast<float>(mu - static_cast<double>(rules.mirostat_eta) * error);
  return left.id(drawn);
}

// memory: [Shortlist::room(vocab)]. next_mu: null without mirostat.
inline int32_t draw_shaped(const float* logits, int64_t vocab, const OctavoSampling& rules, Candidate* memory,
                           float* next_mu) {
  constexpr double kGreedy = 1e-5;
  constexpr uint32_t kUsual = 0x7654321;
  if (next_mu != nullptr) *next_mu = rules.mirostat_mu;
  Shortlist left(memory, vocab);
  left.add_above(logits, vocab, -INFINITY);
  if (rules.sampler_order != 0) left.weigh(1.0);
  for (uint32_t order = rules.sampler_order != 0 ? rules.sampler_order : kUsual; order != 0; order >>= 4) {
    switch (order & 15u) {
      case OCTAVO_TOP_N_SIGMA:
        if (rules.top_n_sigma > 0.0f) keep_sigma(left, static_cast<double>(rules.top_n_sigma));
        break;
      case OCTAVO_TEMPERATURE: {
        const bool varies = rules.dynatemp_range > 0.0f;
        const double temperature =
            varies ? dynamic_temperature(left, rules) : static_cast<double>(rules.temperature);
        if (temperature < kGreedy) return left.best();
        left.weigh(temperature);
        break;
      }
      case OCTAVO_TYPICAL:
        if (is_typical(rules)) keep_typical(left, static_cast<double>(rules.typical_p));
        break;
      case OCTAVO_MIN_P:
        if (rules.min_p > 0.0f) keep_min_p(left, static_cast<double>(rules.min_p));
        break;
      case OCTAVO_TOP_K:
        if (rules.top_k > 0) left.keep_best(rules.top_k);
        break;
      case OCTAVO_TOP_P:
        if (rules.top_p < 1.0f) left.keep_nucleus(static_cast<double>(rules.top_p) * left.total());
        break;
      case OCTAVO_XTC:
        if (rules.xtc_probability > 0.0f) exclude_top(left, rules);
        break;
    }
  }
  return rules.mirostat > 0 ? draw_mirostat(left, rules, next_mu) : left.id(draw_from(left, rules));
}

} // namespace octavo
