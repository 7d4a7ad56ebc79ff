// A problem of the gradient of attend as its kernels read it: plain data.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

// What the gradient needs of a query row beside its operands.
struct GradRow {
  // AttendProblem::lse, and lse_low in base 2. 0 and inf: no such row, or one that sees nothing;
  // weights from finite scores are 0.
  float lse, low_2;
  float shift;   // dout . out - dlse
  float factor;  // row_weight

  // P of a pair with this score, which is the forward's bit for bit: P sums to 1 as it did there.
  SIMT_FN float WeightOf(float score) const {
    return simt::Exp2(fmaf(__fsub_rn(score, lse), kLog2E, -low_2));
  }
};

// How blocks share out what a number of dbias sums over where bias repeats: items, each a part of a
// head, the heads one after another. Shares of consecutive items have sums of their own, which are
// added up in the end. A launch takes some items of each share, so that its blocks end soon, and
// later launches add to the same sums. All follow from the shape of one gradient: the same bits in
// any batch.
struct BiasShares {
  int64_t shares = 1;                // of a plane of dbias
  int64_t apart = 0;                 // elements of bias_sums from share to share
  int64_t q_parts = 1, k_parts = 1;  // of a head
  int64_t items = 1, of_share = 1, of_round = 1;

  int64_t rounds() const { return (of_share + of_round - 1) / of_round; }
};
// Of the pairs of tiles that a block of a pass meets, one after the other: those after the first
// `skip`, `take` of them. A launch takes some of each block, so that its blocks end soon, and later
// launches add to what it has stored, the first to 0: zeros have one sign. Where they begin follows
// from one sequence, its patterns, the type of elements, columns and terms: the same bits in any
// batch.
struct PairRange {
  int64_t skip, take;

  // Its part of the next `pairs`, which it leaves behind.
  SIMT_FN PairRange Pass(int64_t pairs) {
    PairRange part = {min(skip, pairs), 0};
    part.take = min(take, pairs - part.skip);
    skip -= part.skip, take -= part.take;
    return part;
  }
};
// Pairs of a row of lists that a launch takes, so that it ends in a few milliseconds, and what one
// takes: an ESTIMATE.
constexpr int64_t kListPairs = 1 << 12;
constexpr double kListPairSeconds = 5e-7;
// Query rows of an item of lists where bias repeats over queries.
constexpr int64_t kListBiasRows = 16;
// What a block does of them in one round.
struct BiasPlace {
  int64_t b, h;        // of the plane of dbias
  int64_t at;          // where the sums begin
  int64_t first, end;  // items
};
struct BiasItem {
  int64_t b, h, q_part, k_part;
};

struct GradData {
  AttendData a;
  Plane dout;              // data null: zero
  Plane dlse;              // likewise
  int columns, v_columns;  // chunks of 64 columns of D and Dv
  bool resident;           // all columns of a pair of tiles are in shared memory at once
  bool vectors;            // every operand can be copied by 16 bytes

  // KeepsWeights, or a float32 gradient of 16-bit tiles, which weights rounded to 16 bits would not
  // do justice to.
  bool exact_dq, exact_dk, exact_dv;

  GradRow* rows;      // [B,H,Nq]
  float* tile_sizes;  // [B,H,tiles of Nq]: bounds of dout and shift; null: not needed
  float* head_sizes;  // [B,H]: the largest of them
  // Gradients; data null: not wanted. Where terms repeat, sums of one head: dense float32. Of
  // passes in rounds: float32 sums, zeros before.
  Plane dq, dk, dv, dq_rel, dtable;
  Plane dbias;      // where it repeats nothing and rows are in order; else:
  Plane bias_sums;  // summed over b, h, rows or columns as its strides of 0 say
  BiasShares bias_shares;
  bool bias_b, bias_h, bias_q, bias_k;  // which of them it sums over
  bool bias_in_order;                   // no sequence gathers
  float* slope_sums;                    // [B,H,Nq]
  float* dr_sums;                       // [B,H,query_shares,L,D]
  int query_shares;                     // 0: a block has one tile of queries
  // Of keys in gather orders: sums of rows of k and k2, [B,Hkv,key_shares,Nk + Nk2,D or Dv].
  float *dk_sums, *dv_sums;
  // Of lists: where rows with long ones carry sums from launch to launch; data null: nowhere.
  Plane dq_carry, dk_carry, dv_carry;
  int key_shares;  // 0: a block has one tile of keys, which it stores
  // Pieces of 64 columns that blocks share out: of dq or dk, then of dq_rel or dv.
  int query_first, query_second, key_first, key_second;
  int query_parts, key_parts;      // blocks of a tile
  int64_t query_tiles, key_tiles;  // most of a head
  // Of passes by wide tiles (attend_grad_wide.cuh; null: none): [B,H,query_tiles,query_rounds] and
  // [B,Hkv,key_tiles,key_rounds], whether a round of a tile is left to GradQueries or GradKeys
  // (kCareful). searches: a library has computed the gradients, and FindGradSpread fills them in;
  // wide tiles compute those with kLargeLse alone.
  static constexpr int32_t kCareful = 1, kLargeLse = 2;
  int32_t *careful_queries, *careful_keys;
  bool searches;
  // Launches of a pass, each of so many pairs of tiles of a block.
  int64_t query_rounds, key_rounds, round_pairs;

  SIMT_FN PairRange RangeOf(int64_t rounds, int64_t round) const {
    if (rounds == 1) return {0, INT64_MAX};
    return {round * round_pairs, round_pairs};
  }

  SIMT_FN GradRow* RowsOf(int64_t b, int64_t h) const { return rows + (b * a.H + h) * a.Nq; }
  // `share`: counted through all planes.
  SIMT_FN BiasPlace BiasPlaceOf(int64_t share, int64_t round) const {
    const BiasShares& s = bias_shares;
    const int64_t plane = share / s.shares, of_plane = share % s.shares;
    const int64_t heads = bias_h ? 1 : a.H, b = plane / heads, h = plane % heads;
    const int64_t begin = of_plane * s.of_share, first = begin + round * s.of_round;
    const int64_t end = min(min(begin + s.of_share, s.items), first + s.of_round);
    return {b, h, bias_sums.Head(b, h) + of_plane * s.apart, first, end};
  }
  SIMT_FN BiasItem BiasItemOf(const BiasPlace& place, int64_t item) const {
    const int64_t parts = bias_shares.q_parts * bias_shares.k_parts, head = item / parts;
    const int64_t part = item - head * parts, heads = bias_h ? a.H : 1;
    return {bias_b ? head / heads : place.b, bias_h ? head % heads : place.h,
            part / bias_shares.k_parts, part % bias_shares.k_parts};
  }
};

// Gradients of numbers of heads: of slopes from sums of rows, of sinks from rows.
struct GradHeads {
  GradData grad = {};
  Plane to = {};  // [B,H]
  bool is_sinks = false;
  bool sums_b = false, sums_h = false;  // over what the term repeats
};
// A gradient as the sum of parts [B,H,parts,rows,width], from row `first` on; no parts: zeros.
struct GradParts {
  const float* parts = nullptr;
  int64_t B = 1, H = 1, count = 0, all_rows = 0, first = 0;
  Plane to = {};  // [B,H,rows,width], 1 in what it sums over
  int64_t rows = 0, width = 0;
  bool sums_b = false, sums_h = false;
  float factor = 1;
  // Null: all rows. Else those of the tiles whose first of `rounds` flags is not 0, of each plane.
  const int32_t* careful = nullptr;
  int64_t rounds = 1;
  static constexpr int kThreads = 256, kElements = 2048;

  int64_t blocks_of_plane() const { return (rows * width + kElements - 1) / kElements; }
  int64_t blocks() const { return (sums_b ? 1 : B) * (sums_h ? 1 : H) * blocks_of_plane(); }
};

}  // namespace attnd::cuda::attend_grad
