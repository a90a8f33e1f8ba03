// The recurrence of a selective state space (Mamba-2: Dao & Gu 2024, arXiv:2405.21060, section 2.1), token by token. A
// head's state is [state][head_dim]; a thread takes a head of a sequence through all its tokens, so the order of every
// sum is that of the tokens and of the state's elements.
#include <math.h>

#include "simd/math.h"
#include "state.h"

namespace octavo {
namespace {

struct Scan {
  int64_t heads, head_dim, state, groups, first, stride;
  float least, most; // of a time step
  const float *a, *d, *bias, *in, *steps;
  float* out;

  Scan(const Instruction& code, const Program& program)
      : heads(code.i[1]), head_dim(code.i[2]), state(code.i[3]), groups(code.i[4]), first(code.i[5]),
        stride(code.i[6]), least(code.f[0]), most(code.f[1]), a(static_cast<const float*>(code.p[0])),
        d(a + heads), bias(d + heads), in(program.buffer[code.in0]), steps(program.buffer[code.in1]),
        out(program.buffer[code.out]) {}

  int64_t inner() const { return heads * head_dim; }
  int64_t width() const { return inner() + 2 * groups * state; }
};

// log(1 + e^x); x itself when that is the same.
float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// h = decay h + b (dt x);  y = c h, for `Vectors` vectors of the head's elements.
template <int Vectors>
void advance(const Scan& scan, float* h, const float* b, const float* c, float decay, const Vec16 (&dx)[Vectors],
             int64_t left, Vec16 (&y)[Vectors]) {
  const Vec16 keep = set1(decay);
  for (int v = 0; v < Vectors; ++v) y[v] = zero();
  for (int64_t n = 0; n < scan.state; ++n) {
    float* row = h + n * scan.head_dim;
    const Vec16 gain = set1(b[n]);
    const Vec16 take = set1(c[n]);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const int64_t count = Vectors > 1 ? 16 : left; // several vectors are whole ones
      const Vec16 value = fma(gain, dx[v], load_up_to(row + 16 * v, count) * keep);
      store_up_to(row + 16 * v, value, count);
      y[v] = fma(take, value, y[v]);
    }
  }
}

template <int Vectors>
void run_elements(const Scan& scan, float* h, int64_t token, int64_t head, int64_t at, float dt, float decay) {
  const float* row = scan.in + token * scan.width();
  const int64_t group = head / (scan.heads / scan.groups) * scan.state;
  const float* b = row + scan.inner() + group;
  const float* c = b + scan.groups * scan.state;
  const float* x = row + head * scan.head_dim + at;
  float* out = scan.out + token * scan.inner() + head * scan.head_dim + at;
  const int64_t left = scan.head_dim - at;
  Vec16 dx[Vectors];
  Vec16 y[Vectors];
  for (int v = 0; v < Vectors; ++v) dx[v] = load_up_to(x + 16 * v, left - 16 * v) * set1(dt);
  advance<Vectors>(scan, h + at, b, c, decay, dx, left, y);
  for (int v = 0; v < Vectors; ++v) {
    const Vec16 direct = load_up_to(x + 16 * v, left - 16 * v) * set1(scan.d[head]);
    store_up_to(out + 16 * v, y[v] + direct, left - 16 * v);
  }
}

void run_head(const Scan& scan, const States& states, const Step& step, int64_t sequence, int64_t head) {
  float* h = states.open(sequence, 1 + head, scan.head_dim * scan.state); // piece 0 is the convolution's
  for (int64_t token = step.query_starts[sequence]; token < step.query_starts[sequence + 1]; ++token) {
    const float raw = softplus(scan.steps[token * scan.stride + scan.first + head] + scan.bias[head]);
    const float dt = fminf(fmaxf(raw, scan.least), scan.most);
    const float decay = expf(dt * scan.a[head]);
    int64_t at = 0;
    for (; at + 64 <= scan.head_dim; at += 64) run_elements<4>(scan, h, token, head, at, dt, decay);
    for (; at < scan.head_dim; at += 16) run_elements<1>(scan, h, token, head, at, dt, decay);
  }
}

} // namespace

void state_scan(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t) {
  const Scan scan(code, program);
  const States states(program, step, code.p[1]);
  team.parallel(step.sequences * scan.heads,
                [&](int64_t task, int) { run_head(scan, states, step, task / scan.heads, task % scan.heads); });
}

} // namespace octavo
