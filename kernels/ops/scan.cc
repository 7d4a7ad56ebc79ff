// Ops::Scan and its gradient rule.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

Tensor EmptyLike(Ops& ops, const Tensor& tensor) {
  return ops.Empty(tensor[0].dtype, ShapesOf(tensor), LayoutsOf(tensor));
}

bool Fits(const View& q, const View& k, const View& v, const std::vector<ScanRow>& rows) {
  const Shape &qs = q.shape, &ks = k.shape, &vs = v.shape;
  if (qs.rank != 4 || ks.rank != 4 || vs.rank != 4) return false;
  if (!IsFloat(q.dtype) || !IsFloat(k.dtype) || !IsFloat(v.dtype)) return false;
  const bool batch = ks[0] == qs[0] && vs[0] == qs[0];
  const bool heads = ks[1] > 0 && qs[1] % ks[1] == 0 && vs[1] == ks[1];
  const bool lengths = vs[2] == ks[2] && qs[3] == ks[3];
  if (!batch || !heads || !lengths || static_cast<int64_t>(rows.size()) != qs[0]) return false;
  return std::all_of(rows.begin(), rows.end(), [&](const ScanRow& row) {
    return row.nq >= 0 && row.nq <= qs[2] && row.nk >= 0 && row.nk <= ks[2];
  });
}

absl::Status CheckContract(const Tensor& q, const Tensor& k, const Tensor& v,
                           const ScanRows& rows) {
  if (q.empty() || k.size() != q.size() || v.size() != q.size() || rows.size() != q.size()) {
    return absl::InternalError(absl::StrCat("scan: q, k, v and rows must be lists of one length, ",
                                            "got ", q.size(), ", ", k.size(), ", ", v.size(), ", ",
                                            rows.size()));
  }
  for (size_t p = 0; p < q.size(); ++p) {
    const bool uniform = q[p].dtype == q[0].dtype && k[p].dtype == k[0].dtype &&
                         v[p].dtype == v[0].dtype && q[p].shape[3] == q[0].shape[3] &&
                         v[p].shape[3] == v[0].shape[3];
    if (!uniform || !Fits(q[p], k[p], v[p], rows[p])) {
      return absl::InternalError(absl::StrCat(
          "scan: problem ", p, " breaks the contract, got q ", ToString(q[p].shape), " k ",
          ToString(k[p].shape), " v ", ToString(v[p].shape), " with ", rows[p].size(), " rows"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ScanOut Ops::Scan(const Tensor& q, const Tensor& k, const Tensor& v, const ScanParams& params,
                  const ScanRows& rows, const ScanTensors&) {
  if (status_.ok()) Fail(CheckContract(q, k, v, rows));
  if (!status_.ok()) return {};
  std::vector<Shape> out_shapes, lse_shapes;
  for (size_t p = 0; p < q.size(); ++p) {
    const Shape& s = q[p].shape;
    out_shapes.push_back({s[0], s[1], s[2], v[p].shape[3]});
    lse_shapes.push_back({s[0], s[1], s[2]});
  }
  const Tensor out = Empty(q[0].dtype, out_shapes, LayoutsOf(q));
  const Tensor lse = Empty(DType::kF32, lse_shapes);
  if (!status_.ok()) return {};
  std::vector<ScanProblem> problems;
  for (size_t p = 0; p < q.size(); ++p) {
    problems.push_back({q[p], k[p], v[p], out[p], lse[p], rows[p]});
  }
  Fail(stream_.backend().Scan(stream_, {.params = params, .problems = problems}));
  if (!status_.ok()) return {};
  if (!Records({&q, &k, &v})) return {out, lse, {}, {}};

  tape_->Record({q, k, v}, {out, lse},
                [=](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
                  std::vector<Tensor> result;
                  for (const Tensor* input : {&q, &k, &v}) {
                    const bool want = wanted[result.size()];
                    result.push_back(want ? EmptyLike(ops, *input) : Tensor());
                  }
                  if (!ops.status().ok()) return result;
                  std::vector<ScanGradProblem> backward;
                  for (size_t p = 0; p < q.size(); ++p) {
                    backward.push_back({{q[p], k[p], v[p], out[p], lse[p], rows[p]},
                                        ViewOf(grads[0], p),
                                        ViewOf(grads[1], p),
                                        View{},
                                        View{},
                                        ViewOf(result[0], p),
                                        ViewOf(result[1], p),
                                        ViewOf(result[2], p)});
                  }
                  ops.Fail(ops.stream().backend().ScanGrad(
                      ops.stream(), {.params = params, .problems = backward}));
                  return result;
                });
  return {out, lse, {}, {}};
}

}  // namespace attnd
