// Ops::Merge and its gradient rule.
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

bool FitsPart(const View& out, const View& lse, const View& lse_low, const Shape& shape) {
  if (shape.rank < 2 || !(out.shape == shape) || !IsFloat(out.dtype)) return false;
  bool fits = lse.shape.rank == shape.rank - 1 && lse.dtype == DType::kF32;
  for (int i = 0; fits && i < lse.shape.rank; ++i) fits = lse.shape[i] == shape[i];
  if (lse_low.given()) fits = fits && lse_low.shape == lse.shape && lse_low.dtype == DType::kF32;
  return fits && (shape[shape.rank - 1] <= 1 || out.stride[shape.rank - 1] == 1);
}

bool Fits(const std::vector<AttendOut>& parts) {
  if (parts.empty() || parts.size() > kMaxMergeParts || parts[0].out.empty()) return false;
  for (const AttendOut& part : parts) {
    const size_t size = parts[0].out.size();
    if (part.out.size() != size || part.lse.size() != size) return false;
    for (size_t p = 0; p < size; ++p) {
      if (!FitsPart(part.out[p], part.lse[p], ViewOf(part.lse_low, p), parts[0].out[p].shape)) {
        return false;
      }
    }
  }
  return true;
}

// [problem][part]
using Parts = std::vector<std::vector<MergePart>>;
Parts ViewsOfParts(const std::vector<AttendOut>& parts, size_t problems) {
  Parts views(problems);
  for (size_t p = 0; p < problems; ++p) {
    for (const AttendOut& part : parts) {
      views[p].push_back({ViewOf(part.out, p), ViewOf(part.lse, p), ViewOf(part.lse_low, p)});
    }
  }
  return views;
}

std::vector<Tensor> MergeBack(Ops& ops, const std::vector<AttendOut>& parts, const AttendOut& out,
                              std::span<const Tensor> grads, const std::vector<bool>& wanted) {
  std::vector<Tensor> result(wanted.size());
  std::vector<AttendOut> back(parts.size());
  const auto empty_like = [&](const Tensor& x) {
    return ops.Empty(x[0].dtype, ShapesOf(x), LayoutsOf(x));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (wanted[2 * i]) result[2 * i] = back[i].out = empty_like(parts[i].out);
    if (wanted[2 * i + 1]) result[2 * i + 1] = back[i].lse = empty_like(parts[i].lse);
  }
  if (!ops.status().ok()) return result;
  const size_t size = out.out.size();
  const Parts forward = ViewsOfParts(parts, size), dparts = ViewsOfParts(back, size);
  std::vector<MergeGradProblem> problems;
  for (size_t p = 0; p < size; ++p) {
    problems.push_back({{forward[p], out.out[p], out.lse[p], out.lse_low[p]},
                        ViewOf(grads[0], p),
                        ViewOf(grads[1], p),
                        dparts[p]});
  }
  if (!ops.TryRun(MergeGradArgs{.problems = std::move(problems)})) {
    ComposeMergeGrad(ops, parts, out, {grads[0], grads[1]}, back);
  }
  return result;
}

}  // namespace

AttendOut Ops::Merge(const std::vector<AttendOut>& parts, DType dtype) {
  if (!Require(Fits(parts) && IsFloat(dtype), "merge",
               "parts must be 1..64 pairs out [.., N, Dv], lse [.., N] of one shape")) {
    return {};
  }
  const AttendOut out{Empty(dtype, ShapesOf(parts[0].out), LayoutsOf(parts[0].out)),
                      Empty(DType::kF32, ShapesOf(parts[0].lse)),
                      Empty(DType::kF32, ShapesOf(parts[0].lse))};
  if (!status_.ok()) return {};
  const Parts views = ViewsOfParts(parts, out.out.size());
  std::vector<MergeProblem> problems;
  for (size_t p = 0; p < views.size(); ++p) {
    problems.push_back({views[p], out.out[p], out.lse[p], out.lse_low[p]});
  }
  if (!TryRun(MergeArgs{.problems = std::move(problems)})) ComposeMerge(*this, parts, out);
  if (!status_.ok()) return {};

  std::vector<Tensor> inputs;
  bool records = false;
  for (const AttendOut& part : parts) {
    records = records || Records({&part.out, &part.lse});
    inputs.push_back(part.out);
    inputs.push_back(part.lse);
  }
  if (records) {
    tape_->Record(
        std::move(inputs), {out.out, out.lse},
        [parts, out](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
          return MergeBack(ops, parts, out, grads, wanted);
        });
  }
  return out;
}

}  // namespace attnd
