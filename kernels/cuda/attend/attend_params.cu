#include "kernels/cuda/attend/attend_params.h"

#include <algorithm>

namespace attnd::cuda {

AttendData NewAttendData(const AttendParams& params, const AttendProblem& problem) {
  const AttendTerms& t = problem.terms;
  AttendData p = {};
  p.q = Plane::Of(problem.q);
  p.k = Plane::Of(problem.k);
  p.v = Plane::Of(problem.v);
  p.out = Plane::Of(problem.out);
  p.lse = Plane::Of(problem.lse);
  p.lse_low = Plane::Of(problem.lse_low);
  p.k2 = Plane::Of(t.k2);
  p.v2 = Plane::Of(t.v2);
  p.bias = Plane::Of(t.bias);
  p.table = Plane::Of(t.table);
  p.q_rel = Plane::Of(t.q_rel);
  p.r = Plane::Of(t.r);
  p.row_weight = Plane::Of(t.row_weight);
  p.alibi_slopes = Plane::Of(t.alibi_slopes);
  p.sinks = Plane::Of(t.sinks);
  p.B = problem.q.shape[0];
  p.H = problem.q.shape[1];
  p.group = p.H / problem.k.shape[1];
  p.Nq = problem.q.shape[2];
  p.Nk = problem.k.shape[2];
  p.Nk2 = t.k2.given() ? t.k2.shape[2] : 0;
  p.L = t.r.given() ? t.r.shape[2] : 0;
  p.D = static_cast<int>(problem.q.shape[3]);
  p.Dv = static_cast<int>(problem.v.shape[3]);
  p.weighting = params.weighting;
  p.cap_table = params.cap_table;
  const bool is_one =
      problem.k.dtype == problem.q.dtype && (!t.k2.given() || t.k2.dtype == problem.q.dtype);
  p.product_type = is_one ? problem.q.dtype : DType::kF32;
  p.scale = static_cast<float>(params.scale);
  if (params.softcap > 0) {
    p.cap = static_cast<float>(params.softcap);
    p.inverse_cap = static_cast<float>(1 / params.softcap);
  }
  p.has_terms = t.bias.given() || t.table.given() || t.r.given() || t.alibi_slopes.given() ||
                params.softcap > 0 || params.weighting != Weighting::kSoftmax;
  return p;
}

bool KeepsWeights(const AttendData& p, int64_t columns) {
  constexpr int64_t kFewRows = 256, kFewColumns = 32;
  return std::min(p.Nq, p.Nk + p.Nk2) <= kFewRows || columns <= kFewColumns;
}

}  // namespace attnd::cuda
