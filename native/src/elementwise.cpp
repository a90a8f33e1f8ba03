// Element by element: sums, factors, activations, caps, and the choice of rows.
#include <math.h>
#include <string.h>

#include "activation.h"
#include "kernels.h"
#include "simd/math.h"

namespace octavo {
namespace {

constexpr int64_t kCheapTask = 16384; // floats of a task when an element costs a cycle or less
constexpr int64_t kDearTask = 4096;   // and when it costs a polynomial

// f(first element, elements) over 0 .. count - 1, at most 16 at a time.
template <class F> void for_vectors(Team& team, int64_t count, int64_t task, F&& f) {
  team.parallel_ranges((count + 15) / 16, task / 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t vector = begin; vector < end; ++vector) f(vector * 16, count - vector * 16);
  });
}

struct Silu {
  template <class V> V operator()(const V& x) const { return x / (set1(1.0f) + exp(zero() - x)); }
};
struct Gelu { // x times the normal distribution function
  template <class V> V operator()(const V& x) const {
    const V tail = set1(0.5f) * erfc_positive(absolute(x) * set1(0.70710678f));
    return x * select_less(x, zero(), tail, set1(1.0f) - tail);
  }
};
struct GeluTanh { // x / 2 (1 + tanh u) = x / (1 + e^(-2 u))
  template <class V> V operator()(const V& x) const {
    const V cube = x * x * x;
    const V u = fma(cube, set1(0.044715f), x) * set1(0.79788456f);
    return x / (set1(1.0f) + exp(set1(-2.0f) * u));
  }
};
// Leaves -0 as it is: a processor's own maximum need not.
template <class V> inline V not_below_zero(const V& x) { return select_less(x, zero(), zero(), x); }
struct Relu {
  template <class V> V operator()(const V& x) const { return not_below_zero(x); }
};
struct Relu2 {
  template <class V> V operator()(const V& x) const {
    const V positive = not_below_zero(x);
    return positive * positive;
  }
};
struct QuickGelu {
  template <class V> V operator()(const V& x) const { return x / (set1(1.0f) + exp(set1(-1.702f) * x)); }
};

// use(activation) with the activation's functor.
template <class F> void with_activation(int32_t kind, F&& use) {
  switch (kind) {
  case OCTAVO_SILU: return use(Silu{});
  case OCTAVO_GELU: return use(Gelu{});
  case OCTAVO_GELU_TANH: return use(GeluTanh{});
  case OCTAVO_RELU: return use(Relu{});
  case OCTAVO_RELU2: return use(Relu2{});
  case OCTAVO_QUICK_GELU: return use(QuickGelu{});
  default: return;
  }
}

void gate_row(int32_t activation, const float* gate, const float* up, float* out, int64_t width) {
  with_activation(activation, [=](auto activate) {
    for (int64_t at = 0; at < width; at += 16) {
      const int64_t count = width - at;
      store_up_to(out + at, activate(load_up_to(gate + at, count)) * load_up_to(up + at, count), count);
    }
  });
}

// The same lanes of rows at once: an activation is a long chain.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kTogether = 3;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kTogether = 2;
#else
constexpr int kTogether = 1;
#endif
template <int Rows, class F> void gate_rows(const GatedRows& all, int64_t row, int64_t at, F activate) {
  Many<Rows> gate;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) gate.v[r] = load(all.gate + (row + r) * all.stride + at);
  const Many<Rows> open = activate(gate);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
    store(all.out + (row + r) * all.out_stride + at, open.v[r] * load(all.up + (row + r) * all.stride + at));
}

} // namespace

void add(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const float* left = program.buffer[code.in0];
  const float* right = program.buffer[code.in1];
  float* out = program.buffer[code.out];
  for_vectors(team, rows * code.width, kCheapTask, [=](int64_t at, int64_t count) {
    store_up_to(out + at, load_up_to(left + at, count) + load_up_to(right + at, count), count);
  });
}

void scale(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  const float factor = code.f[0];
  for_vectors(team, rows * code.width, kCheapTask, [=](int64_t at, int64_t count) {
    store_up_to(out + at, load_up_to(in + at, count) * set1(factor), count);
  });
}

void act(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  with_activation(code.i[1], [&](auto activation) {
    for_vectors(team, rows * code.width, kDearTask, [=](int64_t at, int64_t count) {
      store_up_to(out + at, activation(load_up_to(in + at, count)), count);
    });
  });
}

void GatedRows::add_bias(const float* gate_bias, const float* up_bias) const {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t at = 0; at < width; at += 16) {
      const int64_t count = width - at, here = row * stride + at;
      store_up_to(gate + here, load_up_to(gate + here, count) + load_up_to(gate_bias + at, count), count);
      store_up_to(up + here, load_up_to(up + here, count) + load_up_to(up_bias + at, count), count);
    }
}

void GatedRows::write(int32_t activation) const {
  with_activation(activation, [&](auto activate) {
    for (int64_t at = 0; at < width; at += 16) {
      int64_t row = 0;
      if (width - at >= 16)
        for (; row + kTogether <= rows; row += kTogether) gate_rows<kTogether>(*this, row, at, activate);
      for (; row < rows; ++row) {
        const int64_t from = row * stride + at, count = width - at;
        const Vec16 gated = activate(load_up_to(gate + from, count)) * load_up_to(up + from, count);
        store_up_to(out + row * out_stride + at, gated, count);
      }
    }
  });
}

void gate_halves(Team& team, int32_t activation, const float* in, float* out, int64_t rows, int64_t width) {
  const int64_t pieces = (width + kDearTask - 1) / kDearTask; // of a row, for one wide row
  const int64_t least = (kDearTask * pieces + width - 1) / width;
  team.parallel_ranges(rows * pieces, least, [&](int64_t begin, int64_t end, int) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece / pieces, first = piece % pieces * kDearTask;
      const int64_t last = first + kDearTask < width ? first + kDearTask : width;
      const float* gate = in + row * 2 * width + first;
      gate_row(activation, gate, gate + width, out + row * width + first, last - first);
    }
  });
}

void act_mul(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  gate_halves(team, code.i[1], program.buffer[code.in0], program.buffer[code.out], rows, code.width);
}

void softcap(Team& team, const Instruction& code, const Program& program, const Step&, int64_t rows) {
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  const float limit = code.f[0];
  for_vectors(team, rows * code.width, kDearTask, [=](int64_t at, int64_t count) {
    const Vec16 capped = tanh(load_up_to(in + at, count) / set1(limit)) * set1(limit);
    store_up_to(out + at, capped, count);
  });
}

void scale_by_position(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const int64_t width = code.width;
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  team.parallel_ranges(rows, (kCheapTask + width - 1) / width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float spans = floorf((static_cast<float>(step.positions[row]) + 1.0f) / code.f[1]);
      const Vec16 factor = set1(1.0f + code.f[0] * log1pf(spans));
      for (int64_t at = 0; at < width; at += 16) {
        const float* from = in + row * width + at;
        store_up_to(out + row * width + at, load_up_to(from, width - at) * factor, width - at);
      }
    }
  });
}

void select_rows(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const float* in = program.buffer[code.in0];
  float* out = program.buffer[code.out];
  const size_t width = static_cast<size_t>(code.width);
  const int64_t least = (kCheapTask + code.width - 1) / code.width;
  team.parallel_ranges(rows, least, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const size_t from = static_cast<size_t>(step.sampled_rows[row]);
      memcpy(out + static_cast<size_t>(row) * width, in + from * width, width * sizeof(float));
    }
  });
}

} // namespace octavo
