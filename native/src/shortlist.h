// What is left of a row's tokens, as filters see it: logits, ids and weights, in vocabulary order.
//
// No filter sorts it. What ranks (top-k, top-p, typical) throws everything into buckets that are themselves in order,
// finds the one in which the last token to stay must be, and ranks that bucket alone.
#pragma once
#include <math.h>

#include <algorithm>

#include "candidates.h"
#include "doubles.h"

namespace octavo {

class Shortlist {
public:
  // memory: room(capacity) candidates.
  Shortlist(Candidate* memory, int64_t capacity)
      : capacity_(capacity), spare_(memory), weights_(reinterpret_cast<double*>(memory + capacity)),
        values_(reinterpret_cast<float*>(weights_ + capacity)), ids_(reinterpret_cast<int32_t*>(values_ + capacity)),
        buckets_(reinterpret_cast<uint16_t*>(ids_ + capacity)) {}

  static int64_t room(int64_t capacity) { return 2 * capacity + capacity / 8 + 1; }

  void add(float value, int32_t id) {
    values_[count_] = value;
    ids_[count_++] = id;
  }

  // All above a threshold. There is room for the whole row.
  void add_above(const float* logits, int64_t vocab, float threshold) {
    for (int64_t first = 0; first < vocab; first += kLanes) {
      const int64_t last = std::min(first + kLanes, vocab);
      const Vec16 values = load_up_to(logits + first, last - first);
      const uint32_t above = any_greater(values, set1(threshold)) & ((1u << (last - first)) - 1u);
      if (above == 0) continue;
      if (above == (1u << kLanes) - 1u) {
        store(values_ + count_, values);
        for (int64_t i = 0; i < kLanes; ++i) ids_[count_ + i] = static_cast<int32_t>(first + i);
        count_ += kLanes;
        continue;
      }
      for (int64_t id = first; id < last; ++id) {
        values_[count_] = logits[id];
        ids_[count_] = static_cast<int32_t>(id);
        count_ += above >> (id - first) & 1u;
      }
    }
  }

  int64_t count() const { return count_; }
  float value(int64_t i) const { return values_[i]; }
  int32_t id(int64_t i) const { return ids_[i]; }
  double weight(int64_t i) const { return weights_[i]; }
  Candidate at(int64_t i) const { return {values_[i], ids_[i], weights_[i]}; }

  // Weights are e^((value - largest) / temperature).
  void weigh(double temperature) { weigh(temperature, static_cast<double>(largest_value())); }

  void weigh(double temperature, double largest) {
    top_ = largest;
    inverse_temperature_ = 1.0 / temperature;
    for (int64_t at = 0; at < count_; at += kDoubles) {
      Doubles x;
      read_at(x, values_, at, largest);
      x = (x - largest) * inverse_temperature_;
      exp_down(x);
      memcpy(weights_ + at, &x, sizeof(double) * static_cast<size_t>(std::min(kDoubles, count_ - at)));
    }
  }

  double total() const { return total(0, count_); }

  // Of the shares in the total, in nats: -log(w / total) is log(total) - log(w), whose mean it is.
  double entropy() const {
    Doubles sums = {};
    for (int64_t at = 0; at < count_; at += kDoubles) {
      Doubles logs;
      Doubles weights;
      read_at(logs, values_, at, top_);
      read_at(weights, weights_, at, 0.0);
      sums += weights * ((logs - top_) * inverse_temperature_);
    }
    const double sum = total();
    return std::max(::log(sum) - sum_of(sums) / sum, 0.0);
  }

  // Of the logits, in two passes: they may have a large mean.
  double deviation() const {
    const double count = static_cast<double>(count_);
    const double mean = sum_over([](Doubles&) {}, 0.0) / count;
    return ::sqrt(sum_over([=](Doubles& x) { x = (x - mean) * (x - mean); }, mean) / count);
  }

  // The logarithm of a weight, which may itself be 0.
  double log_weight(float value) const { return (static_cast<double>(value) - top_) * inverse_temperature_; }

  float largest_value() const { return extreme<true>(); }
  float least_value() const { return extreme<false>(); }

  // The first of the largest.
  int32_t best() const {
    const float top = largest_value();
    int64_t i = 0;
    while (values_[i] != top) ++i;
    return ids_[i];
  }

  // keeps(index): whether it stays.
  template <class Keep> void keep(const Keep& keeps) {
    int64_t next = 0;
    for (int64_t first = 0; first < count_; first += kBlock) {
      const int64_t length = std::min(kBlock, count_ - first);
      uint8_t stays[kBlock];
      int64_t staying = 0;
      for (int64_t i = 0; i < length; ++i) stays[i] = keeps(first + i) ? 1 : 0;
      for (int64_t i = 0; i < length; ++i) staying += stays[i];
      if (staying == 0) continue;
      if (staying == length && next == first) {
        next += length;
        continue;
      }
      for (int64_t i = 0; i < length; ++i) {
        values_[next] = values_[first + i];
        ids_[next] = ids_[first + i];
        weights_[next] = weights_[first + i];
        next += stays[i];
      }
    }
    count_ = next;
  }

  void keep_best(int64_t k) {
    if (k >= count_) return;
    const Candidate last = *std::max_element(spare_, spare_ + take_best(k), better);
    keep([&](int64_t i) { return values_[i] > last.value || (values_[i] == last.value && i <= last.id); });
  }

  // The k best, in order; there are as many. Their ids are indices.
  const Candidate* ranked(int64_t k) {
    const int64_t found = take_best(k);
    std::sort(spare_, spare_ + found, better);
    return spare_;
  }

  // Of the best ones, as many as it takes for the sum of their weights to reach `share`.
  void keep_nucleus(double share) {
    if (count_ <= 1) return;
    const double top = static_cast<double>(largest_value());
    const double range = std::min(top - static_cast<double>(least_value()), kDeepest / inverse_temperature_);
    const double scale = kBuckets / std::max(range, 1e-30);
    keep_first(share, [=](Doubles& x) { x = (top - x) * scale; }, better);
  }

  // Likewise of those whose log-weight is nearest to `middle`. (Where a weight is 0 there is nothing to be near to.)
  void keep_nearest(double middle, double share) {
    const auto off = [=](float value) { return fabs(log_weight(value) - middle); };
    const double range = std::min(std::max(off(largest_value()), off(least_value())), kDeepest);
    const double scale = kBuckets / std::max(range, 1e-30);
    const auto nearer = [=](const Candidate& a, const Candidate& b) {
      const double left = a.weight > 0.0 ? off(a.value) : INFINITY;
      const double right = b.weight > 0.0 ? off(b.value) : INFINITY;
      return left < right || (left == right && a.id < b.id);
    };
    const auto place = [=](Doubles& x) {
      x = (x - top_) * inverse_temperature_ - middle;
      x = (x < 0.0 ? -x : x) * scale;
    };
    keep_first(share, place, nearer);
  }

  // The one at a share of the total weight, in [0, 1), in vocabulary order.
  int64_t at_share(double share) const {
    double left = share * total();
    int64_t i = 0;
    for (; i + kBlock < count_; i += kBlock) {
      const double weight = total(i, i + kBlock);
      if (left < weight) break;
      left -= weight;
    }
    for (; i + 1 < count_ && left >= weights_[i]; ++i) left -= weights_[i];
    return i;
  }

private:
  static constexpr int64_t kLanes = 16;
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kBuckets = 1024;
  static constexpr double kDeepest = 40.0; // nats below which weights hardly count: one bucket for all

  template <class Number> void read_at(Doubles& to, const Number* from, int64_t at, double rest) const {
    if (count_ - at >= kDoubles) return read(to, from + at);
    read_some(to, from + at, count_ - at, rest);
  }

  // Of what map makes of the logits; `rest` is what it makes nothing of.
  template <class Map> double sum_over(const Map& map, double rest) const {
    Doubles sums = {};
    for (int64_t at = 0; at < count_; at += kDoubles) {
      Doubles x;
      read_at(x, values_, at, rest);
      map(x);
      sums += x;
    }
    return sum_of(sums);
  }

  double total(int64_t begin, int64_t end) const {
    double sum = 0.0;
    for (int64_t block = begin; block < end; block += kBlock) {
      Doubles lanes = {};
      for (int64_t at = block; at < std::min(block + kBlock, end); at += kDoubles) {
        Doubles weights;
        read_at(weights, weights_, at, 0.0);
        lanes += weights;
      }
      sum += sum_of(lanes);
    }
    return sum;
  }

  template <bool kLargest> float extreme() const {
    Vec16 found = set1(values_[0]);
    for (int64_t at = 0; at < count_; at += 16) {
      const int64_t left = count_ - at;
      Vec16 values = load_up_to(values_ + at, left);
      if (left < 16) values = keep_range(values, 0, static_cast<int>(left), values_[0]);
      found = kLargest ? max(values, found) : min(values, found);
    }
    return kLargest ? largest(found) : -largest(zero() - found);
  }

  // The k best to spare_, in no order, with indices for ids; their number.
  int64_t take_best(int64_t k) {
    int64_t found = count_;
    if (top_capacity(k) <= capacity_) {
      found = collect_top(values_, count_, k, spare_);
    } else {
      for (int64_t i = 0; i < count_; ++i) spare_[i] = {values_[i], static_cast<int32_t>(i), 0.0};
      if (k < count_) std::nth_element(spare_, spare_ + k - 1, spare_ + count_, better);
    }
    found = std::min(k, found);
    for (int64_t i = 0; i < found; ++i) spare_[i].weight = weights_[spare_[i].id];
    return found;
  }

  // Keeps, by the order `ahead`, as few as have `share` of weight in sum. place(logits) does not fall along that order.
  template <class Place, class Ahead> void keep_first(double share, const Place& place, const Ahead& ahead) {
    const Doubles most = Doubles{} + static_cast<double>(kBuckets - 1);
    double sums[kBuckets] = {};
    for (int64_t at = 0; at < count_; at += kDoubles) {
      Doubles x;
      read_at(x, values_, at, 0.0);
      place(x);
      x = x < most ? x : most;
      const Shorts buckets = __builtin_convertvector(__builtin_convertvector(x, Integers), Shorts);
      const int64_t length = std::min(kDoubles, count_ - at);
      memcpy(buckets_ + at, &buckets, sizeof(uint16_t) * static_cast<size_t>(length));
      for (int64_t i = at; i < at + length; ++i) sums[buckets_[i]] += weights_[i];
    }
    double before = 0.0;
    int64_t edge = 0;
    while (edge < kBuckets && before + sums[edge] < share) before += sums[edge++];
    if (edge == kBuckets) return;
    int64_t inside = 0;
    for (int64_t first = 0; first < count_; first += kLanes) {
      const int64_t last = std::min(first + kLanes, count_);
      int64_t found = 0;
      for (int64_t i = first; i < last; ++i) found += buckets_[i] == edge ? 1 : 0;
      for (int64_t i = first; i < last && found > 0; ++i) {
        if (buckets_[i] == edge) spare_[inside++] = {values_[i], static_cast<int32_t>(i), weights_[i]};
      }
    }
    const Candidate last = edge_of(spare_, inside, share - before, ahead);
    for (int64_t i = 0; i < inside; ++i) {
      if (ahead(last, spare_[i])) buckets_[spare_[i].id] = kBuckets;
    }
    keep([&](int64_t i) { return buckets_[i] <= edge; });
  }

  int64_t capacity_;
  Candidate* spare_;
  double* weights_;
  float* values_;
  int32_t* ids_;
  uint16_t* buckets_;
  int64_t count_ = 0;
  double top_ = 0.0;
  double inverse_temperature_ = 1.0;
};

} // namespace octavo
