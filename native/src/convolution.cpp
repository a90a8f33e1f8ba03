// A causal convolution of each channel over its last few inputs, which are the layer's state. A thread takes 16
// channels of a sequence through all its tokens.
#include "simd/math.h"
#include "state.h"

namespace octavo {
namespace {

constexpr int64_t kMostTaps = 16;
constexpr int64_t kFloatsOfTask = 4096;

struct Convolution {
  int64_t width, taps, first, stride;
  bool gated, silu;
  const float *weight, *bias, *in; // weight: [taps][width], the oldest input's first
  float* out;

  Convolution(const Instruction& code, const Program& program)
      : width(code.i[1]), taps(code.i[2]), first(code.i[3]), stride(code.i[4]), gated((code.i[5] & 1) != 0),
        silu((code.i[5] & 2) != 0), weight(static_cast<const float*>(code.p[0])),
        bias(static_cast<const float*>(code.p[1])), in(program.buffer[code.in0]), out(program.buffer[code.out]) {}

  // Gated, a row is [before | after | x], each `width` wide: the input is before * x, the output after * sum.
  Vec16 input(int64_t token, int64_t at, int64_t count) const {
    const float* row = in + token * stride + first + at;
    if (!gated) return load_up_to(row, count);
    return load_up_to(row, count) * load_up_to(row + 2 * width, count);
  }

  Vec16 output(Vec16 total, int64_t token, int64_t at, int64_t count) const {
    if (gated) return total * load_up_to(in + token * stride + first + width + at, count);
    return silu ? total / (set1(1.0f) + exp(zero() - total)) : total;
  }
};

void run_channels(const Convolution& conv, const States& states, const Step& step, int64_t sequence, int64_t at) {
  const int64_t count = conv.width - at;
  const int64_t kept = conv.taps - 1;
  const float* before = states.before(sequence, 0);
  float* after = states.after(sequence, 0);
  Vec16 past[kMostTaps]; // the oldest first
  Vec16 weights[kMostTaps];
  for (int64_t tap = 0; tap < kept; ++tap) {
    past[tap] = before == nullptr ? zero() : load_up_to(before + tap * conv.width + at, count);
  }
  for (int64_t tap = 0; tap < conv.taps; ++tap) weights[tap] = load_up_to(conv.weight + tap * conv.width + at, count);
  const Vec16 bias = conv.bias == nullptr ? zero() : load_up_to(conv.bias + at, count);
  for (int64_t token = step.query_starts[sequence]; token < step.query_starts[sequence + 1]; ++token) {
    past[kept] = conv.input(token, at, count);
    Vec16 total = bias;
    for (int64_t tap = 0; tap < conv.taps; ++tap) total = fma(past[tap], weights[tap], total);
    for (int64_t tap = 0; tap < kept; ++tap) past[tap] = past[tap + 1];
    store_up_to(conv.out + token * conv.width + at, conv.output(total, token, at, count), count);
  }
  for (int64_t tap = 0; tap < kept; ++tap) store_up_to(after + tap * conv.width + at, past[tap], count);
}

} // namespace

void causal_conv(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t rows) {
  const Convolution conv(code, program);
  const States states(program, step, code.p[2]);
  const int64_t vectors = (conv.width + 15) / 16;
  const int64_t work = 16 * conv.taps * (rows / step.sequences + 1); // of 16 channels
  team.parallel_ranges(step.sequences * vectors, (kFloatsOfTask + work - 1) / work,
                       [&](int64_t begin, int64_t end, int) {
                         for (int64_t task = begin; task < end; ++task) {
                           run_channels(conv, states, step, task / vectors, task % vectors * 16);
                         }
                       });
}

} // namespace octavo
