// The contract of attend (kernels/device/attend.h) as nested loops over pairs. T is
// double for the truth, float for "plain code of the same precision".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/device/device.h"
#include "tests/pattern/pattern_masks.h"
#include "tests/plain/plain.h"

namespace attnd::testing {

// A visible pair of query row i.
struct PlainPair {
  int64_t key = 0;   // row of k; from Nk on of k2
  double added = 0;  // constants of the pattern
  int label = -1;    // of AttendTerms::table
  int64_t slot = 0;  // of the key
};

// What query row i of sequence b sees in head h, in the order of slots, without the bias.
inline std::vector<PlainPair> PlainVisible(const AttendProblem& p, int64_t b, int64_t h,
                                           int64_t i) {
  const AttendSeq& seq = p.seqs[b];
  const Pattern* pattern = seq.Of(h);
  std::vector<PlainPair> pairs;
  if (i >= seq.nq) return pairs;
  if (pattern == nullptr) {
    for (int64_t j = 0; j < seq.nk; ++j) pairs.push_back({.key = j, .slot = j});
    return pairs;
  }
  for (int64_t at = 0; pattern->is_listed(); ++at) {
    const PairList& list = pattern->keys_of;
    if (list.begin[i] + at == list.begin[i + 1]) return pairs;
    const int64_t key = list.columns[list.begin[i] + at];
    pairs.push_back({.key = key, .slot = key});
  }
  int64_t slot = i;
  if (!pattern->query_rows.empty()) {
    const auto& rows = pattern->query_rows;
    slot = std::find(rows.begin(), rows.end(), i) - rows.begin();
    if (slot == static_cast<int64_t>(rows.size())) return pairs;
  }
  const TileRows& rows = pattern->by_query;
  const int64_t tile = slot / kTile;
  if (tile >= rows.rows()) return pairs;
  for (int64_t r = rows.begin[tile]; r < rows.begin[tile + 1]; ++r) {
    const Run& run = rows.runs[r];
    const int64_t end = std::min<int64_t>((run.first + run.count) * kTile, pattern->Nk);
    TileMask mask;
    TileTerms terms;
    for (int64_t s = run.first * kTile; s < end; ++s) {
      if (s % kTile == 0) {
        mask = MaskOfRun(*pattern, run, tile, s / kTile);
        terms = TermsOfRun(*pattern, run, tile, s / kTile);
      }
      const int64_t key = pattern->key_rows.empty() ? s : pattern->key_rows[s];
      if (key < 0 || (pattern->key_rows.empty() && key >= seq.nk)) continue;
      if ((mask[s % kTile] >> (slot % kTile) & 1) == 0) continue;
      PlainPair pair = {.key = key, .slot = s};
      if (!pattern->key_bias.empty()) pair.added += pattern->key_bias[s];
      const size_t at = s % kTile * kTile + slot % kTile;
      if (!terms.bias.empty()) pair.added += terms.bias[at];
      if (!terms.labels.empty() && terms.labels[at] != TileTerms::kNoLabel) {
        pair.label = terms.labels[at];
      }
      pairs.push_back(pair);
    }
  }
  return pairs;
}

// phi of ReLU attention.
template <class T>
T PlainWeight(Weighting weighting, T s) {
  switch (weighting) {
    case Weighting::kRelu:
      return std::max(s, T{0});
    case Weighting::kReluSquared:
      return std::max(s, T{0}) * std::max(s, T{0});
    case Weighting::kGelu:
      return s / 2 * std::erfc(-s / std::sqrt(T{2}));
    case Weighting::kSoftplus:
      return std::max(s, T{0}) + std::log1p(std::exp(-std::abs(s)));
    case Weighting::kRelu6:
      return std::min(std::max(s, T{0}), T{6});
    case Weighting::kSigmoid:
      return 1 / (1 + std::exp(-s));
    case Weighting::kSoftmax:
    case Weighting::kIdentity:
      break;
  }
  return s;
}

struct PlainAttendOut {
  PlainArray out, lse;
};

// A problem with its views read into arrays. A dimension of a term's view may have a stride of 0.
template <class T>
class PlainAttendTerms {
 public:
  PlainAttendTerms(const AttendParams& params, const AttendProblem& problem)
      : params_(params),
        p_(problem),
        q_(p_.q),
        k_(p_.k),
        v_(p_.v),
        k2_(p_.terms.k2),
        v2_(p_.terms.v2),
        bias_(p_.terms.bias),
        slopes_(p_.terms.alibi_slopes),
        sinks_(p_.terms.sinks),
        table_(p_.terms.table),
        q_rel_(p_.terms.q_rel),
        r_(p_.terms.r),
        row_weight_(p_.terms.row_weight) {}

  // lse where the weights are not softmax: NaN.
  PlainAttendOut Forward() const {
    const Shape& s = p_.q.shape;
    PlainAttendOut result = {PlainArray({s[0], s[1], s[2], p_.v.shape[3]}),
                             PlainArray({s[0], s[1], s[2]}, NAN)};
    ForEachIndex({s[0], s[1], s[2]},
                 [&](const std::vector<int64_t>& at) { Row(at[0], at[1], at[2], &result); });
    return result;
  }

  // The score of a pair; -inf where bias hides it.
  T Score(int64_t b, int64_t h, int64_t i, const PlainPair& pair, bool* sees) const {
    const int64_t Nk = p_.k.shape[2], j = pair.key;
    const bool second = j >= Nk;
    const Array& keys = second ? k2_ : k_;
    const int64_t distance = i + p_.seqs[b].offset - j;
    T t = 0;
    for (int64_t d = 0; d < p_.q.shape[3]; ++d) {
      t += q_(b, h, i, d) * keys(b, KvHead(h), second ? j - Nk : j, d);
    }
    if (r_.given()) {
      const int64_t delta = std::clamp<int64_t>(distance, 0, r_.shape[2] - 1);
      for (int64_t d = 0; d < p_.q.shape[3]; ++d) {
        t += q_rel_(b, h, i, d) * r_(b, h, delta, d);
      }
    }
    const T entry = table_.given() && pair.label >= 0 ? table_(b, h, i, pair.label) : T{0};
    if (params_.cap_table) t += entry;
    t *= static_cast<T>(params_.scale);
    const T cap = static_cast<T>(params_.softcap);
    T s = cap > 0 ? cap * std::tanh(t / cap) : t;
    if (slopes_.given()) s -= slopes_(b, h) * static_cast<T>(std::abs(distance));
    s += static_cast<T>(pair.added);
    if (!params_.cap_table) s += entry;
    *sees = true;
    if (bias_.given() && !second) {
      const T bias = bias_(b, h, i, j);
      *sees = bias != -std::numeric_limits<T>::infinity();
      s += bias;
    }
    return s;
  }

  int64_t KvHead(int64_t h) const { return h / (p_.q.shape[1] / p_.k.shape[1]); }

 private:
  // Up to four dimensions; none: not given.
  struct Array {
    Shape shape;
    std::vector<T> values;
    explicit Array(const View& view) : shape(view.shape) {
      for (double x : ReadView(view).values) values.push_back(static_cast<T>(x));
    }
    bool given() const { return shape.rank != 0; }
    T operator()(int64_t b, int64_t h, int64_t n = 0, int64_t d = 0) const {
      return values[((b * shape[1] + h) * shape[2] + n) * shape[3] + d];
    }
  };

  void Row(int64_t b, int64_t h, int64_t i, PlainAttendOut* result) const {
    const T none = -std::numeric_limits<T>::infinity();
    const bool is_softmax = params_.weighting == Weighting::kSoftmax, valid = i < p_.seqs[b].nq;
    const T sink = valid && sinks_.given() ? sinks_(b, h) : none;
    std::vector<PlainPair> pairs;
    std::vector<T> weights;
    T max = sink;
    for (const PlainPair& pair : PlainVisible(p_, b, h, i)) {
      bool sees;
      const T s = Score(b, h, i, pair, &sees);
      if (!sees) continue;
      pairs.push_back(pair);
      weights.push_back(s);
      max = s > max ? s : max;
    }
    if (is_softmax) {
      T sum = sink == none ? T{0} : std::exp(sink - max);
      for (T& w : weights) sum += w = std::exp(w - (max == none ? 0 : max));
      for (T& w : weights) w /= sum;
      result->lse.At({b, h, i}) = sum == 0 ? none : max + std::log(sum);
      if (sum == 0) return;
    } else {
      const T factor = row_weight_.given() ? row_weight_(b, h, i) : T{1};
      for (T& w : weights) w = factor * PlainWeight(params_.weighting, w);
    }
    std::vector<T> out(static_cast<size_t>(p_.v.shape[3]), 0);
    for (size_t n = 0; n < pairs.size(); ++n) {
      const int64_t Nk = p_.k.shape[2], j = pairs[n].key;
      for (size_t d = 0; d < out.size(); ++d) {
        const auto column = static_cast<int64_t>(d);
        out[d] +=
            weights[n] * (j < Nk ? v_(b, KvHead(h), j, column) : v2_(b, KvHead(h), j - Nk, column));
      }
    }
    for (size_t d = 0; d < out.size(); ++d) {
      result->out.At({b, h, i, static_cast<int64_t>(d)}) = out[d];
    }
  }

  const AttendParams params_;
  const AttendProblem& p_;
  Array q_, k_, v_, k2_, v2_, bias_, slopes_, sinks_, table_, q_rel_, r_, row_weight_;
};

}  // namespace attnd::testing
