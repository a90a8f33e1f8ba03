// Attention in the latent space, in the parts, units and order of attention.cpp: sequences that begin with the same
// blocks read these once, and nothing of that shows in the bits.
#include "attention_run.h"
#include "latent_work.h"

namespace octavo {
namespace {

template <class Format> struct LatentWorks {
  template <class F> static void choose(const Attention&, int64_t, F&& use) {
    use(static_cast<LatentWork<Format>*>(nullptr));
  }
  static size_t floats_needed(const Attention& attention, int64_t tokens) {
    return static_cast<size_t>(LatentWork<Format>::floats_needed(attention, tokens));
  }
};

} // namespace

void latent_attention(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t) {
  const LatentAttention attention(code, program);
  with_cache_type(code.i[8], [&](auto type) {
    run_attention<LatentWorks<decltype(type)>>(team, attention, step);
  });
}

} // namespace octavo
