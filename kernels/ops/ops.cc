#include "kernels/ops/ops.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

struct AttendKind {
  using Params = double;  // scale
  using Row = AttendRow;
  using Problem = AttendProblem;
  using GradProblem = AttendGradProblem;
  static constexpr absl::string_view kName = "attend";
  static absl::Status Forward(Stream& stream, double scale, std::span<const Problem> problems) {
    return stream.backend().Attend(stream, {.scale = scale, .problems = problems});
  }
  static absl::Status Backward(Stream& stream, double scale,
                               std::span<const GradProblem> problems) {
    return stream.backend().AttendGrad(stream, {.scale = scale, .problems = problems});
  }
  static bool Covers(const Row& row) {
    return row.pattern == nullptr || (row.pattern->Nq >= row.nq && row.pattern->Nk >= row.nk);
  }
};

struct ScanKind {
  using Params = ScanParams;
  using Row = ScanRow;
  using Problem = ScanProblem;
  using GradProblem = ScanGradProblem;
  static constexpr absl::string_view kName = "scan";
  static absl::Status Forward(Stream& stream, const ScanParams& params,
                              std::span<const Problem> problems) {
    return stream.backend().Scan(stream, {.params = params, .problems = problems});
  }
  static absl::Status Backward(Stream& stream, const ScanParams& params,
                               std::span<const GradProblem> problems) {
    return stream.backend().ScanGrad(stream, {.params = params, .problems = problems});
  }
  static bool Covers(const Row&) { return true; }
};

template <class Kind>
bool Fits(const View& q, const View& k, const View& v,
          const std::vector<typename Kind::Row>& rows) {
  const Shape &qs = q.shape, &ks = k.shape, &vs = v.shape;
  if (qs.rank != 4 || ks.rank != 4 || vs.rank != 4) return false;
  if (!IsFloat(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype) return false;
  const bool batch = ks[0] == qs[0] && vs[0] == qs[0];
  const bool heads = ks[1] > 0 && qs[1] % ks[1] == 0 && vs[1] == ks[1];
  const bool lengths = vs[2] == ks[2] && qs[3] == ks[3];
  if (!batch || !heads || !lengths || static_cast<int64_t>(rows.size()) != qs[0]) return false;
  return std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
    return row.nq >= 0 && row.nq <= qs[2] && row.nk >= 0 && row.nk <= ks[2] && Kind::Covers(row);
  });
}

// The contract of a primitive over q, k, v. Callers' mistakes were refused long before.
template <class Kind>
absl::Status CheckContract(const Tensor& q, const Tensor& k, const Tensor& v,
                           const std::vector<std::vector<typename Kind::Row>>& rows) {
  if (q.empty() || k.size() != q.size() || v.size() != q.size() || rows.size() != q.size()) {
    return absl::InternalError(absl::StrCat(Kind::kName, ": q, k, v and rows must be lists of one ",
                                            "length, got ", q.size(), ", ", k.size(), ", ",
                                            v.size(), ", ", rows.size()));
  }
  for (size_t p = 0; p < q.size(); ++p) {
    const bool uniform = q[p].dtype == q[0].dtype && q[p].shape[3] == q[0].shape[3] &&
                         v[p].shape[3] == v[0].shape[3];
    if (!uniform || !Fits<Kind>(q[p], k[p], v[p], rows[p])) {
      return absl::InternalError(absl::StrCat(
          Kind::kName, ": problem ", p, " breaks the contract, got q ", ToString(q[p].shape), " k ",
          ToString(k[p].shape), " v ", ToString(v[p].shape), " with ", rows[p].size(), " rows"));
    }
  }
  return absl::OkStatus();
}

std::vector<Shape> Shapes(const Tensor& tensor) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < tensor.size(); ++p) shapes.push_back(tensor[p].shape);
  return shapes;
}

std::vector<Layout> Layouts(const Tensor& tensor) {
  std::vector<Layout> layouts;
  for (size_t p = 0; p < tensor.size(); ++p) layouts.push_back(tensor[p].layout);
  return layouts;
}

Tensor EmptyLike(Ops& ops, const Tensor& tensor) {
  return ops.Empty(tensor[0].dtype, Shapes(tensor), Layouts(tensor));
}

View ViewOf(const Tensor& tensor, size_t problem) {
  return tensor.empty() ? View{} : tensor[problem];
}

}  // namespace

Ops::Ops(Stream& stream, Tape* tape, PatternCache* patterns)
    : stream_(stream), tape_(tape), patterns_(patterns) {}

void Ops::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

bool Ops::Records(std::initializer_list<const Tensor*> inputs) const {
  if (tape_ == nullptr || !recording_) return false;
  return std::any_of(inputs.begin(), inputs.end(),
                     [this](const Tensor* input) { return tape_->IsWatched(*input); });
}

Tensor Ops::Empty(DType dtype, const std::vector<Shape>& shapes,
                  const std::vector<Layout>& layouts) {
  if (!status_.ok()) return {};
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < shapes.size(); ++p) {
    const int64_t bytes = shapes[p].size() * SizeOf(dtype);
    buffers.push_back(stream_.workspace().Allocate(bytes));
    if (buffers.back() == nullptr) {
      Fail(absl::ResourceExhaustedError(absl::StrCat("no memory left for ", bytes, " bytes")));
      return {};
    }
    views.push_back(DenseView(buffers.back()->data(), dtype, shapes[p], layouts[p]));
  }
  return Tensor(std::move(views), std::move(buffers));
}

AttendRow Ops::Row(int64_t nq, int64_t nk, const PatternSource& source) {
  AttendRow row{.nq = nq,
                .nk = nk,
                .visible_pairs = source.visible_pairs,
                .visible_tiles = source.visible_tiles};
  if (source.build == nullptr || stream_.is_dry()) return row;
  row.pattern = patterns_ != nullptr ? patterns_->Get(source)
                                     : std::make_shared<const Pattern>(source.build());
  return row;
}

template <class Kind>
std::pair<Tensor, Tensor> Ops::Launch(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const typename Kind::Params& params,
                                      const std::vector<std::vector<typename Kind::Row>>& rows) {
  if (status_.ok()) Fail(CheckContract<Kind>(q, k, v, rows));
  if (!status_.ok()) return {};
  std::vector<Shape> out_shapes, lse_shapes;
  for (size_t p = 0; p < q.size(); ++p) {
    const Shape& s = q[p].shape;
    out_shapes.push_back({s[0], s[1], s[2], v[p].shape[3]});
    lse_shapes.push_back({s[0], s[1], s[2]});
  }
  const Tensor out = Empty(q[0].dtype, out_shapes, Layouts(q));
  const Tensor lse = Empty(DType::kF32, lse_shapes, std::vector<Layout>(q.size(), Layout::kBHND));
  if (!status_.ok()) return {};
  std::vector<typename Kind::Problem> problems;
  for (size_t p = 0; p < q.size(); ++p) {
    problems.push_back({q[p], k[p], v[p], out[p], lse[p], rows[p]});
  }
  Fail(Kind::Forward(stream_, params, problems));
  if (!status_.ok()) return {};
  if (!Records({&q, &k, &v})) return {out, lse};

  tape_->Record({q, k, v}, {out, lse},
                [=](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
                  std::vector<Tensor> result;
                  for (const Tensor* input : {&q, &k, &v}) {
                    const bool want = wanted[result.size()];
                    result.push_back(want ? EmptyLike(ops, *input) : Tensor());
                  }
                  if (!ops.status().ok()) return result;
                  std::vector<typename Kind::GradProblem> backward;
                  for (size_t p = 0; p < q.size(); ++p) {
                    backward.push_back({{q[p], k[p], v[p], out[p], lse[p], rows[p]},
                                        ViewOf(grads[0], p),
                                        ViewOf(grads[1], p),
                                        ViewOf(result[0], p),
                                        ViewOf(result[1], p),
                                        ViewOf(result[2], p)});
                  }
                  ops.Fail(Kind::Backward(ops.stream(), params, backward));
                  return result;
                });
  return {out, lse};
}

AttendOut Ops::Attend(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttendParams& params) {
  auto [out, lse] = Launch<AttendKind>(q, k, v, params.scale, params.rows);
  return {std::move(out), std::move(lse)};
}

ScanOut Ops::Scan(const Tensor& q, const Tensor& k, const Tensor& v, const ScanParams& params,
                  const ScanRows& rows) {
  auto [out, lse] = Launch<ScanKind>(q, k, v, params, rows);
  return {std::move(out), std::move(lse)};
}

Tensor Ops::Add(const Tensor& a, const Tensor& b) {
  if (!status_.ok()) return {};
  bool fits = !a.empty() && a.size() == b.size();
  for (size_t p = 0; fits && p < a.size(); ++p) {
    fits = IsFloat(a[p].dtype) && a[p].dtype == a[0].dtype && b[p].dtype == a[0].dtype &&
           a[p].shape == b[p].shape;
  }
  if (!fits) Fail(absl::InternalError("add: a and b must have one shape and float dtype"));
  if (!status_.ok()) return {};
  const Tensor sum = EmptyLike(*this, a);
  if (!status_.ok()) return {};
  std::vector<AddProblem> problems;
  for (size_t p = 0; p < a.size(); ++p) problems.push_back({a[p], b[p], sum[p]});
  Fail(stream_.backend().Add(stream_, problems));
  if (!status_.ok()) return {};
  if (Records({&a, &b})) {
    tape_->Record({a, b}, {sum}, [](Ops&, std::span<const Tensor> grads, const std::vector<bool>&) {
      return std::vector<Tensor>{grads[0], grads[0]};
    });
  }
  return sum;
}

}  // namespace attnd
