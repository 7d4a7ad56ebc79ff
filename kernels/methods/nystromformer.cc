// Nystromformer (Xiong et al. 2021, eq. 13-15): softmax attention through m landmarks, the means
// Qt, Kt [m,D] of m segments of the queries and keys:
//   out = K1 Z (K3 V) + conv(V),  K1 = softmax(s Q Kt^T),  K3 = softmax(s Qt K^T)
// with Z the pseudo-inverse of A = softmax(s Qt Kt^T) by iteration (algorithm 1): Z = A^T / c0 and
//   Z <- Z (13 I - P (15 I - P (7 I - P))) / 4,  P = A Z
// where c0 is the largest column sum of A. K1 [n,m] and K3 [m,n] are never stored: both products
// are attention, of Qt to the keys with values V, and of Q to Kt with values Z (K3 V). Where
// n_q <= m or n_k <= m the attention is exact.
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class PinvInit : uint8_t { kExact, kOriginal };

constexpr int64_t kMostTaps = 511;

struct NystromOptions {
  int64_t num_landmarks = 64;
  int64_t pinv_iterations = 6;
  PinvInit pinv_init = PinvInit::kExact;
  std::optional<int64_t> conv_kernel_size;  // unset: that of conv_weight, else 0
  std::optional<double> scale;              // unset: 1/sqrt(D)
  uint64_t seed = 0;
};

std::vector<OptionSpec<NystromOptions>> Lines() {
  using O = NystromOptions;
  return {
      IntOption("num_landmarks", &O::num_landmarks, {.min = 1, .max = 1024},
                "segments whose means are the landmarks"),
      IntOption("pinv_iterations", &O::pinv_iterations, {.min = 0, .max = 64},
                "of the pseudo-inverse"),
      EnumOption("pinv_init", &O::pinv_init, {"exact", "original"},
                 "largest column sum that starts it: of each head, or of the whole request"),
      IntOption("conv_kernel_size", &O::conv_kernel_size, {.min = 0, .max = kMostTaps}, int64_t{0},
                "taps of a convolution of v that is added, odd; 0: none"),
      ScaleOption(&O::scale, "multiplies q k^T"),
      SeedOption(&O::seed),
  };
}

constexpr char kWeight[] = "[H,conv_kernel_size]";

std::vector<TensorInfo> NystromInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(
      Differentiable("conv_weight", kWeight, "taps of each query head; drawn when absent"));
  return inputs;
}

int64_t TapsOf(const ProblemShape& p, const NystromOptions& o) {
  const View* weight = p.Find("conv_weight");
  if (weight != nullptr && weight->shape.rank == 2) return weight->shape[1];
  return o.conv_kernel_size.value_or(0);
}

bool IsExact(const Lengths& n, const NystromOptions& o) {
  return n.nq <= o.num_landmarks || n.nk <= o.num_landmarks;
}

// Which sequences a request has.
struct SeqKinds {
  bool has_exact = false, has_landmarks = false;
  bool is_uneven = false;  // more queries than keys, or fewer
};
SeqKinds KindsOf(const ProblemShape& p, const NystromOptions& o) {
  SeqKinds kinds;
  for (int64_t b = 0; b < (HasLengths(p) ? p.B : 1); ++b) {
    const Lengths n{p.Int("q_lengths", b, p.Nq), p.Int("kv_lengths", b, p.Nk)};
    (IsExact(n, o) ? kinds.has_exact : kinds.has_landmarks) = true;
    kinds.is_uneven = kinds.is_uneven || n.nq != n.nk;
  }
  return kinds;
}

// value I [1,1,m,m] for every problem of `like` [B,H,m,m], m the same or 0: one for all.
Tensor Diagonal(Ops& ops, float value, int64_t m, const Tensor& like) {
  std::vector<float> values;
  if (!ops.stream().is_dry()) {
    values.resize(static_cast<size_t>(m * m), 0);
    for (int64_t i = 0; i < m; ++i) values[static_cast<size_t>(i * (m + 1))] = value;
  }
  const Tensor one =
      ops.FromHost({{1, 1, m, m}}, std::vector<std::vector<float>>{std::move(values)});
  if (!ops.status().ok()) return {};
  std::vector<View> views(like.size(), one[0]);
  for (size_t p = 0; p < like.size(); ++p) {
    views[p].shape.dims[2] = views[p].shape.dims[3] = like[p].shape[2];
  }
  return Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(like.size(), one.buffer(0)));
}

class Nystromformer : public MethodOf<NystromOptions> {
 public:
  Nystromformer()
      : MethodOf({.id = "nystromformer",
                  .summary = "Softmax attention through landmarks, by Nystrom's approximation",
                  .reference = "Xiong et al. 2021 (arXiv 2102.03902), eq. 13-15, algorithm 1",
                  .cost = "2 (D + Dv) m FLOPs per query and per key of a head, 8 m^3 "
                          "pinv_iterations per head; memory O(n + m^2)",
                  .inputs = NystromInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dv]", "float", "approximated attention"}},
                  .support = {.lengths = true, .cross = true, .gqa = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const NystromOptions& o,
                    Reasons* reasons) const override {
    const View* weight = p.Find("conv_weight");
    const bool is_sent = weight != nullptr && weight->shape.rank == 2;
    const int64_t taps = TapsOf(p, o);
    if (is_sent && (taps > kMostTaps || taps % 2 == 0)) {
      reasons->Invalid("conv_weight shape must have an odd conv_kernel_size in 1..", kMostTaps,
                       ", got ", ToString(weight->shape));
    } else if (is_sent && o.conv_kernel_size.value_or(taps) != taps) {
      reasons->Invalid("conv_kernel_size must be that of conv_weight, ", taps, ", got ",
                       *o.conv_kernel_size);
    } else if (!is_sent && taps > 0 && taps % 2 == 0) {
      reasons->Invalid("conv_kernel_size must be 0 or odd, got ", taps);
    }
    if (taps > 0 && p.HasSizesOf("q") && p.HasSizesOf("k") && p.Nq != p.Nk) {
      reasons->Invalid("Nk must be Nq = ", p.Nq, " with conv_kernel_size > 0, got ", p.Nk);
    }
    CheckDrawn(p, "conv_weight", {.distribution = Distribution::kUniform}, {p.H, taps}, reasons);
  }

  // Sequences that are exact and others take different launches; one convolution has one width.
  // What some requests copy and others do not is part of it, so that plans bound a batch.
  std::string BranchOf(const ProblemShape& p, const NystromOptions& o) const override {
    const SeqKinds kinds = KindsOf(p, o);
    const int64_t taps = TapsOf(p, o);
    return absl::StrCat(kinds.has_exact ? "exact" : "", kinds.has_landmarks ? "landmarks" : "",
                        taps > 0 ? absl::StrCat("+taps=", taps) : "",
                        taps > 0 && kinds.is_uneven ? "+uneven" : "",
                        p.H != p.Hkv ? "+groups" : "");
  }

  Outputs Formula(Ops& ops, const Inputs& in, const NystromOptions& o) const override {
    const double D = static_cast<double>(in.problems[0].D);
    const SeqSplit seqs(ops, in);
    const Run run{ops,
                  in,
                  o,
                  seqs,
                  KindsOf(in.problems[0], o),
                  TapsOf(in.problems[0], o),
                  o.scale.value_or(1 / std::sqrt(D))};
    Tensor out = run.Attended(seqs.Queries(in.q), seqs.Keys(in.k), seqs.Keys(in.v));
    if (run.taps > 0) out = ops.Apply(ElementOp::kAdd, out, run.Convolved(seqs.Keys(in.v)));
    if (!ops.status().ok()) return {};
    return {.out = seqs.JoinOut(out, in.problems[0].Dv)};
  }

 private:
  struct Run {
    Ops& ops;
    const Inputs& in;
    const NystromOptions& o;
    const SeqSplit& seqs;
    const SeqKinds kinds;
    const int64_t taps;
    const double scale;

    // Outputs of both kinds of sequences. Those of one kind have no rows in the other's tensors.
    Tensor Attended(const Tensor& q, const Tensor& k, const Tensor& v) const {
      if (!kinds.has_landmarks) return Exact(q, k, v);
      if (!kinds.has_exact) return ThroughLandmarks(q, k, v);
      const auto of = [&](bool exact, const Tensor& x) {
        std::vector<int64_t> rows;
        for (size_t i = 0; i < x.size(); ++i) {
          rows.push_back(IsExact(seqs.parts()[i].lengths, o) == exact ? x[i].shape[2] : 0);
        }
        return ops.Slice(x, 2, {0}, rows);
      };
      if (!ops.status().ok()) return {};
      const Tensor exact = Exact(of(true, q), of(true, k), of(true, v));
      const Tensor others = ThroughLandmarks(of(false, q), of(false, k), of(false, v));
      return ops.Concat({exact, others}, 2);
    }

    Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, DType dtype) const {
      std::vector<int64_t> keys;
      for (size_t i = 0; i < k.size(); ++i) keys.push_back(k[i].shape[2]);
      if (!ops.status().ok()) return {};
      const std::vector<AttendSeqs> all(1, AllPairs(ops, q, keys));
      return ops.Attend(q, k, v, {.scale = scale}, all, {}, dtype).out;
    }
    // Of a result that is the output; one that a convolution is added to is float32.
    DType dtype() const { return taps > 0 ? DType::kF32 : in.q[0].dtype; }

    Tensor Exact(const Tensor& q, const Tensor& k, const Tensor& v) const {
      return Attend(q, k, v, dtype());
    }

    Tensor Landmarks(const Tensor& x) const {
      if (!ops.status().ok()) return {};
      std::vector<RowSegments> segments;
      for (size_t i = 0; i < x.size(); ++i) {
        segments.push_back(LandmarksOf(x[i].shape[2], o.num_landmarks));
      }
      return ReduceRows(ops, ReduceOp::kMean, x, segments);
    }

    Tensor ThroughLandmarks(const Tensor& q, const Tensor& k, const Tensor& v) const {
      if (!ops.status().ok()) return {};
      std::vector<int64_t> groups;
      for (size_t i = 0; i < q.size(); ++i) groups.push_back(q[i].shape[1] / k[i].shape[1]);
      const Tensor q_marks = Landmarks(q);
      const Tensor k_marks = RepeatHeads(ops, Landmarks(k), groups);
      if (!ops.status().ok()) return {};
      const Tensor scores =
          ops.MatMul(q_marks, ops.Transpose(k_marks, 2, 3), {.alpha = scale});  // [B,H,m,m]
      const Tensor inverse = Inverse(ops.Softmax(scores, -1));
      const Tensor values = ops.MatMul(inverse, Attend(q_marks, k, v, DType::kF32));
      return Attend(q, k_marks, values, dtype());
    }

    // Z of A [B,H,m,m].
    Tensor Inverse(const Tensor& A) const {
      if (!ops.status().ok()) return {};
      const int64_t m = o.num_landmarks;
      const Tensor sums = ops.Reduce(ReduceOp::kSum, A, 2);
      Tensor most = ops.Reduce(ReduceOp::kMax, sums, 3);  // [B,H,1,1]
      if (o.pinv_init == PinvInit::kOriginal) most = MostOfRequest(most);
      Tensor Z = ops.Apply(ElementOp::kDivide, ops.Transpose(A, 2, 3), most);
      const Tensor seven = Diagonal(ops, 7, m, A), thirteen = Diagonal(ops, 13, m, A),
                   fifteen = Diagonal(ops, 15, m, A);
      for (int64_t i = 0; i < o.pinv_iterations && ops.status().ok(); ++i) {
        const Tensor P = ops.MatMul(A, Z);
        const Tensor U = ops.Apply(ElementOp::kSubtract, seven, P);
        const Tensor W = ops.MatMul(P, U, {.alpha = -1}, fifteen);
        const Tensor Y = ops.MatMul(P, W, {.alpha = -1}, thirteen);
        Z = ops.MatMul(Z, Y, {.alpha = 0.25});
      }
      return Z;
    }

    // The largest of all heads and sequences of a request, for each of its parts. It is of the
    // request alone, so that a batch of several gives each what it gives alone.
    Tensor MostOfRequest(const Tensor& most) const {
      Tensor of_part = ops.Reduce(ReduceOp::kMax, ops.Reduce(ReduceOp::kMax, most, 1), 0);
      if (!ops.status().ok() || !seqs.is_split()) return of_part;
      std::vector<Shape> joined, shared;
      RowCuts cuts;
      for (const std::vector<int64_t>& parts : seqs.counts()) {
        const auto count = static_cast<int64_t>(parts.size());
        joined.push_back({count, 1, 1, 1});
        shared.push_back({1, 1, 1});
        cuts.emplace_back();
        for (int64_t i = 0; i <= count; ++i) cuts.back().push_back(i);
      }
      const Tensor all = ops.JoinRows(of_part, 0, joined, cuts);
      const Tensor of_request = ops.Reduce(ReduceOp::kMax, all, 0);
      if (!ops.status().ok()) return {};
      return seqs.Shared(ops.Reshape(of_request, shared));
    }

    // The taps over the values of each query head, as many rows as there are queries.
    Tensor Convolved(const Tensor& v) const {
      if (!ops.status().ok()) return {};
      const double limit = 1 / std::sqrt(static_cast<double>(taps));
      std::vector<Shape> shapes, zeros;
      std::vector<int64_t> groups, rows;
      for (const ProblemShape& p : in.problems) shapes.push_back({p.H, taps});
      for (size_t i = 0; i < v.size(); ++i) {
        const SeqSplit::Part& part = seqs.parts()[i];
        const ProblemShape& p = in.problems[part.problem];
        groups.push_back(p.H / p.Hkv);
        rows.push_back(part.lengths.nq);
        zeros.push_back(v[i].shape);
        zeros.back().dims[2] = std::max<int64_t>(part.lengths.nq - part.lengths.nk, 0);
      }
      const Tensor weight = seqs.Shared(
          SentOrDrawn(ops, in, "conv_weight", UniformDraw(o.seed, "conv_weight", limit), shapes));
      if (!ops.status().ok()) return {};
      std::vector<Shape> matrices;
      for (size_t i = 0; i < v.size(); ++i) matrices.push_back({weight[i].shape[1], taps});
      const Tensor matrix = ops.Reshape(weight, matrices);
      Tensor x = v;
      if (kinds.is_uneven) x = ops.Concat({v, ops.Constant(0, zeros)}, 2);
      const Tensor out = ops.DepthwiseConv1d(RepeatHeads(ops, x, groups), matrix, taps / 2);
      return kinds.is_uneven ? ops.Slice(out, 2, {0}, rows) : out;
    }
  };
};

}  // namespace

ATTND_METHOD(nystromformer, Nystromformer)

}  // namespace attnd
