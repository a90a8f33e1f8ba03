// How the rows of a step are cut into tasks of attention.
#pragma once
#include "attention_rows.h"

namespace octavo {

// Rows in the order in which tasks take them, and the units of work. A sequence of few tokens stands beside those that
// begin with the same blocks, and a part of the context that they have in common is one unit of all of them.
//
// What a row computes does not depend on any of this: parts begin at fixed places, each is summed on its own, and they
// are joined in order.
class AttentionPlan {
public:
  // The arrays are in the team's notes, and good until those are asked for again.
  AttentionPlan(Team& team, const Attention& attention, const Step& step);

  const Row* rows() const { return rows_; }
  const Unit& unit(int64_t number) const { return units_[number]; }
  int64_t units() const { return units_count_; }
  int64_t saved_rows() const { return saved_rows_; } // the rows up to the last one that is saved
  int64_t most_rows() const { return most_rows_; }   // of a unit
  int64_t first_saved_part() const { return first_saved_part_; }
  int64_t end_of_saved_parts() const { return end_of_saved_parts_; }

private:
  struct Sequence {
    int32_t first_token, tokens, position, slot, common;
    int32_t first_row;
    int32_t shared; // parts from 0 on that it has, for the most part, in common with a neighbour
    int32_t leader, place; // of a long one: the first token of those that begin alike, and its place among them
    int32_t length() const { return position + tokens; }
  };

  void reserve(Team& team, const Step& step);
  void list_sequences(const Step& step);
  void order_by_blocks(Sequence* sequences, int64_t count);
  void find_common(Sequence* sequences, int64_t count);
  void order_long();
  void find_shared();
  void list_rows();
  int64_t most_tokens_together() const;
  void add_shared_units();
  void add_own_units();
  void add_tiles(int64_t wanted_rows);
  void add_sequence(const Sequence& sequence, int64_t length, int64_t turns);
  void add_tile(const Sequence& sequence, int64_t begin, int64_t tokens);
  int64_t end_of_together(int64_t number, int64_t length, int64_t most_members) const;
  void add_together(int64_t number, int64_t end);
  void split_units();
  void add(Unit unit, int64_t heads);
  bool is_short(int64_t tokens) const { return tokens == 1 || tokens * attention_.group <= kShortRows; }
  int64_t part_of(int64_t position) const { return position / kPart; }
  int64_t common_blocks(const Sequence& one, const Sequence& other, int64_t from) const;

  static constexpr int64_t kShortRows = 16;

  const Attention& attention_;
  int64_t threads_;
  Sequence* sequences_ = nullptr; // the short ones first
  Row* rows_ = nullptr;
  Unit* units_ = nullptr;
  int64_t sequences_count_ = 0, short_ = 0;
  int64_t units_count_ = 0;
  int64_t saved_rows_ = 0, most_rows_ = 1;
  int64_t first_saved_part_ = INT32_MAX, end_of_saved_parts_ = 0;
};

} // namespace octavo
