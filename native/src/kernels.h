// Every kernel of a program. `rows` is the number of rows the instruction runs over: the step's tokens, or its sampled
// rows. instruction.h says what each computes.
#pragma once
#include "linear.h"
#include "octavo/instruction.h"
#include "thread_team.h"

namespace octavo {

using Instruction = OctavoInstruction;
using Program = OctavoProgram;
using Step = OctavoStep;

void rms_norm(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void layer_norm(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void add_rms_norm(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void add(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void scale(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void act(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void act_mul(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void softcap(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void select_rows(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void qkv_rope_cache(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void paged_attention(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void latent_cache(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void latent_attention(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void scale_by_position(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void causal_conv(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void state_scan(Team&, const Instruction&, const Program&, const Step&, int64_t rows);
void gated_norm(Team&, const Instruction&, const Program&, const Step&, int64_t rows);

// copy_plain: whether rows without rules are copied too. When not, sample must be told to read them from in1.
void process_logits(Team&, const Instruction&, const Program&, const Step&, int64_t rows, bool copy_plain);
void sample(Team&, const Instruction&, const Program&, const Step&, int64_t rows, bool plain_from_raw);

} // namespace octavo
