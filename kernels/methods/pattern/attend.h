// Attention over what patterns show, with the tensors and options that the family shares.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/pattern/heads.h"
#include "kernels/methods/pattern/info.h"

namespace attnd {

// What a method adds to the common tensors and options.
struct PatternExtras {
  Weighting weighting = Weighting::kSoftmax;
  Tensor row_weight, table;  // as in AttendTensors
  bool cap_table = true;     // as in AttendParams
  double alibi_unit = 1;     // positions that count as a distance of 1
  // Per problem: whether sequences of equal lengths may see different keys. Empty: none do.
  std::vector<bool> seqs_differ = {};
  std::optional<DType> dtype;  // of out; absent: that of q
};

// Attention over what `parts_of` shows, with every common tensor and option of `in`, which is not
// packed; segment ids hide pairs of it.
Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PartsOfSeq& parts_of, const PatternExtras& extras = {});

// Two kinds of query rows: a row of one kind sees nothing in the parts of the other. Local rows
// read q, k and v, global ones q_global, k_global and v_global where these were sent.
Outputs AttendLocalAndGlobal(Ops& ops, const Inputs& in, const PatternOptions& options,
                             const PartsOfSeq& local, const PartsOfSeq& global,
                             PatternExtras extras = {});

// Adds the visible pairs of one call of PatternAttend to those of others.
void AddPairs(const Outputs& more, Outputs* sum);

// q, float32, with zeros in rows that no key may see: beyond q_lengths or of a negative segment.
// They may hold NaN, which a product over rows must not meet.
Tensor ValidQueries(Ops& ops, const Inputs& in);

// What every label adds to the scores of a query, for PatternExtras::table: q E^T + beta,
// [B,H,rows,V] of q [B,H,rows,D], E [V,H,D] and beta [V,H], each 0 where it is empty (Shaw et al.
// 2018, eq. 3-5).
Tensor LabelScores(Ops& ops, const Tensor& q, const Tensor& E, const Tensor& beta, int64_t V);

// Slopes of ALiBi for H heads (Press et al. 2022): with c = 2^floor(log2 H) 2^(-8 (h + 1) / c) for
// h < c, else 2^(-4 (2 (h - c) + 1) / c).
std::vector<float> StandardSlopes(int64_t H);

}  // namespace attnd
