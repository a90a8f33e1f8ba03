// The interpreter: one call runs a whole step.
#include <time.h>

#include "kernels.h"
#include "octavo/abi.h"

namespace octavo {
namespace {

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// PROCESS_LOGITS followed by SAMPLE of its result, the raw logits its input: rows without rules need no copy.
bool is_sampling_pair(const Program& program, int32_t index) {
  if (index < 0 || index + 1 >= program.count) return false;
  const Instruction& rules = program.code[index];
  const Instruction& draw = program.code[index + 1];
  return rules.opcode == OCTAVO_PROCESS_LOGITS && draw.opcode == OCTAVO_SAMPLE && draw.in0 == rules.out &&
         draw.in1 == rules.in0;
}

void run_one(Team& team, const Program& program, const Step& step, int32_t index) {
  const Instruction& code = program.code[index];
  const int64_t rows = code.i[0] == 0 ? step.tokens : step.rows;
  if (rows == 0) return;
  switch (code.opcode) {
  case OCTAVO_EMBED: return embed(team, code, program, step, rows);
  case OCTAVO_LINEAR: return linear(team, code, program, step, rows);
  case OCTAVO_RMS_NORM: return rms_norm(team, code, program, step, rows);
  case OCTAVO_LAYER_NORM: return layer_norm(team, code, program, step, rows);
  case OCTAVO_ADD: return add(team, code, program, step, rows);
  case OCTAVO_SCALE: return scale(team, code, program, step, rows);
  case OCTAVO_ACT: return act(team, code, program, step, rows);
  case OCTAVO_ACT_MUL: return act_mul(team, code, program, step, rows);
  case OCTAVO_QKV_ROPE_CACHE: return qkv_rope_cache(team, code, program, step, rows);
  case OCTAVO_PAGED_ATTENTION: return paged_attention(team, code, program, step, rows);
  case OCTAVO_SOFTCAP: return softcap(team, code, program, step, rows);
  case OCTAVO_SELECT_ROWS: return select_rows(team, code, program, step, rows);
  case OCTAVO_PROCESS_LOGITS: return process_logits(team, code, program, step, rows, !is_sampling_pair(program, index));
  case OCTAVO_SAMPLE: return sample(team, code, program, step, rows, is_sampling_pair(program, index - 1));
  case OCTAVO_ADD_RMS_NORM: return add_rms_norm(team, code, program, step, rows);
  case OCTAVO_LATENT_CACHE: return latent_cache(team, code, program, step, rows);
  case OCTAVO_LATENT_ATTENTION: return latent_attention(team, code, program, step, rows);
  case OCTAVO_HEAD_LINEAR: return head_linear(team, code, program, step, rows);
  case OCTAVO_CAUSAL_CONV: return causal_conv(team, code, program, step, rows);
  case OCTAVO_STATE_SCAN: return state_scan(team, code, program, step, rows);
  case OCTAVO_SCALE_BY_POSITION: return scale_by_position(team, code, program, step, rows);
  case OCTAVO_GATED_LINEAR: return gated_linear(team, code, program, step, rows);
  case OCTAVO_GATED_NORM: return gated_norm(team, code, program, step, rows);
  default: return; // the recorder writes no other
  }
}

} // namespace
} // namespace octavo

extern "C" {

void octavo_run(void* team, const OctavoProgram* program, const OctavoStep* step) {
  for (int32_t index = 0; index < program->count; ++index) {
    octavo::run_one(*static_cast<octavo::Team*>(team), *program, *step, index);
  }
}

void octavo_run_timed(void* team, const OctavoProgram* program, const OctavoStep* step, double* seconds) {
  for (int32_t index = 0; index < program->count; ++index) {
    const double start = octavo::now();
    octavo::run_one(*static_cast<octavo::Team*>(team), *program, *step, index);
    seconds[index] = octavo::now() - start;
  }
}

} // extern "C"
