// What enters the score of a pair besides the product of query and key, and what becomes of it:
// kernels/device/attend.h. The forward and every pass of the gradient find the same bits for the
// score of a pair: products and sums are rounded where it is said here, never contracted.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr float kLog2E = 1.44269504088896340736f;
// A score of at most this size may be rounded another time: weights change by 2e-6 of themselves.
constexpr float kSmallScore = 16;
// A library gives lse rounded once, of products that it adds in an order of its own. Up to this
// size of lse, weights from both are right to 4e-6 of themselves.
constexpr float kMostLibraryLse = 64;

// `sum` of two numbers. Of finite ones that add up to more than float32 holds it is the largest
// number of that sign.
SIMT_FN float CutSum(float sum, float x, float y) {
  if (fabsf(sum) != INFINITY || fabsf(x) == INFINITY || fabsf(y) == INFINITY) return sum;
  return copysignf(FLT_MAX, sum);
}
SIMT_FN float AddTerm(float s, float term) { return CutSum(__fadd_rn(s, term), s, term); }

// e^(s - max), 1 of the maximum itself: the logarithm's base changes after the difference, whose
// error is then as small as it. 0 for max = -inf, with base 0 in its place.
SIMT_FN float WeightBelow(float s, float base) { return simt::Exp2((s - base) * kLog2E); }

// -inf: the head has none.
SIMT_FN float SinkOf(const AttendData& p, int64_t b, int64_t h) {
  if (p.sinks.data == nullptr) return -INFINITY;
  return static_cast<const float*>(p.sinks.data)[p.sinks.Head(b, h)];
}

// Within 2 ulp; NaN stays NaN.
SIMT_FN float TanhOf(float x) { return tanhf(x); }

// x = cap tanh(t / cap); `slope` = dx / dt.
struct Capped {
  float x, slope;
};
SIMT_FN Capped WithCap(const AttendData& p, float t) {
  const float tanh = TanhOf(__fmul_rn(t, p.inverse_cap));
  return {__fmul_rn(p.cap, tanh), fmaf(-tanh, tanh, 1.0f)};
}

// ALiBi of one head.
struct Slope {
  bool given;
  float slope;

  SIMT_FN static Slope Of(const AttendData& p, int64_t b, int64_t h) {
    if (p.alibi_slopes.data == nullptr) return {false, 0};
    return {true, static_cast<const float*>(p.alibi_slopes.data)[p.alibi_slopes.Head(b, h)]};
  }
  SIMT_FN float Add(float s, float distance) const {
    return CutSum(fmaf(-slope, distance, s), s, slope);
  }
};

// Where a query row stands, for distances to keys: cut to 32 bits, and how far beyond that it is.
// Key rows are below 2^30.
struct Position {
  int32_t cut;
  float beyond;

  SIMT_FN static Position Of(int64_t row, int64_t offset) {
    constexpr int64_t kFar = int64_t{1} << 30;
    const int64_t position = row + offset;
    const int64_t cut = position > kFar ? kFar : position < -kFar ? -kFar : position;
    const int64_t beyond = position - cut;
    return {static_cast<int32_t>(cut), static_cast<float>(beyond < 0 ? -beyond : beyond)};
  }
  // |p_i - p_j|
  SIMT_FN float DistanceTo(int64_t key_row) const {
    const int32_t apart = cut - static_cast<int32_t>(key_row);
    return static_cast<float>(apart < 0 ? -apart : apart) + beyond;
  }
  // clamp(p_i - p_j, 0, L - 1)
  SIMT_FN int64_t DeltaTo(int64_t key_row, int64_t L) const {
    const int64_t apart = int64_t{cut} - key_row;
    return apart < 0 ? 0 : apart < L ? apart : L - 1;
  }
};

// Score `s` with a bias. -inf hides the pair whatever s is: then `*sees` becomes false.
SIMT_FN float WithBias(float s, float bias, bool* sees) {
  if (bias == -INFINITY) {
    *sees = false;
    return -INFINITY;
  }
  return AddTerm(s, bias);
}

// The bias of a pair of rows; 0 where there is none, as for rows of k2.
SIMT_FN float BiasOf(const AttendData& p, int64_t b, int64_t h, int64_t query_row,
                     int64_t key_row) {
  if (query_row < 0 || key_row < 0 || key_row >= p.Nk) return 0;
  return LoadFloat(p.bias.data, p.bias.dtype,
                   p.bias.Head(b, h) + query_row * p.bias.row + key_row * p.bias.column);
}

// An entry of the table. REQUIRES: the label is one.
SIMT_FN float TableOf(const AttendData& p, int64_t b, int64_t h, int64_t query_row, int label) {
  return static_cast<const float*>(
      p.table.data)[p.table.Head(b, h) + query_row * p.table.row + label * p.table.column];
}

// One pair that the masks show.
struct PairTerms {
  int64_t query_row, key_row;
  Position position;  // of the query
  Slope slope;
  float key_bias;          // constants of the pattern: of the key,
  const TermsData* terms;  // of the tile; null: none
  int at;                  // query of the tile * 64 + key of the tile
};

// Score of a product without other terms.
SIMT_FN float ScaledProduct(float scale, float product) { return __fmul_rn(scale, product); }

// `product`: with that of the relative term. Gives the score; `*sees` becomes false where the bias
// hides the pair, and `*through_cap` is dx / dt of the soft cap.
SIMT_FN float ScoreOf(const AttendData& p, int64_t b, int64_t h, float product,
                      const PairTerms& pair, bool* sees, float* through_cap) {
  float entry = 0;
  if (p.table.data != nullptr && pair.terms != nullptr && pair.terms->labels != nullptr) {
    const int label = pair.terms->labels[pair.at];
    if (label != 65535) entry = TableOf(p, b, h, pair.query_row, label);
  }
  const float t = ScaledProduct(p.scale, product);
  float s = p.cap_table ? CutSum(fmaf(p.scale, entry, t), t, entry) : t;
  *through_cap = 1;
  if (p.cap > 0) {
    const Capped capped = WithCap(p, s);
    s = capped.x;
    *through_cap = capped.slope;
  }
  if (!p.cap_table) s = AddTerm(s, entry);
  if (pair.slope.given) s = pair.slope.Add(s, pair.position.DistanceTo(pair.key_row));
  s = __fadd_rn(s, pair.key_bias);
  if (pair.terms != nullptr && pair.terms->bias != nullptr) {
    s = __fadd_rn(s, pair.terms->bias[pair.at]);
  }
  if (p.bias.data != nullptr) {
    s = WithBias(s, BiasOf(p, b, h, pair.query_row, pair.key_row), sees);
  }
  return s;
}

// phi(s) of a weighting, and phi'(s). NaN stays NaN. REQUIRES: not kSoftmax.
struct Weight {
  float phi, slope;
};
SIMT_FN Weight WeightOf(Weighting weighting, float s) {
  switch (weighting) {
    case Weighting::kRelu:
      return {s <= 0 ? 0.0f : s, s > 0 ? 1.0f : 0.0f};
    case Weighting::kReluSquared: {
      const float relu = s <= 0 ? 0.0f : s;
      return {relu * relu, 2 * relu};
    }
    case Weighting::kGelu: {
      const float phi = 0.5f * erfcf(-0.70710678118654752440f * s);
      if (fabsf(s) == INFINITY) return {s > 0 ? s : 0.0f, s > 0 ? 1.0f : 0.0f};
      return {s * phi, fmaf(s * 0.39894228040143267794f, expf(-0.5f * s * s), phi)};
    }
    case Weighting::kSoftplus: {
      const float e = expf(-fabsf(s));
      const float sigmoid = (s >= 0 ? 1.0f : e) / (1 + e);
      return {(s <= 0 ? 0.0f : s) + log1pf(e), sigmoid};
    }
    case Weighting::kRelu6:
      return {s <= 0 ? 0.0f : s >= 6 ? 6.0f : s, s > 0 && s < 6 ? 1.0f : 0.0f};
    case Weighting::kSigmoid: {
      const float e = expf(-fabsf(s));
      const float sigmoid = (s >= 0 ? 1.0f : e) / (1 + e);
      return {sigmoid, e / ((1 + e) * (1 + e))};
    }
    case Weighting::kSoftmax:
    case Weighting::kIdentity:
      break;
  }
  return {s, 1.0f};
}

// What the sum of weighted values of a row must be multiplied with. REQUIRES: it sees something.
SIMT_FN float FactorOf(const AttendData& p, const AttendHead& head, float sum, int64_t row) {
  if (p.is_softmax()) return 1 / sum;
  if (p.row_weight.data == nullptr) return 1;
  return static_cast<const float*>(
      p.row_weight.data)[p.row_weight.Head(head.b, head.h) + row * p.row_weight.row];
}

// lse of a row and what its rounding leaves out, from the maximum and the sum of its online softmax
// (AttendProblem::lse_low). sum = 0: the row sees nothing.
struct RowLse {
  float lse, low;

  SIMT_FN static RowLse Of(float max, float sum) {
    if (sum == 0) return {-INFINITY, 0};
    const double log_sum = log(static_cast<double>(sum));
    const auto lse = static_cast<float>(max + log_sum);
    if (!(fabsf(lse) < INFINITY)) return {lse, 0};
    return {lse, static_cast<float>(static_cast<double>(max) - lse + log_sum)};
  }
};
SIMT_FN void StoreLse(const AttendData& p, int64_t b, int64_t h, int64_t row, const RowLse& of) {
  static_cast<float*>(p.lse.data)[p.lse.Head(b, h) + row * p.lse.row] = of.lse;
  if (p.lse_low.data == nullptr) return;
  static_cast<float*>(p.lse_low.data)[p.lse_low.Head(b, h) + row * p.lse_low.row] = of.low;
}

}  // namespace attnd::cuda
