// Which rows go together: those of one sequence, and those of sequences that begin with the same blocks.
#include "attention_plan.h"

#include <algorithm>

namespace octavo {
namespace {

constexpr int64_t kPromptRows = 256;    // of a tile of a prompt, heads of the group counted
constexpr int64_t kFewPromptRows = 32;  // when there would be few tiles
constexpr int64_t kMostTogether = 252;  // rows of a unit that shares its keys
constexpr int64_t kMostLongTogether = 400; // rows of a unit of sequences that are long, likewise
constexpr int64_t kFewTogether = 4;    // tokens of one, when their heads alone are that many rows
constexpr int64_t kLeastShared = kKeys; // keys of a part that sequences must have in common to do it together
constexpr int64_t kUnitsOfThread = 6;   // that must be left when long sequences are put together
constexpr int64_t kMostOwn = 8;         // sequences that do a part together of which much is their own

constexpr int64_t common_divisor(int64_t one, int64_t other) {
  return other == 0 ? one : common_divisor(other, one % other);
}

int32_t int32(int64_t value) { return static_cast<int32_t>(value); }

} // namespace

AttentionPlan::AttentionPlan(Team& team, const Attention& attention, const Step& step)
    : attention_(attention), threads_(team.threads()) {
  reserve(team, step);
  list_sequences(step);
  order_by_blocks(sequences_, short_);
  find_common(sequences_, short_);
  find_shared();
  order_long();
  list_rows();
  add_shared_units();
  add_tiles(kPromptRows);
  add_own_units();
  split_units();
}

// Room for the most units that there can be.
void AttentionPlan::reserve(Team& team, const Step& step) {
  int64_t units = 0;
  int64_t most_parts = 1;
  for (int32_t number = 0; number < step.sequences; ++number) {
    const int64_t tokens = step.query_starts[number + 1] - step.query_starts[number];
    const int64_t parts = part_of(step.positions[step.query_starts[number]] + tokens - 1) + 1;
    units += is_short(tokens) ? parts + 1 : tokens * attention_.group / kFewPromptRows * 2 + 2;
    most_parts = larger(most_parts, parts);
  }
  units = units * attention_.kv_heads + 4 * threads_ * most_parts; // the latter when contexts are cut
  const auto bytes = [](int64_t count, size_t size) { return (count * static_cast<int64_t>(size) + 63) / 64 * 64; };
  const int64_t of_sequences = bytes(step.sequences, sizeof(Sequence));
  const int64_t of_rows = bytes(step.tokens, sizeof(Row));
  char* memory = team.notes(static_cast<size_t>(of_sequences + of_rows + bytes(units, sizeof(Unit))));
  sequences_ = reinterpret_cast<Sequence*>(memory);
  rows_ = reinterpret_cast<Row*>(memory + of_sequences);
  units_ = reinterpret_cast<Unit*>(memory + of_sequences + of_rows);
}

void AttentionPlan::list_sequences(const Step& step) {
  sequences_count_ = step.sequences;
  int64_t last = step.sequences;
  for (int32_t number = 0; number < step.sequences; ++number) {
    const int32_t first = step.query_starts[number];
    const int32_t tokens = step.query_starts[number + 1] - first;
    Sequence& place = sequences_[is_short(tokens) ? short_++ : --last];
    place = {first, tokens, step.positions[first], step.slots[number], 0, 0, 0, 0, 0};
  }
}

// Leading blocks from number `from` on that both see, and that are the same.
int64_t AttentionPlan::common_blocks(const Sequence& one, const Sequence& other, int64_t from) const {
  const int64_t size = attention_.layer.layout.block_size;
  const int64_t most = smaller(one.position, other.position) / size + 1;
  const int32_t* left = attention_.layer.table(one.slot);
  const int32_t* right = attention_.layer.table(other.slot);
  int64_t block = from;
  while (block + 16 <= most && memcmp(left + block, right + block, 64) == 0) block += 16;
  while (block < most && left[block] == right[block]) ++block;
  return block;
}

// Sequences, so that those with the same beginning are neighbours: first by the first block, then by the first block
// that not all of these have in common, and so on.
void AttentionPlan::order_by_blocks(Sequence* sequences, int64_t count) {
  const auto first_block = [&](const Sequence& sequence) { return attention_.layer.table(sequence.slot)[0]; };
  std::sort(sequences, sequences + count, [&](const Sequence& one, const Sequence& other) {
    const int32_t left = first_block(one), right = first_block(other);
    return left != right ? left < right : one.first_token < other.first_token;
  });
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin + 1;
    int64_t same = INT32_MAX;
    for (; end < count && first_block(sequences[end]) == first_block(sequences[begin]); ++end) {
      same = smaller(same, common_blocks(sequences[begin], sequences[end], 0));
    }
    if (end - begin > 2) {
      const int64_t size = attention_.layer.layout.block_size;
      std::sort(sequences + begin, sequences + end, [&](const Sequence& one, const Sequence& other) {
        const int64_t block = common_blocks(one, other, same);
        const bool both = block <= one.position / size && block <= other.position / size;
        if (both) return attention_.layer.table(one.slot)[block] < attention_.layer.table(other.slot)[block];
        return one.position != other.position ? one.position < other.position : one.first_token < other.first_token;
      });
    }
    begin = end;
  }
}

void AttentionPlan::find_common(Sequence* sequences, int64_t count) {
  for (int64_t number = 1; number < count; ++number) {
    const Sequence& before = sequences[number - 1];
    Sequence& here = sequences[number];
    const int64_t common = common_blocks(before, here, 0) * attention_.layer.layout.block_size;
    here.common = int32(smaller(common, smaller(before.position, here.position)));
  }
}

void AttentionPlan::find_shared() {
  for (int64_t number = 1; number < short_; ++number) {
    Sequence& before = sequences_[number - 1];
    Sequence& here = sequences_[number];
    const int32_t parts = int32((here.common + kPart - kLeastShared) / kPart);
    here.shared = parts;
    before.shared = std::max(before.shared, parts);
  }
}

// As tokens come, for threads find near what they wrote; but those that begin alike follow the first of them.
void AttentionPlan::order_long() {
  Sequence* begin = sequences_ + short_;
  const int64_t count = sequences_count_ - short_;
  order_by_blocks(begin, count);
  find_common(begin, count);
  for (int64_t number = 0; number < count;) {
    int64_t end = number + 1;
    int32_t first = begin[number].first_token;
    for (; end < count && begin[end].common > 0; ++end) first = std::min(first, begin[end].first_token);
    for (int32_t place = 0; number < end; ++number, ++place) {
      begin[number].leader = first;
      begin[number].place = place;
    }
  }
  std::sort(begin, begin + count, [](const Sequence& one, const Sequence& other) {
    return one.leader != other.leader ? one.leader < other.leader : one.place < other.place;
  });
}

void AttentionPlan::list_rows() {
  int32_t row = 0;
  for (int64_t number = 0; number < sequences_count_; ++number) {
    Sequence& sequence = sequences_[number];
    const bool saved = sequence.shared > attention_.first_part(sequence.position);
    sequence.first_row = row;
    for (int32_t token = 0; token < sequence.tokens; ++token) {
      const int64_t last = attention_.last_key(sequence.position + token, sequence.length());
      rows_[row++] = {sequence.first_token + token,
                      sequence.position + token,
                      sequence.slot,
                      int32(last),
                      token == 0 ? sequence.common : kSameSequence,
                      saved};
    }
    if (saved) saved_rows_ = row;
  }
}

// As one task for every `heads` kv heads.
void AttentionPlan::add(Unit unit, int64_t heads) {
  for (int64_t head = 0; head < attention_.kv_heads; head += heads) {
    unit.first_head = int32(head);
    unit.heads = int32(smaller(heads, attention_.kv_heads - head));
    units_[units_count_++] = unit;
  }
  most_rows_ = larger(most_rows_, unit.rows);
  if (unit.saved == 0) return;
  first_saved_part_ = smaller(first_saved_part_, unit.first_part);
  end_of_saved_parts_ = larger(end_of_saved_parts_, unit.first_part + unit.parts);
}

// Tokens of a unit: as many as may be, but enough units for the threads.
int64_t AttentionPlan::most_tokens_together() const {
  int64_t token_parts = 0;
  for (int64_t number = 0; number < short_; ++number) {
    const Sequence& sequence = sequences_[number];
    token_parts += larger(0, sequence.shared - attention_.first_part(sequence.position)) * sequence.tokens;
  }
  const int64_t balanced = token_parts * attention_.kv_heads / (3 * threads_);
  const int64_t group = attention_.group;
  return larger(1, smaller(larger(kMostTogether / group, kFewTogether), larger(balanced, 16 / group)));
}

// Parts that sequences have in common, each with all of them that fit a unit.
void AttentionPlan::add_shared_units() {
  int64_t parts = 0;
  for (int64_t number = 0; number < short_; ++number) parts = larger(parts, sequences_[number].shared);
  const int64_t most = parts > 0 ? most_tokens_together() : 0;
  for (int64_t part = 0; part < parts; ++part) {
    const auto takes_part = [&](const Sequence& sequence) {
      return part < sequence.shared && part >= attention_.first_part(sequence.position);
    };
    for (int64_t number = 0; number < short_;) {
      const Sequence& first = sequences_[number++];
      if (!takes_part(first)) continue;
      int32_t tokens = first.tokens;
      for (int64_t members = 1; number < short_ && takes_part(sequences_[number]); ++number, ++members) {
        const Sequence& next = sequences_[number];
        const int64_t together = next.common - part * kPart;
        if (together < kLeastShared || tokens + next.tokens > most) break;
        if (together < kPart - kKeys && members == kMostOwn) break;
        tokens += next.tokens;
      }
      add({first.first_row, tokens, int32(part), 1, 0, 0, 1}, 1);
    }
  }
}

// What is left of short sequences. Their heads lie one behind the other, so one task had better do all of them.
void AttentionPlan::add_own_units() {
  const int64_t heads = short_ >= 8 * threads_ ? attention_.kv_heads : 1;
  for (int64_t number = 0; number < short_; ++number) {
    const Sequence& sequence = sequences_[number];
    const int64_t all = attention_.first_part(sequence.position);
    const int64_t first = larger(all, sequence.shared);
    const int64_t parts = part_of(sequence.length() - 1) + 1 - first;
    const Unit unit = {sequence.first_row, sequence.tokens, int32(first), int32(parts), 0, 0, first > all};
    if (parts > 0) add(unit, heads);
  }
}

// Long sequences in tiles of about so many rows. The last tiles of a sequence see most keys: they come first. Threads
// take units in runs (Team::parallel_runs); of few sequences each gets every so many tiles, for as much work.
void AttentionPlan::add_tiles(int64_t wanted_rows) {
  const int64_t before = units_count_;
  const int64_t most = larger(1, wanted_rows / attention_.group);
  const int64_t step = kWideRows / common_divisor(kWideRows, attention_.group); // tokens of whole tiles of rows
  const int64_t length = most > step ? most / step * step : most;
  const int64_t turns = sequences_count_ - short_ < 2 * threads_ ? threads_ : 1;
  int64_t units = 0;
  for (int64_t number = short_; number < sequences_count_; ++number) {
    units += (sequences_[number].tokens + length - 1) / length * attention_.kv_heads;
  }
  const int64_t most_members = attention_.layer.layout.coded ? 1 : units / (kUnitsOfThread * threads_);
  for (int64_t number = short_; number < sequences_count_;) {
    const int64_t end = end_of_together(number, length, most_members);
    if (end - number > 1) {
      add_together(number, end);
    } else {
      add_sequence(sequences_[number], length, turns);
    }
    number = end;
  }
  const bool few = units < 16 * threads_;
  if (wanted_rows == kFewPromptRows || !few || threads_ == 1) return;
  units_count_ = before;
  add_tiles(wanted_rows / 2);
}

void AttentionPlan::add_sequence(const Sequence& sequence, int64_t length, int64_t turns) {
  const int64_t tiles = (sequence.tokens + length - 1) / length;
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (int64_t tile = tiles - 1 - turn; tile >= 0; tile -= turns) {
      add_tile(sequence, tile * length, smaller(length, sequence.tokens - tile * length));
    }
  }
}

// Where those end that begin with the parts of the one before, from a sequence on; each has at most so many tokens.
int64_t AttentionPlan::end_of_together(int64_t number, int64_t length, int64_t most_members) const {
  int64_t tokens = sequences_[number].tokens, end = number + 1;
  if (tokens > length) return end;
  for (; end < sequences_count_ && end - number < most_members; ++end) {
    const Sequence& next = sequences_[end];
    tokens += next.tokens;
    if (next.tokens > length || tokens * attention_.group > kMostLongTogether) break;
    if (part_of(next.common) <= attention_.first_part(next.position)) break;
  }
  return end;
}

// All keys of some sequences: those of the parts that they have in common are converted once.
void AttentionPlan::add_together(int64_t number, int64_t end) {
  Unit unit = {sequences_[number].first_row, 0, INT32_MAX, 0, 0, 0, 0};
  int64_t last = 0;
  for (; number < end; ++number) {
    const Sequence& sequence = sequences_[number];
    unit.rows += sequence.tokens;
    unit.first_part = std::min(unit.first_part, int32(attention_.first_part(sequence.position)));
    last = larger(last, part_of(sequence.length() - 1));
  }
  unit.parts = int32(last + 1 - unit.first_part);
  add(unit, 1);
}

void AttentionPlan::add_tile(const Sequence& sequence, int64_t begin, int64_t tokens) {
  const int64_t position = sequence.position + begin;
  const int64_t first = attention_.first_part(position);
  const int64_t parts = part_of(attention_.last_key(position + tokens - 1, sequence.length())) + 1 - first;
  add({int32(sequence.first_row + begin), int32(tokens), int32(first), int32(parts), 0, 0, 0}, 1);
}

// With few units and more than one thread, contexts are cut at parts.
void AttentionPlan::split_units() {
  int64_t parts = 0;
  for (int64_t number = 0; number < units_count_; ++number) parts += units_[number].parts;
  if (threads_ == 1 || units_count_ >= 4 * threads_ || parts == units_count_) return;
  const int64_t length = larger(1, parts / (12 * threads_));
  const int64_t whole = units_count_;
  for (int64_t number = 0; number < whole; ++number) {
    Unit& unit = units_[number];
    const int32_t first = unit.first_part, end = unit.first_part + unit.parts;
    if (unit.saved == 0) {
      for (int32_t row = unit.first_row; row < unit.first_row + unit.rows; ++row) rows_[row].saved = 1;
      saved_rows_ = larger(saved_rows_, unit.first_row + unit.rows);
      unit.saved = 1;
    }
    unit.parts = int32(smaller(length, unit.parts));
    first_saved_part_ = smaller(first_saved_part_, first);
    end_of_saved_parts_ = larger(end_of_saved_parts_, end);
    Unit rest = unit;
    for (int64_t part = first + unit.parts; part < end; part += length) {
      rest.first_part = int32(part);
      rest.parts = int32(smaller(length, end - part));
      units_[units_count_++] = rest;
    }
  }
}

} // namespace octavo
