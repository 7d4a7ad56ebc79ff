// A pattern as kernels read it.
#pragma once

#include <cstdint>

namespace attnd::cuda {

// `count` consecutive tiles that share a mask and terms.
struct TileRun {
  static constexpr int32_t kFull = -1;     // of mask: every pair is visible
  static constexpr int32_t kNoTerms = -1;  // of terms: nothing is added
  int32_t first, count;
  int32_t mask, terms;
  int32_t before;  // visible tiles of the row before this run
};

// One direction. Row r holds runs[begin[r], begin[r + 1]), ascending and disjoint.
struct TileRunRows {
  const int64_t* begin;
  const TileRun* runs;
  const int32_t* order;  // the rows, those with the most tiles first
  int64_t rows;

#if defined(__CUDACC__)
  __host__ __device__
#endif
      // Visible tiles of a row.
      int32_t
      CountOf(int64_t row) const {
    if (begin[row] == begin[row + 1]) return 0;
    const TileRun& last = runs[begin[row + 1] - 1];
    return last.before + last.count;
  }
};

// [query][key] each, null: nothing.
struct TermsData {
  const float* bias;       // natural units
  const uint16_t* labels;  // TileTerms::kNoLabel: none
};

// See Pattern. Nothing is computed: those runs are stored. Pointers are null where the pattern has
// nothing; a listed pattern has lists alone.
struct PatternData {
  int64_t Nq, Nk;  // slots
  TileRunRows by_query, by_key;
  const uint64_t* masks;  // [mask][query of the tile]: bit k: it sees key k of the tile
  const TermsData* terms;
  const int32_t* query_rows;  // [Nq], -1: no query
  const int32_t* key_rows;    // [Nk], -1: no key
  const float* key_bias;      // [Nk], natural units
  // The slot of each query row below `placed_rows`; -1, and for all rows beyond: it stands in none.
  // Of patterns with query_rows.
  const int32_t* slot_of_query;
  int64_t placed_rows;
  // Of every query the keys, of every key the queries.
  const int64_t* keys_begin;
  const int32_t* keys;
  const int64_t* queries_begin;
  const int32_t* queries;
};

}  // namespace attnd::cuda
