// Runs the tasks of a plan, then joins what was saved part by part.
#pragma once
#include "attention_plan.h"
#include "attention_unit.h"

namespace octavo {

constexpr int64_t kMostSaved = 1 << 22; // floats; with more, the context is done in several turns

// States of rows, part by part: [row][part][head], of the parts first .. end - 1; and of all parts before: [row][head].
struct Saved {
  float* states;
  float* totals; // null when all parts are there
  int64_t first, end, length;
  int64_t heads, state_floats;

  int64_t row_floats() const { return length * heads * state_floats; }
  float* at(int64_t row, int64_t part, int64_t head) const {
    return states + row * row_floats() + ((part - first) * heads + head) * state_floats;
  }
  float* total_of(int64_t row, int64_t head) const { return totals + (row * heads + head) * state_floats; }
};

template <class Work, class Asked>
void run_unit(const Asked& attention, const AttentionPlan& plan, const Unit& unit, int64_t kv_head,
              const Saved& saved, const Unit* next, float* memory) {
  const int64_t first = unit.saved == 0 ? unit.first_part : larger(unit.first_part, saved.first);
  const int64_t end = unit.first_part + unit.parts;
  const int64_t stop = unit.saved == 0 ? end : smaller(end, saved.end);
  if (first >= stop) return;
  Work work(attention, plan.rows() + unit.first_row, unit.rows, kv_head, {memory});
  const Unit* then = kv_head + 1 < unit.first_head + unit.heads ? &unit : next;
  if (then == nullptr) {
    work.expect(stop, {nullptr, 0, 0});
  } else {
    const bool same = then == &unit;
    const int64_t head = same ? kv_head + 1 : then->first_head;
    work.expect(stop, {plan.rows() + then->first_row, head, same ? first : then->first_part});
  }
  for (int64_t part = first; part < stop; ++part) {
    work.run_part(part, unit.saved == 0);
    if (unit.saved == 0) continue;
    work.save_part(part, saved.at(unit.first_row, part, kv_head * attention.group), saved.row_floats());
  }
}

// As UnitRows::join_rows, for up to 16 heads of a row.
inline void join_saved(const Attention& attention, const Row& row, int64_t number, int64_t first_head, const Saved& saved,
                float* totals) {
  const int64_t heads = smaller(16, attention.heads - first_head);
  const int64_t first_seen = attention.first_part(row.position);
  const int64_t end = smaller(saved.end, row.last_key / kPart + 1);
  float largest[16] = {}, part_largest[16] = {}, keep[16], take[16];
  for (int64_t part = larger(saved.first, first_seen); part < end; ++part) {
    const float* states = saved.at(number, part, first_head) + 16;
    const int64_t stride = attention.state_floats();
    for (int64_t head = 0; head < heads; ++head) {
      largest[head] = totals[head * stride + 16 - 2];
      part_largest[head] = states[head * stride - 2];
    }
    const Joined joined(load(largest), load(part_largest));
    store(keep, joined.keep);
    store(take, joined.take);
    for (int64_t head = 0; head < heads; ++head) {
      const SavedState total = {totals + head * stride + 16};
      const float* more = states + head * stride;
      if (part == first_seen) {
        memcpy(total.values - 16, more - 16, static_cast<size_t>(stride) * sizeof(float));
        continue;
      }
      join_values(total.values, more, keep[head], take[head], attention.padded);
      total.weight() = join_weights(total.weight(), more[-1], keep[head], take[head]);
      if (more[-2] > total.largest()) total.largest() = more[-2];
    }
  }
  if (saved.first > row.last_key / kPart || end <= row.last_key / kPart) return;
  for (int64_t head = 0; head < heads; ++head) {
    const SavedState total = {totals + head * attention.state_floats() + 16};
    write_head(attention, row.token, first_head + head, total.values, total.largest(), total.weight());
  }
}

inline void join_all(Team& team, const Attention& attention, const AttentionPlan& plan, const Saved& saved) {
  const int64_t pieces = (attention.heads + 15) / 16;
  team.parallel_ranges(plan.saved_rows() * pieces, 4, [&](int64_t begin, int64_t end, int thread) {
    float* memory = team.scratch(thread, static_cast<size_t>(16 * attention.state_floats()));
    for (int64_t task = begin; task < end; ++task) {
      const Row& row = plan.rows()[task / pieces];
      const int64_t head = task % pieces * 16;
      if (row.saved == 0) continue;
      float* totals = saved.totals == nullptr ? memory : saved.total_of(task / pieces, head);
      join_saved(attention, row, task / pieces, head, saved, totals);
    }
  });
}

inline Saved reserve(Team& team, const Attention& attention, const AttentionPlan& plan) {
  Saved saved = {nullptr, nullptr, 0, 0, 0, attention.heads, attention.state_floats()};
  if (plan.saved_rows() == 0) return saved;
  const int64_t of_part = plan.saved_rows() * attention.heads * attention.state_floats();
  const int64_t parts = plan.end_of_saved_parts() - plan.first_saved_part();
  saved.length = smaller(parts, larger(1, kMostSaved / of_part));
  const bool turns = saved.length < parts;
  saved.states = team.shared(static_cast<size_t>(of_part * (saved.length + (turns ? 1 : 0))));
  if (turns) saved.totals = saved.states + of_part * saved.length;
  saved.first = plan.first_saved_part();
  saved.end = saved.first + saved.length;
  return saved;
}

// Works: which work a task of so many tokens is done by, and the floats that one needs. Asked: Attention, or more.
template <class Works, class Asked> void run_attention(Team& team, const Asked& attention, const Step& step) {
  const AttentionPlan plan(team, attention, step);
  const size_t floats = Works::floats_needed(attention, plan.most_rows());
  Saved saved = reserve(team, attention, plan);
  for (bool first = true;; first = false) {
    team.parallel_runs(plan.units(), 1, [&](int64_t task, int64_t next, int thread) {
      const Unit& unit = plan.unit(task);
      if (unit.saved == 0 && !first) return;
      float* memory = team.scratch(thread, floats);
      for (int64_t head = unit.first_head; head < unit.first_head + unit.heads; ++head) {
        Works::choose(attention, unit.rows, [&](auto* work) {
          run_unit<std::remove_pointer_t<decltype(work)>>(attention, plan, unit, head, saved,
                                                          next < plan.units() ? &plan.unit(next) : nullptr, memory);
        });
      }
    });
    if (plan.saved_rows() == 0) return;
    join_all(team, attention, plan, saved);
    if (saved.end >= plan.end_of_saved_parts()) return;
    saved.first = saved.end;
    saved.end += saved.length;
  }
}

} // namespace octavo
