// Paged attention. A task is a tile of query rows of one sequence for one kv head, so the keys and values it loads
// serve all query heads of the group. Weights are normalized part by part ("online softmax", Milakov & Gimelshein 2018,
// arXiv:1805.02867).
//
// What a row computes depends on its own position alone: keys are taken in parts of kPart, counted from position 0; a
// part is summed on its own and parts are merged in order. So a long context may be cut over threads at parts, and the
// tiles, the batch and the size of cache blocks leave no trace in the bits.
#include "attention_work.h"

namespace octavo {
namespace {

constexpr int64_t kMostPartial = 1 << 22; // floats that may hold parts when a context is cut over threads

int64_t count_tiles(const Attention& attention, const Step& step) {
  int64_t tiles = 0;
  for (int32_t sequence = 0; sequence < step.sequences; ++sequence) {
    const int64_t tokens = step.query_starts[sequence + 1] - step.query_starts[sequence];
    tiles += (tokens + attention.tile_tokens() - 1) / attention.tile_tokens();
  }
  return tiles;
}

// The last tiles of a sequence see most keys: they come first.
int64_t list_tiles(const Attention& attention, const Step& step, Tile* tiles) {
  int64_t before = 0;
  for (int32_t sequence = 0; sequence < step.sequences; ++sequence) {
    const int64_t begin = step.query_starts[sequence];
    const int64_t tokens = step.query_starts[sequence + 1] - begin;
    const int64_t length = attention.tile_tokens();
    for (int64_t number = (tokens + length - 1) / length; number-- > 0;) {
      const int64_t first = begin + number * length;
      const int64_t count = smaller(length, begin + tokens - first);
      const int64_t position = step.positions[first];
      const int64_t first_part = attention.first_key(position) / kPart;
      const int64_t parts = (position + count - 1) / kPart + 1 - first_part;
      *tiles++ = {static_cast<int32_t>(first),
                  static_cast<int32_t>(count),
                  static_cast<int32_t>(position),
                  step.slots[sequence],
                  first_part,
                  parts,
                  before};
      before += parts;
    }
  }
  return before;
}

int64_t most_rows(const Attention& attention, const Tile* tiles, int64_t count) {
  int64_t tokens = 0;
  for (int64_t tile = 0; tile < count; ++tile) tokens = larger(tokens, tiles[tile].tokens);
  return tokens * attention.group;
}

// Each task does all parts of its tile.
template <class Format>
void run_whole(Team& team, const Attention& attention, const Tile* tiles, int64_t count, int64_t tile_rows) {
  const int64_t state_floats = tile_rows * attention.state_floats();
  const int64_t work_floats = TileWork<Format>::floats_needed(attention, tile_rows);
  team.parallel(count * attention.kv_heads, [&](int64_t task, int thread) {
    const Tile& tile = tiles[task / attention.kv_heads];
    float* totals = team.scratch(thread, static_cast<size_t>(2 * state_floats + work_floats));
    float* states = totals + state_floats;
    TileWork<Format> work(attention, tile, task % attention.kv_heads, states + state_floats);
    const TileRows& rows = work.rows();
    for (int64_t row = 0; row < rows.count(); ++row) clear(state_at(totals, row, attention), attention.padded);
    for (int64_t part = tile.first_part; part < tile.first_part + tile.parts; ++part) {
      work.run_part(part, states);
      for (int64_t row = 0; row < rows.count(); ++row) {
        if (!rows.sees(row, part)) continue;
        merge(state_at(totals, row, attention), state_at(states, row, attention), attention.padded);
      }
    }
    for (int64_t row = 0; row < rows.count(); ++row) rows.write_output(row, state_at(totals, row, attention), Format::kRotated);
  });
}

// The states of every part: [tile][kv head][part][tile_rows].
struct Parts {
  float* states;
  int64_t kv_heads;
  int64_t state_floats; // of a tile's rows

  float* of(const Tile& tile, int64_t head, int64_t part) const {
    return states + (tile.before * kv_heads + head * tile.parts + part) * state_floats;
  }
};

// The tile that task number `task` of all (tile, kv head, part) belongs to.
const Tile& tile_of(const Tile* tiles, int64_t count, int64_t kv_heads, int64_t task) {
  int64_t low = 0;
  for (int64_t high = count; high - low > 1;) {
    const int64_t middle = (low + high) / 2;
    if (tiles[middle].before * kv_heads <= task)
      low = middle;
    else
      high = middle;
  }
  return tiles[low];
}

// Each task does one part of its tile.
template <class Format>
void run_parts(Team& team, const Attention& attention, const Tile* tiles, int64_t count, const Parts& parts) {
  const int64_t total = (tiles[count - 1].before + tiles[count - 1].parts) * attention.kv_heads;
  const int64_t tile_rows = parts.state_floats / attention.state_floats();
  const size_t work_floats = static_cast<size_t>(TileWork<Format>::floats_needed(attention, tile_rows));
  team.parallel(total, [&](int64_t task, int thread) {
    const Tile& tile = tile_of(tiles, count, attention.kv_heads, task);
    const int64_t within = task - tile.before * attention.kv_heads;
    const int64_t head = within / tile.parts;
    const int64_t part = within % tile.parts;
    TileWork<Format> work(attention, tile, head, team.scratch(thread, work_floats));
    work.run_part(tile.first_part + part, parts.of(tile, head, part));
  });
}

// As run_whole merges.
void merge_parts(Team& team, const Attention& attention, const Tile* tiles, int64_t count, const Parts& parts,
                 bool rotated) {
  team.parallel_ranges(count * attention.kv_heads, 8, [&](int64_t begin, int64_t end, int thread) {
    float* memory = team.scratch(thread, static_cast<size_t>(attention.state_floats()));
    const RowState total = state_at(memory, 0, attention);
    for (int64_t task = begin; task < end; ++task) {
      const Tile& tile = tiles[task / attention.kv_heads];
      const int64_t head = task % attention.kv_heads;
      const TileRows rows(attention, tile, head);
      for (int64_t row = 0; row < rows.count(); ++row) {
        clear(total, attention.padded);
        for (int64_t part = 0; part < tile.parts; ++part) {
          if (!rows.sees(row, tile.first_part + part)) continue;
          merge(total, state_at(parts.of(tile, head, part), row, attention), attention.padded);
        }
        rows.write_output(row, total, rotated);
      }
    }
  });
}

template <class Format> void run(Team& team, const Attention& attention, const Step& step) {
  const int64_t count = count_tiles(attention, step);
  const int64_t tile_floats = (count * static_cast<int64_t>(sizeof(Tile)) + 63) / 64 * 16;
  Tile* tiles = reinterpret_cast<Tile*>(team.shared(static_cast<size_t>(tile_floats)));
  const int64_t parts = list_tiles(attention, step, tiles);
  const int64_t tile_rows = most_rows(attention, tiles, count);
  const int64_t state_floats = tile_rows * attention.state_floats();
  const int64_t partial = parts * attention.kv_heads * state_floats;
  const bool few = team.threads() > 1 && count * attention.kv_heads < 4 * team.threads();
  if (!few || parts == count || partial > kMostPartial) {
    return run_whole<Format>(team, attention, tiles, count, tile_rows);
  }
  float* memory = team.shared(static_cast<size_t>(tile_floats + partial));
  tiles = reinterpret_cast<Tile*>(memory);
  list_tiles(attention, step, tiles); // anew: the memory may have moved
  const Parts states = {memory + tile_floats, attention.kv_heads, state_floats};
  run_parts<Format>(team, attention, tiles, count, states);
  merge_parts(team, attention, tiles, count, states, Format::kRotated);
}

} // namespace

void paged_attention(Team& team, const Instruction& code, const Program& program, const Step& step, int64_t) {
  const Attention attention(code, program);
  switch (code.i[8]) {
  case OCTAVO_CACHE_F16: return run<CacheF16>(team, attention, step);
  case OCTAVO_CACHE_BF16: return run<CacheBf16>(team, attention, step);
  case OCTAVO_CACHE_INT8: return run<CacheInt8>(team, attention, step);
  case OCTAVO_CACHE_FP8_E4M3: return run<CacheE4m3>(team, attention, step);
  case OCTAVO_CACHE_FP8_E5M2: return run<CacheE5m2>(team, attention, step);
  case OCTAVO_CACHE_INT4: return run<CacheInt4>(team, attention, step);
  default: return run<CacheF32>(team, attention, step);
  }
}

} // namespace octavo
