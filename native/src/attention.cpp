// Paged attention. A task is some rows and one kv head, so the keys and values it loads serve all query heads of the
// group, and all sequences that have them in common.
//
// What a row computes depends on its own position (and the context's length, where keys behind it are seen): keys are
// taken in parts of kPart, counted from position 0; a part is summed on its own and parts are joined in order. So a
// long context may be cut over threads at parts, a part may be summed together with that of other sequences, and the
// tiles, the batch and the size of cache blocks leave no trace in the bits.
#include "attention_coded.h"
#include "attention_prompt.h"
#include "attention_run.h"
#include "attention_work.h"

namespace octavo {
namespace {

// The works that a task may be done by.
template <class Format, class Prompt = PromptWork<Format>> struct Works {
  // use(type) with the one that suits it.
  template <class F> static void choose(const Attention& attention, int64_t tokens, F&& use) {
    if constexpr (Format::kCoded) {
      use(static_cast<CodedWork<Format>*>(nullptr));
    } else if (Prompt::takes(attention, tokens)) {
      use(static_cast<Prompt*>(nullptr));
    } else {
      use(static_cast<UnitWork<Format>*>(nullptr));
    }
  }

  static size_t floats_needed(const Attention& attention, int64_t tokens) {
    if constexpr (Format::kCoded) {
      return static_cast<size_t>(CodedWork<Format>::floats_needed(attention, tokens));
    } else {
      return static_cast<size_t>(
          larger(UnitWork<Format>::floats_needed(attention, tokens), Prompt::floats_needed(attention, tokens)));
    }
  }
};

template <class Format> void run(Team& team, const Attention& attention, const Step& step) {
  run_attention<Works<Format>>(team, attention, step);
}

void run_bf16(Team& team, const Attention& attention, const Step& step) {
#if defined(OCTAVO_ISA_AVX512)
  const bool fits = attention.layer.layout.block_size % 16 == 0 && attention.head_dim % 16 == 0;
  if (fits && choose_pairs()) return run_attention<Works<CacheBf16, PromptWork<CacheBf16, InPairs>>>(team, attention, step);
#endif
  run<CacheBf16>(team, attention, step);
}

} // namespace

void paged_attention(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t) {
  const Attention attention(code, program);
  switch (code.i[8]) {
  case OCTAVO_CACHE_F16: return run<CacheF16>(team, attention, step);
  case OCTAVO_CACHE_BF16: return run_bf16(team, attention, step);
  case OCTAVO_CACHE_INT8: return run<CacheInt8>(team, attention, step);
  case OCTAVO_CACHE_FP8_E4M3: return run<CacheE4m3>(team, attention, step);
  case OCTAVO_CACHE_FP8_E5M2: return run<CacheE5m2>(team, attention, step);
  case OCTAVO_CACHE_INT4: return run<CacheInt4>(team, attention, step);
  default: return run<CacheF32>(team, attention, step);
  }
}

} // namespace octavo
