/* Every native entry point, and nothing else. octavo/kernels/cpu/library.py types its functions from this file: it is
 * the only declaration. Sizes are elements unless named bytes. No function throws; those that can fail return 0 for
 * success or a negative number that this header explains. One declaration a line. */
#pragma once
#include <stdint.h>

#include "octavo/instruction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- library --- */
/* Raised whenever a struct, an opcode or a packed layout changes; Python refuses another number. */
int32_t octavo_abi_version(void);
/* "scalar", "avx2", "avx512", "neon": what this library was compiled for. */
const char* octavo_isa(void);
/* 1 when this CPU can run this library. Callable on any CPU of the architecture. */
int32_t octavo_isa_supported(void);

/* --- thread team: persistent, parked when idle --- */
/* Null when no thread can be started. `threads` includes the caller. cpus: null, or one CPU number a thread. */
void* octavo_team_create(int32_t threads, const int32_t* cpus);
void octavo_team_destroy(void* team);
int32_t octavo_team_threads(const void* team);

/* --- programs --- */
/* Runs every instruction in order. One caller at a time for a team. */
void octavo_run(void* team, const OctavoProgram* program, const OctavoStep* step);
/* As octavo_run; seconds[k] is the time instruction k took. */
void octavo_run_timed(void* team, const OctavoProgram* program, const OctavoStep* step, double* seconds);

/* --- weights --- */
/* Bytes of `rows` x `cols` in a source file; -1: unknown format, -2: cols is no multiple of the format's block. */
int64_t octavo_source_bytes(int32_t format, int64_t rows, int64_t cols);
/* Bytes of the packed layout; negative as above. */
int64_t octavo_packed_bytes(int32_t format, int64_t rows, int64_t cols);
/* source: row-major file blocks, any alignment. packed: 64-byte aligned. Lossless. The order of an ordered format is the
 * caller's to write: the last 4 * cols bytes. Returns 0 or as above. */
int32_t octavo_pack(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, void* packed);
/* As octavo_pack, and looks at the numbers on the way: returns the first row that holds a NaN or an infinity (its panel is
 * then not packed), `rows` when all are finite, or negative as above. */
int64_t octavo_pack_finite(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, void* packed);
/* Rounds plain numbers (F32, F16, BF16) to file blocks of `target` (Q8_0, Q4_1, E4M3 with one f32 a row), all finite. Returns 0, -1: no such pair of
 * formats, -2: cols is no multiple of the block. */
int32_t octavo_quantize(void* team, int32_t format, const void* source, int64_t rows, int64_t cols, int32_t target, void* blocks);
/* Index of the first row that holds a NaN or an infinity (in scales too), or -1. */
int64_t octavo_find_invalid(void* team, int32_t format, const void* source, int64_t rows, int64_t cols);
/* sums[page]: the page's 512 words of 64 bits, each times an odd number of its place (1, 3, 5 ...), modulo 2^64. team: null
 * sums on the calling thread alone. */
void octavo_page_sums(void* team, const void* data, int64_t pages, uint64_t* sums);

/* --- cache --- */
/* Bytes one layer takes in a page. */
int64_t octavo_cache_layer_bytes(int32_t type, int32_t kv_heads, int32_t key_width, int32_t value_width, int32_t block_size);
/* What is kept of one head of the token at `offset` of a block: keys[width] and values[width], rotated where the type
 * rotates. layer: the layer's part of a page. */
void octavo_cache_read(int32_t type, int32_t kv_heads, int32_t width, int32_t block_size, const void* layer, int32_t head, int32_t offset, float* keys, float* values);

/* --- machine --- */
/* Sum of all bytes, to measure read bandwidth with the team. */
uint64_t octavo_read_bytes(void* team, const void* data, int64_t bytes);
/* Multiplies and adds in registers: floats (kind 0), numbers of 8 bits (1), bf16 in pairs (2). Returns how many operations
 * that were; 0: the processor has no such instruction. */
int64_t octavo_multiply(void* team, int32_t kind, int64_t turns);
/* How weights and inputs in bf16 are multiplied: 0 as floats, 1 in pairs by VDPBF16PS, 2 in tile registers. */
int32_t octavo_bf16_way(void);
/* For tests and measurements, while no program runs: 0, 1 (where the processor can), or -1: its own choice. Returns the way now. */
int32_t octavo_bf16_force(int32_t way);
/* What is chosen by: facts[0] and facts[1] operations a second of one thread as floats and in pairs, 0 where there are no
 * pairs; facts[2] 1 when both give the same bits. */
void octavo_bf16_facts(double* facts);

#ifdef __cplusplus
}
#endif
