// Attention in the latent space: all heads of a token meet the same keys, which are values too. A task is one token and
// some of its heads.
//
// As in attention.cpp what a row computes depends on its own position alone: keys are taken in parts of kPart, counted
// from position 0, and parts are merged in order; so parts may go to other threads. A score is summed in 16 lanes over
// the row's elements, then over the lanes; an output element is one chain over the keys.
#include "attention_rows.h"
#include "head.h"
#include "latent.h"

namespace octavo {
namespace {

constexpr int64_t kHeads = 32;            // of a task
constexpr int64_t kMostPartial = 1 << 22; // floats that may hold parts when a context is cut over threads

// Largest score, sum of weights and weighted values of a head, over some of its keys.
struct RowState {
  float* values; // [padded]
  float& largest() const { return values[-2]; }
  float& weight() const { return values[-1]; }
};

void clear(RowState state, int64_t padded) {
  state.largest() = -INFINITY;
  state.weight() = 0.0f;
  memset(state.values, 0, static_cast<size_t>(padded) * sizeof(float));
}

float exp1(float x) { return first_lane(exp(set1(x))); }

// total = total and part, both relative to their own largest score.
void merge(RowState total, RowState part, int64_t padded) {
  const bool higher = part.largest() > total.largest();
  const float keep = higher ? exp1(total.largest() - part.largest()) : 1.0f;
  const float take = higher ? 1.0f : exp1(part.largest() - total.largest());
  if (higher) total.largest() = part.largest();
  total.weight() = total.weight() * keep + part.weight() * take;
  for (int64_t at = 0; at < padded; at += 16) {
    const Vec16 kept = load(total.values + at) * set1(keep);
    store(total.values + at, fma(load(part.values + at), set1(take), kept));
  }
}

struct Latent {
  int64_t heads, nope, rope, rank, padded, query;
  float scale;
  LatentCache cache;
  const float *in, *q;
  float* out;

  Latent(const Instruction& code, const Program& program)
      : heads(code.i[1]), nope(code.i[2]), rope(code.i[3]), rank(code.i[4]), padded((rank + 15) / 16 * 16),
        query((rank + rope + 15) / 16 * 16), scale(code.f[0]),
        cache(*program.cache, code, rank, rope), in(program.buffer[code.in0]),
        q(program.buffer[code.in1]), out(program.buffer[code.out]) {}

  int64_t chunks() const { return (heads + kHeads - 1) / kHeads; }
  int64_t state_floats() const { return padded + 16; }
  int64_t states_floats() const { return smaller(heads, kHeads) * state_floats(); }
  // Queries of a task, its scores, and the state of a part.
  int64_t work_floats() const { return smaller(heads, kHeads) * (query + kPart) + states_floats(); }
  RowState state(float* states, int64_t row) const { return {states + row * state_floats() + 16}; }
};

// The first n of 16 elements; what follows is not read.
template <class Format> Vec16 load_some(const typename Format::Type* p, int64_t n) {
  if (n >= 16) return Format::load16(p);
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = Format::load_rest(p, i);
  return load(lanes);
}

// One token with up to kHeads of its heads, over some parts of its context.
template <class Format> class LatentWork {
public:
  using Type = typename Format::Type;

  LatentWork(const Latent& latent, const Step& step, int64_t token, int64_t chunk, float* memory)
      : latent_(latent), slot_(step.slots[sequence_of(step, token)]), position_(step.positions[token]), token_(token),
        first_head_(chunk * kHeads), rows_(smaller(kHeads, latent.heads - first_head_)), queries_(memory),
        scores_(memory + rows_ * latent.query), part_(scores_ + rows_ * kPart) {
    load_queries();
  }

  // totals: the states of the heads, merged with those of parts first .. end - 1.
  void run_parts(int64_t first, int64_t end, float* totals) {
    for (int64_t part = first; part < end; ++part) {
      run_part(part, part_);
      for (int64_t row = 0; row < rows_; ++row) {
        merge(latent_.state(totals, row), latent_.state(part_, row), latent_.padded);
      }
    }
  }

  void run_part(int64_t part, float* states) {
    const int64_t begin = part * kPart;
    count_ = smaller(kPart, position_ + 1 - begin);
    for (int64_t key = 0; key < count_; ++key) keys_[key] = latent_.cache.row<Type>(slot_, begin + key);
    for (int64_t key = count_; key % kTileVectors != 0; ++key) keys_[key] = keys_[count_ - 1];
    for (int64_t row = 0; row < rows_; ++row) clear(latent_.state(states, row), latent_.padded);
    for_row_tiles<kTileRows>(0, rows_, [&](int64_t row, auto rows) {
      for (int64_t key = 0; key < count_; key += kTileVectors) score<rows.value>(row, key);
    });
    for (int64_t row = 0; row < rows_; ++row) weigh(scores_ + row * kPart, latent_.state(states, row));
    for_row_tiles<kTileRows>(0, rows_, [&](int64_t row, auto rows) { add_values<rows.value>(row, states); });
  }

  void clear_all(float* states) const {
    for (int64_t row = 0; row < rows_; ++row) clear(latent_.state(states, row), latent_.padded);
  }

  void write_output(float* totals) const {
    for (int64_t row = 0; row < rows_; ++row) {
      const RowState total = latent_.state(totals, row);
      float* out = latent_.out + (token_ * latent_.heads + first_head_ + row) * latent_.rank;
      const Vec16 factor = set1(1.0f / total.weight());
      for (int64_t at = 0; at < latent_.rank; at += 16) {
        store_up_to(out + at, load(total.values + at) * factor, latent_.rank - at);
      }
    }
  }

  int64_t rows() const { return rows_; }

private:
  // A query is the one of the latent, then the rotated one, scaled; zeros fill the last vector.
  void load_queries() {
    const int64_t head = latent_.nope + latent_.rope;
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t at = token_ * latent_.heads + first_head_ + row;
      float* query = queries_ + row * latent_.query;
      memset(query, 0, static_cast<size_t>(latent_.query) * sizeof(float));
      const float* from = latent_.in + at * latent_.rank;
      const float* rotated = latent_.q + at * head + latent_.nope;
      for (int64_t d = 0; d < latent_.rank; ++d) query[d] = from[d] * latent_.scale;
      for (int64_t d = 0; d < latent_.rope; ++d) query[latent_.rank + d] = rotated[d] * latent_.scale;
    }
  }

  template <int Rows> void score(int64_t row, int64_t key) {
    Vec16 totals[Rows][kTileVectors];
    for (int r = 0; r < Rows; ++r)
      for (int k = 0; k < kTileVectors; ++k) totals[r][k] = zero();
    const float* query = queries_ + row * latent_.query;
    const Type* const* keys = keys_ + key;
    const int64_t width = latent_.cache.width;
    const auto add = [&](int64_t d, auto&& read) {
      Vec16 values[kTileVectors];
#pragma GCC unroll 4
      for (int k = 0; k < kTileVectors; ++k) values[k] = read(keys[k] + d);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Vec16 q = load(query + r * latent_.query + d);
#pragma GCC unroll 4
        for (int k = 0; k < kTileVectors; ++k) totals[r][k] = fma(q, values[k], totals[r][k]);
      }
    };
    int64_t d = 0;
    for (; d + 16 <= width; d += 16) add(d, [](const Type* p) { return Format::load16(p); });
    if (d < width) add(d, [=](const Type* p) { return load_some<Format>(p, width - d); });
    for (int r = 0; r < Rows; ++r)
      for (int k = 0; k < kTileVectors; ++k) scores_[(row + r) * kPart + key + k] = sum(totals[r][k]);
  }

  // Scores become weights e^(score - largest).
  void weigh(float* scores, RowState state) const {
    Vec16 top = set1(-INFINITY);
    for (int64_t at = 0; at < count_; at += 16) {
      Vec16 score = load(scores + at);
      if (count_ - at < 16) score = keep_range(score, 0, static_cast<int>(count_ - at), -INFINITY);
      store(scores + at, score);
      top = max(score, top);
    }
    state.largest() = largest(top);
    const Vec16 most = set1(state.largest());
    Vec16 total = zero();
    for (int64_t at = 0; at < count_; at += 16) {
      const Vec16 weight = exp(load(scores + at) - most);
      store(scores + at, weight);
      total = total + weight;
    }
    state.weight() = sum(total);
  }

  template <int Rows> void add_values(int64_t row, float* states) {
    const auto read = [](const Type* p) { return Format::load16(p); };
    int64_t at = 0;
    for (; at + 16 * kTileVectors <= latent_.rank; at += 16 * kTileVectors) {
      add_tile<Rows, kTileVectors>(row, at, states, read);
    }
    for (; at + 16 <= latent_.rank; at += 16) add_tile<Rows, 1>(row, at, states, read);
    const int64_t left = latent_.rank - at;
    if (left > 0) add_tile<Rows, 1>(row, at, states, [=](const Type* p) { return load_some<Format>(p, left); });
  }

  template <int Rows, int Vectors, class Read> void add_tile(int64_t row, int64_t at, float* states, Read&& read) {
    Vec16 totals[Rows][Vectors];
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) totals[r][v] = zero();
    const float* weights = scores_ + row * kPart;
    for (int64_t key = 0; key < count_; ++key) {
      Vec16 values[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) values[v] = read(keys_[key] + at + 16 * v);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Vec16 weight = set1(weights[r * kPart + key]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) totals[r][v] = fma(weight, values[v], totals[r][v]);
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) store(latent_.state(states, row + r).values + at + 16 * v, totals[r][v]);
  }

  const Latent& latent_;
  int32_t slot_;
  int64_t position_, token_, first_head_, rows_;
  int64_t count_ = 0; // keys of the part at hand
  const Type* keys_[kPart];
  float *queries_, *scores_, *part_;
};

int64_t parts_of(const Step& step, int64_t token) { return step.positions[token] / kPart + 1; }

// Each task does all parts of its token.
template <class Format> void run_whole(Team& team, const Latent& latent, const Step& step, int64_t tokens) {
  const int64_t chunks = latent.chunks();
  team.parallel(tokens * chunks, [&](int64_t task, int thread) {
    const int64_t token = tokens - 1 - task / chunks; // the last see most keys: they come first
    float* totals = team.scratch(thread, static_cast<size_t>(latent.states_floats() + latent.work_floats()));
    LatentWork<Format> work(latent, step, token, task % chunks, totals + latent.states_floats());
    work.clear_all(totals);
    work.run_parts(0, parts_of(step, token), totals);
    work.write_output(totals);
  });
}

// Each task does one part; then the parts are merged as run_whole merges them.
template <class Format>
void run_split(Team& team, const Latent& latent, const Step& step, int64_t tokens, int64_t parts, float* states) {
  const int64_t chunks = latent.chunks();
  team.parallel(parts * chunks, [&](int64_t task, int thread) {
    int64_t token = 0;
    int64_t part = task / chunks;
    for (; part >= parts_of(step, token); ++token) part -= parts_of(step, token);
    float* memory = team.scratch(thread, static_cast<size_t>(latent.work_floats()));
    LatentWork<Format>(latent, step, token, task % chunks, memory).run_part(part, states + task * latent.states_floats());
  });
  team.parallel(tokens * chunks, [&](int64_t task, int thread) {
    const int64_t token = task / chunks;
    int64_t before = 0;
    for (int64_t earlier = 0; earlier < token; ++earlier) before += parts_of(step, earlier);
    float* totals = team.scratch(thread, static_cast<size_t>(latent.states_floats() + latent.work_floats()));
    const LatentWork<Format> work(latent, step, token, task % chunks, totals + latent.states_floats());
    work.clear_all(totals);
    for (int64_t part = before; part < before + parts_of(step, token); ++part) {
      float* of_part = states + (part * chunks + task % chunks) * latent.states_floats();
      for (int64_t row = 0; row < work.rows(); ++row) {
        merge(latent.state(totals, row), latent.state(of_part, row), latent.padded);
      }
    }
    work.write_output(totals);
  });
}

template <class Format> void run(Team& team, const Latent& latent, const Step& step, int64_t tokens) {
  const int64_t tasks = tokens * latent.chunks();
  if (team.threads() == 1 || tasks >= 4 * team.threads()) return run_whole<Format>(team, latent, step, tokens);
  int64_t parts = 0;
  for (int64_t token = 0; token < tokens; ++token) parts += parts_of(step, token);
  const int64_t partial = parts * latent.chunks() * latent.states_floats();
  if (parts == tokens || partial > kMostPartial) return run_whole<Format>(team, latent, step, tokens);
  run_split<Format>(team, latent, step, tokens, parts, team.shared(static_cast<size_t>(partial)));
}

} // namespace

void latent_attention(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Latent latent(code, program);
  switch (code.i[8]) {
  case OCTAVO_CACHE_F16: return run<CacheF16>(team, latent, step, rows);
  case OCTAVO_CACHE_BF16: return run<CacheBf16>(team, latent, step, rows);
  default: return run<CacheF32>(team, latent, step, rows);
  }
}

} // namespace octavo
