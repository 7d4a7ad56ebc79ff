// LSH attention in rounds: chunks of the bucket order of each round.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

constexpr int64_t kMostReformerRounds = 64;

// Kitaev et al. 2020, "LSH attention", all rounds of one head. The n rows of a round, in its order,
// are cut into C = ceil(n / chunk) chunks. A query in chunk c of a round sees the keys of the
// chunks c + lo .. c + hi, without the token itself.
struct ReformerRounds {
  int64_t rounds = 1,
          n = 0;  // at most kMostReformerRounds; n rows are sorted, the rest see nothing
  int64_t queries = INT64_MAX;  // rows from there on see nothing, but are seen
  // [rounds, n]: rows by bucket, those of a chunk ascending: with `causal`, the keys that a query
  // sees in a chunk are the first ones.
  std::vector<int32_t> order;
  std::vector<int32_t> buckets;  // [rounds, n], by row, each in [0, n); read unless `across`
  int64_t chunk = 1;
  int64_t lo = -1, hi = 0;  // at most Chunks() chunks, each fewer than that away
  bool flat = true;  // the chunk before the first is the last of the round before; else of its own
  bool causal = false;
  bool across = true;  // sees other buckets and rounds
  bool unique = true;  // hides keys that other slots or earlier rounds show

  // Where keys that a query sees beyond the chunks of its own round come from. -1: of k, where they
  // stand for a second time. Else of k2: FarRows of the head, row far_row + i of k for slot i.
  int64_t far_row = -1;

  int64_t ChunksOfRound() const { return (n + chunk - 1) / chunk; }
  // Those among which c + lo and c + hi are counted, around and around.
  int64_t Chunks() const { return flat ? rounds * ChunksOfRound() : ChunksOfRound(); }
  // Slots of keys beyond the chunks of a round itself.
  int64_t FarSlots() const;
};

// By row, [rounds, n]: its chunk in the round, and unless `across` its bucket.
template <class Number>
struct ReformerPlaces {
  std::vector<Number> chunk, bucket;
};

// The rounds with what their patterns share: made once, in time O(rounds n).
class ReformerHead {
 public:
  explicit ReformerHead(ReformerRounds rounds);

  const ReformerRounds& rounds() const { return rounds_; }
  const std::string& key() const { return key_; }
  int64_t chunks() const { return chunks_; }  // of a round
  // Numbers of 16 bits where they hold every row and every distance of chunks; else `wide`.
  bool is_narrow() const { return is_narrow_; }
  const ReformerPlaces<uint16_t>& narrow() const { return narrow_; }
  const ReformerPlaces<uint32_t>& wide() const { return wide_; }
  int64_t bytes() const;

  // [rounds, FarSlots()]: the rows of k in the slots of keys beyond the chunks of each round; -1:
  // none.
  std::vector<int32_t> FarRows() const;
  // How many slots of all rounds show a row to itself, [n].
  std::vector<int32_t> SelfSlots() const;

 private:
  const ReformerRounds rounds_;
  const std::string key_;
  const int64_t chunks_;
  const bool is_narrow_;
  ReformerPlaces<uint16_t> narrow_;
  ReformerPlaces<uint32_t> wide_;
};
using ReformerHeadPtr = std::shared_ptr<const ReformerHead>;

// What one round shows: with `unique`, disjoint from what the others show.
PatternSource ReformerRound(int64_t N, ReformerHeadPtr head, int64_t round);
// The same for a plan, which knows n and the options of `rounds` alone.
PatternSource PlannedReformerRound(int64_t N, const ReformerRounds& rounds);

}  // namespace attnd
