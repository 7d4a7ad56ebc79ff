// What enters the score of a pair besides the product of query and key, and what becomes of it:
// kernels/device/attend.h. Scores are in units of AttendData::unit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr float kLog2E = 1.44269504088896340736f;

// Finite biases and sinks are cut to these bounds, so that they stay finite times log2(e). At
// either bound the rounded score in base 2 is no less than lse in base 2, and lse is the bound
// itself: the backward finds weight 1 for a key that outweighs all others. NaN stays NaN.
SIMT_FN float CutTerm(float x) {
  constexpr float kLeast = -2.29e38f, kMost = 2.3e38f;
  if (fabsf(x) == INFINITY) return x;
  if (x < kLeast) return kLeast;
  return x > kMost ? kMost : x;
}

// -inf: the head has none.
SIMT_FN float SinkOf(const AttendData& p, int64_t b, int64_t h) {
  if (p.sinks.data == nullptr) return -INFINITY;
  return CutTerm(static_cast<const float*>(p.sinks.data)[p.sinks.Head(b, h)]);
}

// Within 2 ulp; NaN stays NaN.
SIMT_FN float TanhOf(float x) { return tanhf(x); }

// x = cap tanh(t / cap) of t in natural units, x in units of scores; `slope` = dx / dt, of the same
// unit on both sides.
struct Capped {
  float x, slope;
};
SIMT_FN Capped WithCap(const AttendData& p, float t) {
  const float tanh = TanhOf(t * p.inverse_cap);
  return {p.cap * tanh, fmaf(-tanh, tanh, 1.0f)};
}

// ALiBi of one head, in two parts: times the distance, the rounding of one would be most of the
// error of a far pair.
struct Slope {
  bool given;
  float high, low;

  SIMT_FN static Slope Of(const AttendData& p, int64_t b, int64_t h) {
    if (p.alibi_slopes.data == nullptr) return {false, 0, 0};
    const double exact = static_cast<double>(static_cast<const float*>(
                             p.alibi_slopes.data)[p.alibi_slopes.Head(b, h)]) *
                         (p.is_softmax() ? 1.4426950408889634074 : 1.0);
    const auto high = static_cast<float>(exact);
    return {true, high, static_cast<float>(exact - high)};
  }
  SIMT_FN float Add(float s, float distance) const {
    return fmaf(-high, distance, fmaf(-low, distance, s));
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

// Score `s` with a bias in natural units. -inf hides the pair whatever s is: then `*sees` becomes
// false.
SIMT_FN float WithBias(const AttendData& p, float s, float bias, bool* sees) {
  if (bias == -INFINITY) {
    *sees = false;
    return -INFINITY;
  }
  return fmaf(p.unit, CutTerm(bias), s);
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

// `t`: AttendData::scale times the products (also of the relative term). Gives the score; `*sees`
// becomes false where the bias hides the pair, and `*through_cap` is dx / dt of the soft cap.
SIMT_FN float ScoreOf(const AttendData& p, int64_t b, int64_t h, float t, const PairTerms& pair,
                      bool* sees, float* through_cap) {
  float entry = 0;
  if (p.table.data != nullptr && pair.terms != nullptr && pair.terms->labels != nullptr) {
    const int label = pair.terms->labels[pair.at];
    if (label != 65535) entry = TableOf(p, b, h, pair.query_row, label);
  }
  float s = p.cap_table ? fmaf(p.scale, entry, t) : t;
  *through_cap = 1;
  if (p.cap > 0) {
    const Capped capped = WithCap(p, s);
    s = capped.x;
    *through_cap = capped.slope;
  }
  if (!p.cap_table) s = fmaf(p.unit, entry, s);
  if (pair.slope.given) s = pair.slope.Add(s, pair.position.DistanceTo(pair.key_row));
  s = fmaf(p.unit, pair.key_bias, s);
  if (pair.terms != nullptr && pair.terms->bias != nullptr) {
    s = fmaf(p.unit, pair.terms->bias[pair.at], s);
  }
  if (p.bias.data != nullptr) {
    s = WithBias(p, s, BiasOf(p, b, h, pair.query_row, pair.key_row), sees);
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

// lse of a row from the base and the sum of its online softmax in base 2, in float64: a float32
// logarithm would add its error to the rounding of lse, which multiplies all weights of a row.
// Where the sink outweighs all keys it is the sink.
SIMT_FN float LseOf(float base, float sum, float sink) {
  if (sum == 0 || sum == simt::Exp2(sink * kLog2E - base)) return sink;
  return static_cast<float>(
      fma(static_cast<double>(base), 0.69314718055994530942, log(static_cast<double>(sum))));
}

}  // namespace attnd::cuda
