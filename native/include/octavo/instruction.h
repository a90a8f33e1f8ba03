/* What a recorded program is made of, and what one step hands to it. Python mirrors these structs in
 * octavo/kernels/cpu/structs.py; a test compares sizes and offsets.
 *
 * Activations are float32, row-major. Buffers are numbered; the program holds a pointer for each. All checks were
 * made when the program was recorded: the interpreter trusts it. */
#pragma once
#include <stdint.h>

/* How a matrix is stored. The same numbers name the source (a file's row-major blocks) and the packed layout made of
 * it by octavo_pack: panels of 16 output rows, the input dimension outermost inside a panel, lanes = output rows. One
 * layout serves every instruction set. Rows are padded to 16 with zeros. */
enum OctavoFormat {
  OCTAVO_F32 = 0,
  OCTAVO_F16 = 1,
  OCTAVO_BF16 = 2,
  OCTAVO_Q4_0 = 3,
  OCTAVO_Q4_1 = 4,
  OCTAVO_Q5_0 = 5,
  OCTAVO_Q5_1 = 6,
  OCTAVO_Q8_0 = 7,
  OCTAVO_Q2_K = 8,
  OCTAVO_Q3_K = 9,
  OCTAVO_Q4_K = 10,
  OCTAVO_Q5_K = 11,
  OCTAVO_Q6_K = 12,
  OCTAVO_IQ4_NL = 13,
  OCTAVO_MXFP4 = 14,
  /* Of quantized safetensors checkpoints. What shares a scale, and what a scale is, are told by the bits above 255:
   * the number is one of these + OCTAVO_SCALE_TYPE * OctavoScaleType + OCTAVO_SPAN * span + OCTAVO_ORDERED or
   * OCTAVO_ROTATED, where
   * 32 << span inputs share a scale, with span OCTAVO_WHOLE_ROW all of a row. A source row is: its codes (of 4 bits the
   * even input's first, in the low half), its scales, its zero points (a byte each). */
  OCTAVO_INT4 = 15,  /* scale * (code - 8) */
  OCTAVO_INT4Z = 16, /* scale * (code - zero point) */
  OCTAVO_INT8 = 17,  /* scale * code, signed */
  OCTAVO_INT8Z = 18, /* scale * (code - zero point), both signed */
  OCTAVO_E4M3 = 19,  /* scale * code, a float of 8 bits (OCP 8-bit floating point, 1.0) */
  /* scale * (step * code + start), with one scale a row: instead of zero points a row has its steps, a byte for each 32
   * inputs, then its starts, likewise and signed. step * code + start fits a signed byte for every code of 4 bits. */
  OCTAVO_INT4S = 20,
};

#define OCTAVO_SCALE_TYPE 256
#define OCTAVO_SPAN 4096
#define OCTAVO_WHOLE_ROW 15
/* Inputs are taken in another order: behind the panels stand int32 [cols], which input each column belongs to. */
#define OCTAVO_ORDERED 65536
/* Codes are those of rows times H / 8 for each 64 inputs, H Sylvester's Hadamard matrix: inputs are turned likewise before
 * they meet them. Integers in some order are not ordered, too. */
#define OCTAVO_ROTATED 131072

enum OctavoScaleType {
  OCTAVO_SCALE_F16 = 0,
  OCTAVO_SCALE_BF16 = 1,
  OCTAVO_SCALE_F32 = 2,
  OCTAVO_SCALE_SHARED = 3, /* f32, the same for every 16 rows from a multiple of 16 on */
};

/* Consecutive output rows of a matrix in one packed format. */
typedef struct {
  int32_t format;
  int32_t rows;
  int32_t cols; /* input dimension, elements */
  int32_t reserved;
  const void* data;
} OctavoSegment;

/* Operands of each opcode. "T|R" : i[0] of every instruction says whether it runs over the step's tokens (0) or its
 * sampled rows (1). width: of the output row, elements.
 *
 *   EMBED           out[T, width] = row of table.         p[0] OctavoSegment*, i[1] their count, i[2] ids: 0 token ids, 1 positions, 2 token types
 *   LINEAR          out = in0 @ w^T (+ bias p[1]) (+ in1, a residual, when in1 >= 0).   p[0] OctavoSegment*, i[1] count, depth = in
 *                                                         i[2] OctavoCoding: what segments of a block format round their inputs to
 *   RMS_NORM        out = norm(in0) * p[0] (null: 1).     f[0] eps
 *   LAYER_NORM      out = norm(in0) * p[0] + p[1].        f[0] eps
 *   ADD             out = in0 + in1
 *   SCALE           out = in0 * f[0]
 *   ACT             out = act(in0).                       i[1] OctavoActivation
 *   ACT_MUL         out = act(in0[:, :width]) * in0[:, width:].   i[1] OctavoActivation; in0 is 2 * width wide
 *   QKV_ROPE_CACHE  out = q, rotated.  in0 = qkv.         i[1] heads i[2] kv_heads i[3] head_dim i[4] rotary width (0: none)
 *                                                         i[5] group i[6] layer index in the group
 *                                                         i[8] OctavoCacheType of the layer i[9] its place in a page, 64 bytes
 *                                                         f[0] qk-norm eps
 *                                                         p[0] cos p[1] sin [max_positions, width/2]  p[2] q gain p[3] k gain (null: none)
 *   PAGED_ATTENTION out = attention(in0 = q).             i[1..3], i[5..6], i[8..9] as above; i[4] window (0: full) i[7] chunk (0: none);
 *                                                         i[10] 1: keys behind the query are seen, too (a window reaches both ways)
 *                                                         f[0] scale f[1] softcap (0: none)
 *                                                         p[0] slopes [heads] (null: no ALiBi)  p[1] sinks [heads] (null: none)
 *                                                         p[2] what is added to the score of a key at -f[2] - 16 .. f[2] + 15 from the query,
 *                                                         the same beyond, [heads, 2 f[2] + 32] (null: nothing)
 *   SOFTCAP         out = f[0] * tanh(in0 / f[0])
 *   SELECT_ROWS     out[R, width] = in0[sampled_rows]
 *   PROCESS_LOGITS  out = rules of each row applied to in0   (out may be in0's buffer only if no row asks for logprobs)
 *   SAMPLE          draws from in0; log-probabilities of in1
 *   SCALE_BY_POSITION  out = in0 * (1 + f[0] * ln(1 + floor((position + 1) / f[1])))
 *   LATENT_CACHE    out = in0 = q [heads][nope + rope], the last rope of each head rotated.   in1 = kv [rank + rope]: normed
 *                   latent and rotated key go to the cache.  i[1] heads i[2] nope i[3] rope i[4] rank i[5] group i[6] layer index
 *                                                         f[0] eps  p[0] cos p[1] sin (null: no rotation) p[2] gain (null: 1)
 *   LATENT_ATTENTION out = attention(in0 = q in the latent space [heads][rank], in1 = what LATENT_CACHE gave), [heads][rank]
 *                                                         i[1..6] as above; f[0] scale. Both: i[8..9] as above
 *   HEAD_LINEAR     out[:, h] = in0[:, h, :depth] @ w_h^T.   p[0] OctavoSegment*, one a head, i[1] their count,
 *                                                         i[2] elements a head of in0, i[3] as i[2] of LINEAR
 *   CAUSAL_CONV     out = convolution of in0's columns from i[3] on with the last i[2] inputs of each of i[1] channels
 *                   i[4] width of in0, i[5] bits: 1 gated: in0 = [b | c | x], out = c * conv(b * x); 2: silu of the sum
 *                   p[0] weight [taps, width], the oldest input's first  p[1] bias (null: none)  p[2] pieces
 *   STATE_SCAN      out = Mamba-2's recurrence over in0 = [x heads * head_dim | b groups * state | c groups * state]
 *                   in1: its columns from i[5] on are time steps, one a head, i[6] its width.  i[1] heads i[2] head_dim
 *                   i[3] state i[4] groups  f[0] least f[1] most time step  p[0] a, d, bias of steps [3, heads]  p[1] pieces
 *   GATED_NORM      out = norm(in0 * silu(gate)) * p[0], in i[1] groups of columns.  gate: in1's columns from i[2] on
 *                   i[3] width of in1  f[0] eps
 *                   pieces: int64 [pieces][2], page of the state and byte of that page: of a convolution the last inputs
 *                   [taps - 1, width], then of a scan a piece for each head, [state, head_dim], all float32
 *   fused, written by octavo/kernels/cpu/fusion.py:
 *   ADD_RMS_NORM    out2 = in0 + in1; out = norm(out2) * p[0].    f[0] eps
 *   GATED_LINEAR    out = act(gate) * up, the halves of in0 @ w^T (+ bias p[1]); out2, 2 * width wide, may be used for them
 *                                                         p[0] OctavoSegment*, i[1], i[2], depth as LINEAR  i[3] OctavoActivation
 */
enum OctavoOpcode {
  OCTAVO_EMBED = 0,
  OCTAVO_LINEAR = 1,
  OCTAVO_RMS_NORM = 2,
  OCTAVO_LAYER_NORM = 3,
  OCTAVO_ADD = 4,
  OCTAVO_SCALE = 5,
  OCTAVO_ACT = 6,
  OCTAVO_ACT_MUL = 7,
  OCTAVO_QKV_ROPE_CACHE = 8,
  OCTAVO_PAGED_ATTENTION = 9,
  OCTAVO_SOFTCAP = 10,
  OCTAVO_SELECT_ROWS = 11,
  OCTAVO_PROCESS_LOGITS = 12,
  OCTAVO_SAMPLE = 13,
  OCTAVO_ADD_RMS_NORM = 14,
  OCTAVO_LATENT_CACHE = 15,
  OCTAVO_LATENT_ATTENTION = 16,
  OCTAVO_HEAD_LINEAR = 17,
  OCTAVO_CAUSAL_CONV = 18,
  OCTAVO_STATE_SCAN = 19,
  OCTAVO_GATED_NORM = 20,
  OCTAVO_SCALE_BY_POSITION = 21,
  OCTAVO_GATED_LINEAR = 22,
};

/* How keys and values are kept. int8 and fp8_e4m3 have a scale for each token and head, keys and values apart; int4 has
 * one for 32 elements of these. int8 and int4 keep both rotated by a Hadamard matrix. native/src/cache_types.h computes them. */
enum OctavoCacheType {
  OCTAVO_CACHE_F32 = 0,
  OCTAVO_CACHE_F16 = 1,
  OCTAVO_CACHE_BF16 = 2,
  OCTAVO_CACHE_INT8 = 3,
  OCTAVO_CACHE_FP8_E4M3 = 4,
  OCTAVO_CACHE_FP8_E5M2 = 5,
  OCTAVO_CACHE_INT4 = 6,
};

enum OctavoActivation {
  OCTAVO_SILU = 0,
  OCTAVO_GELU = 1,      /* erf */
  OCTAVO_GELU_TANH = 2,
  OCTAVO_RELU = 3,
  OCTAVO_RELU2 = 4,
  OCTAVO_QUICK_GELU = 5,
};

enum OctavoCoding {
  OCTAVO_CODING_EXACT = 0,
  OCTAVO_CODING_INT8 = 1,
  OCTAVO_CODING_INT16 = 2,
};

typedef struct {
  int32_t opcode;
  int32_t out, out2;      /* buffer numbers; -1 unused */
  int32_t in0, in1;
  int32_t width;          /* of the output row, elements */
  int32_t depth;          /* of the reduction (LINEAR), elements */
  int32_t i[11];
  float f[4];
  const void* p[4];
} OctavoInstruction;

/* Keys and values. The pool is `blocks` pages of page_bytes; a page holds the block of every layer of a group, each
 * octavo_cache_layer_bytes(...) long, where the layer's instructions say. What is inside a layer's part is the kernels'
 * own business. Block tables: [groups][slots][max_blocks] of block numbers. */
typedef struct {
  int32_t format;         /* OctavoCacheType of layers whose instructions don't tell */
  int32_t block_size;     /* tokens */
  int32_t groups;
  int32_t slots;
  int32_t max_blocks;
  int32_t reserved;
  int64_t page_bytes;
  int64_t blocks;
  uint8_t* pool;          /* 64-byte aligned */
  const int32_t* tables;
} OctavoCache;

/* What narrows down a draw, in the usual order. */
enum OctavoSampler {
  OCTAVO_TOP_N_SIGMA = 1,
  OCTAVO_TEMPERATURE = 2,
  OCTAVO_TYPICAL = 3,
  OCTAVO_MIN_P = 4,
  OCTAVO_TOP_K = 5,
  OCTAVO_TOP_P = 6,
  OCTAVO_XTC = 7,
};

/* One sampled row's rules. Arrays may be null when their count is 0. */
typedef struct {
  float temperature;      /* 0: greedy */
  float top_p;
  float min_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t top_k;          /* 0: off */
  int32_t logprobs;       /* -1: none asked; k >= 0: sampled token and the k likeliest, k <= top_stride */
  uint64_t seed;
  int32_t output_index;   /* of the token drawn now */
  int32_t bias_count;     /* entries: the first scale_count multiply logits, the others are added; -inf bans */
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* allowed_ids; /* when allowed_count > 0, all others are banned */
  int32_t allowed_count;
  int32_t prompt_len;
  int32_t history_len;    /* prompt and outputs so far */
  int32_t scale_count;
  const int32_t* history;
  const uint32_t* permitted; /* null: all; else a bit a token from bit 0 of word 0, [(vocab + 31) / 32] */
  float typical_p;        /* 0 or 1: off */
  float top_n_sigma;      /* 0: off */
  float xtc_probability;  /* 0: off */
  float xtc_threshold;
  float dynatemp_range;   /* 0: off */
  float dynatemp_exponent;
  float dry_multiplier;   /* 0: off */
  float dry_base;
  int32_t dry_allowed_length;
  int32_t dry_window;     /* tokens looked at, the last ones; negative: all */
  const int32_t* dry_breakers; /* sorted; no repeat reaches over them */
  int32_t dry_breaker_count;
  int32_t bad_words_size; /* integers in bad_words */
  const int32_t* bad_words; /* for each its length, then its tokens: the last is banned behind the others */
  uint32_t sampler_order; /* OctavoSampler in four bits each, the first lowest; 0: in the order of their numbers */
  int32_t mirostat;       /* version 1 or 2; 0: off */
  float mirostat_tau;     /* surprise that is aimed at, in bits */
  float mirostat_eta;     /* how much of an error is made good at once */
  float mirostat_mu;      /* largest surprise for now; out_mu is the next token's */
  int32_t known_tokens;   /* ids from here on stand for nothing: not drawn, not listed; 0: all do */
} OctavoSampling;

/* One step. A sequence s owns the tokens query_starts[s] .. query_starts[s + 1], which stand at consecutive positions
 * of its context; everything before them is in the cache. */
typedef struct {
  int32_t tokens;
  int32_t rows;           /* sampled */
  int32_t sequences;
  int32_t top_stride;     /* entries a row in top_ids and top_logprobs */
  const int32_t* token_ids;     /* [tokens] */
  const int32_t* positions;     /* [tokens] */
  const int32_t* query_starts;  /* [sequences + 1] */
  const int32_t* slots;         /* [sequences] */
  const int32_t* sampled_rows;  /* [rows], indices into tokens */
  const OctavoSampling* sampling; /* [rows] */
  int32_t* out_tokens;          /* [rows] */
  float* out_logprobs;          /* [rows], natural log */
  int32_t* out_ranks;           /* [rows], 1 = likeliest */
  int32_t* out_invalid;         /* [rows], 1: a logit was NaN or +inf, or all were -inf; the token is 0 */
  int32_t* top_ids;             /* [rows, top_stride], best first, ties to the smaller id */
  float* top_logprobs;          /* [rows, top_stride] */
  const int32_t* state_reads;   /* [pages of a state, sequences]: pages before the step; -1: the state is zero */
  const int32_t* state_writes;  /* likewise, after the step; may be the same pages */
  const int32_t* token_types;   /* [tokens]; null when no instruction needs them */
  float* out_mu;                /* [rows], of rows with mirostat; may be null when there are none */
} OctavoStep;

typedef struct {
  const OctavoInstruction* code;
  int32_t count;
  int32_t buffers;
  float* const* buffer;         /* [buffers], 64-byte aligned */
  const OctavoCache* cache;     /* null when no instruction needs it */
} OctavoProgram;
