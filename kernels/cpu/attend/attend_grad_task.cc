#include "kernels/cpu/attend/attend_grad_tile.h"

namespace attnd {
namespace {

bool Gathers(const AttendProblem& p) {
  return p.terms.k2.given() || std::any_of(p.seqs.begin(), p.seqs.end(),
                                           [](const AttendSeq& seq) { return seq.gathers; });
}

// Whether the sequence's key slots hold each row at most once, the same for all heads.
bool HasEachKeyOnce(const GradTask& task, const AttendSeq& seq) {
  if (!task.gathers) return true;
  if (!seq.head_patterns.empty() && task.group > 1) return false;
  const int64_t different = seq.head_patterns.empty() ? 1 : task.H;
  for (int64_t h = 0; h < different; ++h) {
    const Pattern* pattern = seq.Of(h);
    if (pattern == nullptr) continue;
    std::vector<bool> stands(static_cast<size_t>(task.Nk + task.Nk2), false);
    for (int32_t row : pattern->key_rows) {
      if (row < 0) continue;
      if (stands[row]) return false;
      stands[row] = true;
    }
  }
  return true;
}

}  // namespace

void FindStoredKeys(GradTask* task) {
  for (const AttendSeq& seq : task->problem->forward.seqs) {
    task->stores_keys.push_back(HasEachKeyOnce(*task, seq));
  }
}

GradTask TaskOf(const AttendGradProblem& problem, const AttendParams& params, bool dry) {
  const AttendProblem& f = problem.forward;
  const AttendTermGrads& d = problem.dterms;
  GradTask task = {.problem = &problem,
                   .params = params,
                   .B = f.q.shape[0],
                   .H = f.q.shape[1],
                   .Hkv = f.k.shape[1],
                   .group = f.q.shape[1] / f.k.shape[1],
                   .Nq = f.q.shape[2],
                   .Nk = f.k.shape[2],
                   .Nk2 = f.terms.k2.given() ? f.terms.k2.shape[2] : 0,
                   .D = f.q.shape[3],
                   .Dv = f.v.shape[3]};
  task.gathers = Gathers(f);
  task.key_block = KeyBlock(task.D, task.Dv, f.terms.r.given());
  task.shares = KeyShares::Count(task.Nk + task.Nk2);
  // Neighbouring tiles share diagonals. Shares that differ in work are no loss where there are
  // many.
  task.shares_in_order = f.terms.r.given() && task.Hkv >= 4;
  task.wants_dk = Wants(problem.dk, dry) || Wants(d.k2, dry);
  task.wants_dv = Wants(problem.dv, dry) || Wants(d.v2, dry);
  task.wants_bias = Wants(d.bias, dry);
  task.stores_bias = task.wants_bias && !task.gathers && params.softcap == 0 &&
                     d.bias.shape == Shape{task.B, task.H, task.Nq, task.Nk};
  const auto sum = [&](GradSum::Kind kind, const View& out, const View& tail, int64_t heads,
                       int64_t rows, int64_t width, double factor) {
    GradSum& s = task.sums[kind];
    if (!Wants(out, dry) && !Wants(tail, dry)) return;
    s.out = Wants(out, dry) ? out : View();
    s.tail = Wants(tail, dry) ? tail : View();
    s.tail_rows = kind == GradSum::kDk || kind == GradSum::kDv ? task.Nk2 : 0;
    s.heads = heads;
    s.rows = rows;
    s.width = width;
    s.factor = factor;
  };
  const int64_t H = task.H, Hkv = task.Hkv, Nq = task.Nq, D = task.D, keys = task.Nk + task.Nk2;
  const double scale = params.scale;
  sum(GradSum::kDq, problem.dq, {}, H, Nq, D, scale);
  if (task.gathers) {
    sum(GradSum::kDk, problem.dk, d.k2, Hkv, keys, D, 1);
    sum(GradSum::kDv, problem.dv, d.v2, Hkv, keys, task.Dv, 1);
  }
  if (f.terms.alibi_slopes.given()) sum(GradSum::kSlopes, d.alibi_slopes, {}, H, 1, 1, 1);
  if (f.terms.sinks.given()) sum(GradSum::kSinks, d.sinks, {}, H, 1, 1, 1);
  if (f.terms.table.given()) {
    sum(GradSum::kTable, d.table, {}, H, Nq, f.terms.table.shape[3], params.cap_table ? scale : 1);
  }
  if (f.terms.r.given()) {
    sum(GradSum::kQRel, d.q_rel, {}, H, Nq, D, scale);
    sum(GradSum::kR, d.r, {}, H, f.terms.r.shape[2], D, 1);
  }
  task.needs_scores = task.wants_dk || task.wants_bias;
  for (int kind = 0; kind < GradSum::kKinds; ++kind) {
    if (kind != GradSum::kDv) task.needs_scores = task.needs_scores || task.sums[kind].rows > 0;
  }
  return task;
}

}  // namespace attnd
