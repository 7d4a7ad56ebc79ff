// attend in plain double loops, forward and gradients, written from kernels/device/attend.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/plain/plain.h"
#include "tests/plain/plain_attend_rows.h"

namespace attnd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A tensor of up to four dimensions of which those of size 1 repeat; absent: rank 0.
struct Array {
  PlainArray plain;

  Array() = default;
  explicit Array(const View& view) : plain(ReadView(view)) {}
  explicit Array(const Shape& shape) : plain(shape) {}
  explicit Array(PlainArray array) : plain(std::move(array)) {}
  bool given() const { return plain.shape.rank != 0; }
  size_t Offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
    const int64_t at[4] = {a, b, c, d};
    int64_t offset = 0;
    for (int i = 0; i < plain.shape.rank; ++i) {
      offset = offset * plain.shape[i] + (plain.shape[i] == 1 ? 0 : at[i]);
    }
    return static_cast<size_t>(offset);
  }
  double& operator()(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) {
    return plain.values.at(Offset(a, b, c, d));
  }
  double operator()(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) const {
    return plain.values.at(Offset(a, b, c, d));
  }
};

// An array of zeros; absent where no gradient is wanted.
Array Wanted(const View& view) { return view.given() ? Array(view.shape) : Array(); }

double Phi(Weighting w, double s) {
  switch (w) {
    case Weighting::kSoftmax:
      return 0;
    case Weighting::kRelu:
      return std::fmax(s, 0);
    case Weighting::kReluSquared:
      return s > 0 ? s * s : 0;
    case Weighting::kGelu:
      return s * 0.5 * (1 + std::erf(s / std::sqrt(2.0)));
    case Weighting::kSoftplus:
      return std::fmax(s, 0) + std::log1p(std::exp(-std::fabs(s)));
    case Weighting::kIdentity:
      return s;
    case Weighting::kRelu6:
      return std::fmin(std::fmax(s, 0), 6);
    case Weighting::kSigmoid:
      return 1 / (1 + std::exp(-s));
  }
  return 0;
}

double PhiSlope(Weighting w, double s) {
  const double sigmoid = 1 / (1 + std::exp(-s));
  switch (w) {
    case Weighting::kSoftmax:
      return 0;
    case Weighting::kRelu:
      return s > 0 ? 1 : 0;
    case Weighting::kReluSquared:
      return s > 0 ? 2 * s : 0;
    case Weighting::kGelu:
      return 0.5 * (1 + std::erf(s / std::sqrt(2.0))) +
             s * std::exp(-s * s / 2) / std::sqrt(2 * M_PI);
    case Weighting::kSoftplus:
      return sigmoid;
    case Weighting::kIdentity:
      return 1;
    case Weighting::kRelu6:
      return s > 0 && s < 6 ? 1 : 0;
    case Weighting::kSigmoid:
      return sigmoid * (1 - sigmoid);
  }
  return 0;
}

// One pair: its score, and the intermediate values that the chain rule needs.
struct Pair {
  SeenSlot key;
  bool own = true;       // a row of k, not of k2
  int64_t j = 0;         // row of k or of k2
  int64_t distance = 0;  // p_i - p_j
  double s = 0, through_cap = 1;
};

struct Problem {
  const AttendParams& params;
  const AttendProblem& p;
  Array q{p.q}, k{p.k}, v{p.v}, k2{p.terms.k2}, v2{p.terms.v2}, bias{p.terms.bias},
      slopes{p.terms.alibi_slopes}, sinks{p.terms.sinks}, table{p.terms.table},
      q_rel{p.terms.q_rel}, r{p.terms.r}, row_weight{p.terms.row_weight};
  int64_t B = p.q.shape[0], H = p.q.shape[1], Nq = p.q.shape[2], D = p.q.shape[3],
          Nk = p.k.shape[2], Dv = p.v.shape[3], group = H / p.k.shape[1];

  int64_t Delta(const Pair& pair) const {
    return std::clamp<int64_t>(pair.distance, 0, p.terms.r.shape[2] - 1);
  }

  // False: a bias of -inf hides the pair.
  bool Score(int64_t b, int64_t h, int64_t i, Pair* pair) const {
    const Array& keys = pair->own ? k : k2;
    double t = 0;
    for (int64_t d = 0; d < D; ++d) t += q(b, h, i, d) * keys(b, h / group, pair->j, d);
    for (int64_t d = 0; d < D && q_rel.given(); ++d) {
      t += q_rel(b, h, i, d) * r(b, h, Delta(*pair), d);
    }
    const double entry =
        table.given() && pair->key.label >= 0 ? table(b, h, i, pair->key.label) : 0;
    if (params.cap_table) t += entry;
    t *= params.scale;
    double x = t;
    if (params.softcap > 0) {
      const double tanh = std::tanh(t / params.softcap);
      x = params.softcap * tanh;
      pair->through_cap = 1 - tanh * tanh;
    }
    if (!params.cap_table) x += entry;
    if (bias.given() && pair->own) {
      if (bias(b, h, i, pair->j) == -kInf) return false;
      x += bias(b, h, i, pair->j);
    }
    if (slopes.given()) x -= slopes(b, h) * static_cast<double>(std::abs(pair->distance));
    pair->s = x + pair->key.bias;
    return true;
  }

  template <class Visit>  // visit(b, h, i, pairs of the row, whether the row is valid)
  void ForRows(const Visit& visit) const {
    for (int64_t b = 0; b < B; ++b) {
      const AttendSeq& seq = p.seqs[b];
      for (int64_t h = 0; h < H; ++h) {
        const auto seen = SeenSlots(seq.Of(h), seq, Nq);
        for (int64_t i = 0; i < Nq; ++i) {
          std::vector<Pair> pairs;
          for (const SeenSlot& key : seen[i]) {
            Pair pair{.key = key, .own = key.row < Nk, .distance = i + seq.offset - key.row};
            pair.j = pair.own ? key.row : key.row - Nk;
            if (Score(b, h, i, &pair)) pairs.push_back(pair);
          }
          visit(b, h, i, pairs, i < seq.nq);
        }
      }
    }
  }

  const Array& ValuesOf(const Pair& pair) const { return pair.own ? v : v2; }
  bool softmax() const { return params.weighting == Weighting::kSoftmax; }
  double RowWeight(int64_t b, int64_t h, int64_t i) const {
    return row_weight.given() ? row_weight(b, h, i) : 1;
  }
};

void Forward(const AttendParams& params, const AttendProblem& problem) {
  const Problem c{params, problem};
  Array out(problem.out.shape), lse = Wanted(problem.lse);
  c.ForRows([&](int64_t b, int64_t h, int64_t i, const std::vector<Pair>& pairs, bool valid) {
    const bool sink = c.sinks.given() && valid;
    double max = sink ? c.sinks(b, h) : -kInf;
    for (const Pair& pair : pairs) max = std::fmax(max, pair.s);
    const double shift = std::isinf(max) ? 0 : max;
    double sum = sink ? std::exp(c.sinks(b, h) - shift) : 0;
    for (const Pair& pair : pairs) sum += std::exp(pair.s - shift);
    if (c.softmax()) lse(b, h, i) = shift + std::log(sum);
    for (const Pair& pair : pairs) {
      const double w = c.softmax() ? std::exp(pair.s - shift) / (sum == 0 ? 1 : sum)
                                   : c.RowWeight(b, h, i) * Phi(params.weighting, pair.s);
      for (int64_t d = 0; d < c.Dv; ++d) {
        out(b, h, i, d) += w * c.ValuesOf(pair)(b, h / c.group, pair.j, d);
      }
    }
  });
  WriteView(out.plain, problem.out);
  if (c.softmax()) WriteLse(lse.plain, problem.lse, problem.lse_low);
}

struct Gradients {
  const Problem& c;
  const AttendGradProblem& g;
  Array dout{g.dout}, dlse{g.dlse}, out{g.forward.out};
  Array lse{ReadLse(g.forward.lse, g.forward.lse_low)};
  Array dq = Wanted(g.dq), dk = Wanted(g.dk), dv = Wanted(g.dv), dk2 = Wanted(g.dterms.k2),
        dv2 = Wanted(g.dterms.v2), dbias = Wanted(g.dterms.bias),
        dslopes = Wanted(g.dterms.alibi_slopes), dsinks = Wanted(g.dterms.sinks),
        dtable = Wanted(g.dterms.table), dq_rel = Wanted(g.dterms.q_rel), dr = Wanted(g.dterms.r);

  void OfPair(int64_t b, int64_t h, int64_t i, const Pair& pair, double w, double dS) {
    const int64_t kv = h / c.group, j = pair.j;
    const double dT = c.params.scale * dS * pair.through_cap;
    Array& dvalues = pair.own ? dv : dv2;
    Array& dkeys = pair.own ? dk : dk2;
    const Array& keys = pair.own ? c.k : c.k2;
    for (int64_t d = 0; d < c.Dv && dvalues.given() && dout.given(); ++d) {
      dvalues(b, kv, j, d) += w * dout(b, h, i, d);
    }
    for (int64_t d = 0; d < c.D; ++d) {
      if (dq.given()) dq(b, h, i, d) += dT * keys(b, kv, j, d);
      if (dkeys.given()) dkeys(b, kv, j, d) += dT * c.q(b, h, i, d);
      if (dq_rel.given()) dq_rel(b, h, i, d) += dT * c.r(b, h, c.Delta(pair), d);
      if (dr.given()) dr(b, h, c.Delta(pair), d) += dT * c.q_rel(b, h, i, d);
    }
    if (dbias.given() && pair.own) dbias(b, h, i, j) += dS;
    if (dslopes.given()) dslopes(b, h) -= dS * static_cast<double>(std::abs(pair.distance));
    if (dtable.given() && pair.key.label >= 0) {
      dtable(b, h, i, pair.key.label) += c.params.cap_table ? dT : dS;
    }
  }

  void OfRow(int64_t b, int64_t h, int64_t i, const std::vector<Pair>& pairs) {
    const double row_lse = c.softmax() ? lse(b, h, i) : 0;
    if (row_lse == -kInf) return;
    // delta - dlse of the row.
    double back = c.softmax() && dlse.given() ? -dlse(b, h, i) : 0;
    for (int64_t d = 0; d < c.Dv && c.softmax() && dout.given(); ++d) {
      back += dout(b, h, i, d) * out(b, h, i, d);
    }
    if (dsinks.given()) dsinks(b, h) -= std::exp(c.sinks(b, h) - row_lse) * back;
    for (const Pair& pair : pairs) {
      double dw = 0;
      for (int64_t d = 0; d < c.Dv && dout.given(); ++d) {
        dw += dout(b, h, i, d) * c.ValuesOf(pair)(b, h / c.group, pair.j, d);
      }
      const Weighting weighting = c.params.weighting;
      const double factor = c.RowWeight(b, h, i);
      const double w = c.softmax() ? std::exp(pair.s - row_lse) : factor * Phi(weighting, pair.s);
      const double dS = c.softmax() ? w * (dw - back) : factor * PhiSlope(weighting, pair.s) * dw;
      OfPair(b, h, i, pair, w, dS);
    }
  }

  void Write() const {
    const AttendTermGrads& t = g.dterms;
    for (const auto& [array, view] : {std::pair{&dq, &g.dq},
                                      {&dk, &g.dk},
                                      {&dv, &g.dv},
                                      {&dk2, &t.k2},
                                      {&dv2, &t.v2},
                                      {&dbias, &t.bias},
                                      {&dslopes, &t.alibi_slopes},
                                      {&dsinks, &t.sinks},
                                      {&dtable, &t.table},
                                      {&dq_rel, &t.q_rel},
                                      {&dr, &t.r}}) {
      WriteView(array->plain, *view);
    }
  }
};

}  // namespace

template <>
void PlainRun(const AttendArgs& args) {
  for (const AttendProblem& problem : args.problems) Forward(args.params, problem);
}

template <>
void PlainRun(const AttendGradArgs& args) {
  for (const AttendGradProblem& problem : args.problems) {
    const Problem c{args.params, problem.forward};
    Gradients gradients{c, problem};
    c.ForRows([&](int64_t b, int64_t h, int64_t i, const std::vector<Pair>& pairs, bool valid) {
      if (valid) gradients.OfRow(b, h, i, pairs);
    });
    gradients.Write();
  }
}

}  // namespace attnd::testing
