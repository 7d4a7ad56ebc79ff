#include "tests/plain/plain_attend_grad.h"
#include "tests/pattern/pattern_masks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace attnd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Offsets of elements in a dense array. A dimension of 1 repeats.
class Places {
 public:
  explicit Places(const Shape& shape) {
    int64_t step = 1;
    for (int i = shape.rank - 1; i >= 0; --i) {
      steps_[i] = shape[i] == 1 ? 0 : step;
      step *= shape[i];
    }
  }
  int64_t operator()(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return a * steps_[0] + b * steps_[1] + c * steps_[2] + d * steps_[3];
  }

 private:
  int64_t steps_[kMaxRank] = {};
};

// Elements of a view; a dimension of stride 0 is stored once.
template <class T>
class Numbers {
 public:
  explicit Numbers(const View& view) : given_(view.given()), places_(Once(view).shape) {
    if (!given_) return;
    const PlainArray array = ReadView(Once(view));
    values_.assign(array.values.begin(), array.values.end());
  }
  bool given() const { return given_; }
  T operator()(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) const {
    return values_[places_(a, b, c, d)];
  }

 private:
  static View Once(View view) {
    for (int i = 0; i < view.shape.rank; ++i) {
      if (view.stride[i] == 0) view.shape.dims[i] = std::min<int64_t>(view.shape[i], 1);
    }
    return view;
  }
  bool given_;
  Places places_;
  std::vector<T> values_;
};

// Sums in T, and sums of magnitudes in double. A dimension of 1 sums over all its indices.
template <class T>
class Sums {
 public:
  explicit Sums(const View& view) : shape_(view.shape), given_(view.given()), places_(view.shape) {
    sums_.assign(given_ ? shape_.size() : 0, 0);
    sizes_.assign(sums_.size(), 0);
  }
  void Add(T value, double size, int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) {
    if (!given_) return;
    sums_[places_(a, b, c, d)] += value;
    sizes_[places_(a, b, c, d)] += size;
  }
  PlainGradient Result() const {
    PlainGradient result;
    if (!given_) return result;
    result.values = PlainArray(shape_);
    std::copy(sums_.begin(), sums_.end(), result.values.values.begin());
    for (double size : sizes_) {
      if (std::isfinite(size)) result.size = std::max(result.size, size);
    }
    return result;
  }

 private:
  Shape shape_;
  bool given_;
  Places places_;
  std::vector<T> sums_;
  std::vector<double> sizes_;
};

template <class T>
T Phi(Weighting weighting, T x) {
  switch (weighting) {
    case Weighting::kRelu:
      return x > 0 ? x : 0;
    case Weighting::kReluSquared:
      return x > 0 ? x * x : 0;
    case Weighting::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2_v<T>) / 2;
    case Weighting::kSoftplus:
      return std::max<T>(x, 0) + std::log1p(std::exp(-std::abs(x)));
    case Weighting::kRelu6:
      return std::clamp<T>(x, 0, 6);
    case Weighting::kSigmoid:
      return 1 / (1 + std::exp(-x));
    default:
      return x;
  }
}

template <class T>
T PhiSlope(Weighting weighting, T x) {
  switch (weighting) {
    case Weighting::kRelu:
      return x > 0 ? 1 : 0;
    case Weighting::kReluSquared:
      return x > 0 ? 2 * x : 0;
    case Weighting::kGelu: {
      const T density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<T>);
      return std::erfc(-x / std::numbers::sqrt2_v<T>) / 2 + x * density;
    }
    case Weighting::kSoftplus:
      return 1 / (1 + std::exp(-x));
    case Weighting::kRelu6:
      return x > 0 && x < 6 ? 1 : 0;
    case Weighting::kSigmoid:
      return 1 / (1 + std::exp(-x)) * (1 / (1 + std::exp(x)));
    default:
      return 1;
  }
}

// A visible pair: its score, and the derivative of the score by t.
template <class T>
struct Score {
  T s, keeps;
  int64_t distance, delta;
};

template <class T>
struct Problem {
  const AttendParams& params;
  const AttendProblem& p;
  Numbers<T> q{p.q}, k{p.k}, v{p.v}, k2{p.terms.k2}, v2{p.terms.v2}, bias{p.terms.bias},
      slopes{p.terms.alibi_slopes}, sinks{p.terms.sinks}, table{p.terms.table},
      q_rel{p.terms.q_rel}, r{p.terms.r}, row_weight{p.terms.row_weight};
  int64_t Nk = p.k.shape[2], D = p.q.shape[3], Dv = p.v.shape[3];
  int64_t group = p.q.shape[1] / p.k.shape[1];
  bool softmax = params.weighting == Weighting::kSoftmax;

  T Key(int64_t b, int64_t h, int64_t j, int64_t d) const {
    return j < Nk ? k(b, h / group, j, d) : k2(b, h / group, j - Nk, d);
  }
  T Value(int64_t b, int64_t h, int64_t j, int64_t d) const {
    return j < Nk ? v(b, h / group, j, d) : v2(b, h / group, j - Nk, d);
  }
  bool Hides(int64_t b, int64_t h, int64_t i, const SeenKey& seen) const {
    return bias.given() && seen.key < Nk && bias(b, h, i, seen.key) == -kInf;
  }

  Score<T> Of(int64_t b, int64_t h, int64_t i, const SeenKey& seen) const {
    const int64_t gap = i + p.seqs[b].offset - seen.key;
    Score<T> score = {0, 1, std::abs(gap), 0};
    T t = 0;
    for (int64_t d = 0; d < D; ++d) t += q(b, h, i, d) * Key(b, h, seen.key, d);
    if (r.given()) {
      score.delta = std::clamp<int64_t>(gap, 0, p.terms.r.shape[2] - 1);
      for (int64_t d = 0; d < D; ++d) t += q_rel(b, h, i, d) * r(b, h, score.delta, d);
    }
    const T entry = table.given() && seen.label >= 0 ? table(b, h, i, seen.label) : T{0};
    if (params.cap_table) t += entry;
    t *= static_cast<T>(params.scale);
    score.s = t;
    if (params.softcap > 0) {
      const T cap = static_cast<T>(params.softcap), tanh = std::tanh(t / cap);
      score.s = cap * tanh;
      score.keeps = 1 - tanh * tanh;
    }
    if (!params.cap_table) score.s += entry;
    if (bias.given() && seen.key < Nk) score.s += bias(b, h, i, seen.key);
    if (slopes.given()) score.s -= slopes(b, h) * static_cast<T>(score.distance);
    score.s += static_cast<T>(seen.bias);
    return score;
  }
};

}  // namespace

std::vector<std::vector<SeenKey>> SeenKeys(const AttendProblem& problem, int64_t b, int64_t h) {
  const AttendSeq& seq = problem.seqs[b];
  std::vector<std::vector<SeenKey>> seen(problem.q.shape[2]);
  const Pattern* pattern = seq.Of(h);
  if (pattern == nullptr) {
    for (int64_t i = 0; i < seq.nq; ++i) {
      for (int64_t j = 0; j < seq.nk; ++j) seen[i].push_back({.key = j});
    }
    return seen;
  }
  for (size_t i = 0; pattern->is_listed() && i + 1 < pattern->keys_of.begin.size(); ++i) {
    for (int64_t at = pattern->keys_of.begin[i]; at < pattern->keys_of.begin[i + 1]; ++at) {
      seen[i].push_back({.key = pattern->keys_of.columns[at]});
    }
  }
  const auto& runs = pattern->by_query;
  for (int64_t q_tile = 0; q_tile < runs.rows(); ++q_tile) {
    for (int64_t n = runs.begin[q_tile]; n < runs.begin[q_tile + 1]; ++n) {
      const Run& run = runs.runs[n];
      TileMask mask;
      TileTerms terms;
      for (int64_t at = 0; at < run.count * kTile * kTile; ++at) {
        const int64_t i = at % kTile, x = at / kTile % kTile, tile = run.first + at / kTile / kTile;
        if (i == 0 && x == 0) {
          mask = MaskOfRun(*pattern, run, q_tile, tile);
          terms = TermsOfRun(*pattern, run, q_tile, tile);
        }
        const int64_t q_slot = q_tile * kTile + i, k_slot = tile * kTile + x;
        if (q_slot >= pattern->Nq || k_slot >= pattern->Nk) continue;
        if ((mask[x] >> i & 1) == 0) continue;
        const bool orders_q = !pattern->query_rows.empty(), orders_k = !pattern->key_rows.empty();
        const int64_t query = orders_q ? pattern->query_rows[q_slot] : q_slot;
        const int64_t key = orders_k ? pattern->key_rows[k_slot] : k_slot;
        if (query < 0 || key < 0 || (!orders_q && query >= seq.nq)) continue;
        if (!orders_k && key >= seq.nk) continue;
        SeenKey pair = {.key = key};
        if (!pattern->key_bias.empty()) pair.bias += pattern->key_bias[k_slot];
        if (!terms.bias.empty()) pair.bias += terms.bias[x * kTile + i];
        if (!terms.labels.empty() && terms.labels[x * kTile + i] != TileTerms::kNoLabel) {
          pair.label = terms.labels[x * kTile + i];
        }
        seen[query].push_back(pair);
      }
    }
  }
  return seen;
}

void PlainAttendForward(const AttendParams& params, const AttendProblem& problem) {
  const Problem<double> p{params, problem};
  PlainArray out(problem.out.shape), lse(problem.lse.shape, -kInf);
  const Shape& s = problem.q.shape;
  for (int64_t b = 0; b < s[0]; ++b) {
    for (int64_t h = 0; h < s[1]; ++h) {
      const auto all = SeenKeys(problem, b, h);
      for (int64_t i = 0; i < problem.seqs[b].nq; ++i) {
        double max = p.sinks.given() ? p.sinks(b, h) : -kInf;
        for (const SeenKey& seen : all[i]) {
          if (!p.Hides(b, h, i, seen)) max = std::max(max, p.Of(b, h, i, seen).s);
        }
        double sum = p.sinks.given() ? std::exp(p.sinks(b, h) - max) : 0;
        std::vector<double> row(p.Dv, 0);
        for (const SeenKey& seen : all[i]) {
          if (p.Hides(b, h, i, seen)) continue;
          const double score = p.Of(b, h, i, seen).s;
          const double weight = p.softmax ? std::exp(score - max) : Phi(params.weighting, score);
          sum += weight;
          for (int64_t d = 0; d < p.Dv; ++d) row[d] += weight * p.Value(b, h, seen.key, d);
        }
        const double factor = p.softmax ? (sum > 0 ? 1 / sum : 0)
                                        : (p.row_weight.given() ? p.row_weight(b, h, i) : 1);
        for (int64_t d = 0; d < p.Dv; ++d) out.At({b, h, i, d}) = factor * row[d];
        if (p.softmax && sum > 0) lse.At({b, h, i}) = max + std::log(sum);
      }
    }
  }
  WriteView(out, problem.out);
  if (p.softmax) WriteLse(lse, problem.lse, problem.lse_low);
}

template <class T>
PlainAttendGradients PlainAttendGrad(const AttendParams& params, const AttendGradProblem& problem) {
  const AttendProblem& f = problem.forward;
  const AttendTermGrads& terms = problem.dterms;
  const Problem<T> p{params, f};
  const Numbers<T> out(f.out), dout(problem.dout), dlse(problem.dlse);
  const PlainArray log_sums = ReadLse(f.lse, f.lse_low);
  const auto lse = [&](int64_t b, int64_t h, int64_t i) {
    return static_cast<T>(log_sums.At({b, h, i}));
  };
  Sums<T> dq(problem.dq), dk(problem.dk), dv(problem.dv), dk2(terms.k2), dv2(terms.v2),
      dbias(terms.bias), dslopes(terms.alibi_slopes), dsinks(terms.sinks), dtable(terms.table),
      dq_rel(terms.q_rel), dr(terms.r);
  const T scale = static_cast<T>(params.scale);
  const auto size = [](T x) { return static_cast<double>(std::abs(x)); };
  const Shape& s = f.q.shape;
  std::vector<std::vector<SeenKey>> all;
  for (int64_t at = 0; at < s[0] * s[1] * s[2]; ++at) {
    const int64_t i = at % s[2], h = at / s[2] % s[1], b = at / s[2] / s[1], kv = h / p.group;
    if (i == 0) all = SeenKeys(f, b, h);
    if (i >= f.seqs[b].nq || (p.softmax && lse(b, h, i) == -kInf)) continue;
    T delta = 0, arriving = 0;
    for (int64_t d = 0; p.softmax && dout.given() && d < p.Dv; ++d) {
      delta += dout(b, h, i, d) * out(b, h, i, d);
    }
    if (p.softmax && dlse.given()) arriving = dlse(b, h, i);
    if (p.sinks.given() && p.softmax) {
      const T weight = std::exp(p.sinks(b, h) - lse(b, h, i));
      dsinks.Add(weight * (arriving - delta), weight * (size(arriving) + size(delta)), b, h);
    }
    const T w = p.row_weight.given() ? p.row_weight(b, h, i) : 1;
    for (const SeenKey& seen : all[i]) {
      if (p.Hides(b, h, i, seen)) continue;
      const Score<T> score = p.Of(b, h, i, seen);
      const T weight =
          p.softmax ? std::exp(score.s - lse(b, h, i)) : w * Phi(params.weighting, score.s);
      const bool second = seen.key >= p.Nk;
      const int64_t j = second ? seen.key - p.Nk : seen.key;
      T dp = 0;
      for (int64_t d = 0; dout.given() && d < p.Dv; ++d) {
        dp += dout(b, h, i, d) * p.Value(b, h, seen.key, d);
        const T term = weight * dout(b, h, i, d);
        (second ? dv2 : dv).Add(term, size(term), b, kv, j, d);
      }
      const T slope = p.softmax ? weight : w * PhiSlope(params.weighting, score.s);
      const T ds = slope * (dp - delta + arriving), dt = ds * score.keeps;
      const double ds_size = size(slope) * (size(dp) + size(delta) + size(arriving));
      const double dt_size = ds_size;
      if (!second) dbias.Add(ds, ds_size, b, h, i, j);
      dslopes.Add(-ds * static_cast<T>(score.distance),
                  ds_size * static_cast<double>(score.distance), b, h);
      if (seen.label >= 0) {
        const T entry = params.cap_table ? scale * dt : ds;
        const double entry_size = params.cap_table ? scale * dt_size : ds_size;
        dtable.Add(entry, entry_size, b, h, i, seen.label);
      }
      for (int64_t d = 0; d < p.D; ++d) {
        const T key = p.Key(b, h, seen.key, d), query = p.q(b, h, i, d);
        dq.Add(scale * dt * key, scale * dt_size * size(key), b, h, i, d);
        (second ? dk2 : dk).Add(scale * dt * query, scale * dt_size * size(query), b, kv, j, d);
        if (!p.r.given()) continue;
        const T r = p.r(b, h, score.delta, d), q_rel = p.q_rel(b, h, i, d);
        dq_rel.Add(scale * dt * r, scale * dt_size * size(r), b, h, i, d);
        dr.Add(scale * dt * q_rel, scale * dt_size * size(q_rel), b, h, score.delta, d);
      }
    }
  }
  return {dq.Result(),     dk.Result(),     dv.Result(),      dk2.Result(),
          dv2.Result(),    dbias.Result(),  dslopes.Result(), dsinks.Result(),
          dtable.Result(), dq_rel.Result(), dr.Result()};
}

template PlainAttendGradients PlainAttendGrad<float>(const AttendParams&, const AttendGradProblem&);
template PlainAttendGradients PlainAttendGrad<double>(const AttendParams&,
                                                      const AttendGradProblem&);

}  // namespace attnd::testing
