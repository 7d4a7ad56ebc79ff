// What must hold between the common tensors of the pattern family.
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

constexpr char kCuQ[] = "cu_seqlens_q", kCuK[] = "cu_seqlens_k";
// Each is planned as a problem of its own, some microseconds and kilobytes.
constexpr int64_t kMaxSequences = 8192;

// From 0 to N, non-decreasing. What shape and dtype already tell is not told again.
void CheckSequences(const ProblemShape& problem, absl::string_view name, absl::string_view letters,
                    int64_t N, Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr || view->dtype != DType::kI32 || view->shape.rank != 1) return;
  const int64_t n = view->shape[0];
  if (n < 2) {
    reasons->Invalid(name, " must tell of 1 sequence or more, got ", ToString(view->shape));
    return;
  }
  if (n - 1 > kMaxSequences) {
    reasons->Invalid(name, " must tell of at most ", kMaxSequences, " sequences, got ", n - 1);
    return;
  }
  if (view->data == nullptr) return;
  if (const int64_t first = problem.Int(name, 0, 0); first != 0) {
    reasons->Invalid(name, "[0] must be 0, got ", first);
  }
  for (int64_t s = 1; s < n; ++s) {
    const int64_t before = problem.Int(name, s - 1, 0), value = problem.Int(name, s, 0);
    if (value >= before) continue;
    reasons->Invalid(name, "[", s, "] must be >= ", name, "[", s - 1, "] = ", before, ", got ",
                     value);
    return;
  }
  if (const int64_t last = problem.Int(name, n - 1, 0); last != N) {
    reasons->Invalid(name, "[", n - 1, "] must be ", letters, " = ", N, ", got ", last);
  }
}

}  // namespace

void CheckPair(const ProblemShape& problem, absl::string_view a, absl::string_view b,
               Reasons* reasons) {
  if ((problem.Find(a) == nullptr) == (problem.Find(b) == nullptr)) return;
  const absl::string_view sent = problem.Find(a) != nullptr ? a : b;
  reasons->Invalid(a, " and ", b, " must be sent together, got ", sent, " alone");
}

bool CheckSize(const ProblemShape& problem, absl::string_view name, const SizeRule& rule,
               Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr) return true;
  const int axis = AxisOf(rule.axis, view->shape.rank);
  if (axis < 0 || axis >= view->shape.rank || view->shape[axis] == rule.size) return true;
  reasons->Invalid(name, " shape must be ", rule.shape, " with ", rule.letter, " = ", rule.size,
                   ", got ", ToString(view->shape));
  return false;
}

void CheckGrid(const ProblemShape& problem, const std::vector<int64_t>& grid, Reasons* reasons) {
  if (grid.empty()) reasons->Invalid("grid is required, got none");
  if (grid.size() > kMostExtents) {
    reasons->Invalid("grid must have at most ", kMostExtents, " values, got ", grid.size());
    return;
  }
  int64_t cells = 1;
  for (const int64_t extent : grid) {
    if (extent < 1) return;  // told by its range
    if (__builtin_mul_overflow(cells, extent, &cells)) cells = INT64_MAX;
  }
  if (grid.empty() || !problem.Knows("q") || cells == problem.Nq) return;
  reasons->Invalid("grid must multiply to N = ", problem.Nq, ", got ", ToString(OptionValue(grid)));
}

void CheckPatternTensors(const ProblemShape& problem, Lacks lacks, Reasons* reasons) {
  const bool is_known = problem.Knows("q") && problem.Knows("k");
  if (lacks.cross && is_known && problem.Nq != problem.Nk) {
    reasons->Invalid("Nk must be Nq = ", problem.Nq, ", got ", problem.Nk);
  }
  CheckPair(problem, "segment_ids_q", "segment_ids_kv", reasons);
  const View *q = problem.Find(kCuQ), *k = problem.Find(kCuK);
  if (lacks.packed || (q == nullptr && k == nullptr)) return;
  CheckPair(problem, kCuQ, kCuK, reasons);
  for (const absl::string_view other :
       {"causal_offset", "q_lengths", "kv_lengths", "segment_ids_q", "segment_ids_kv"}) {
    const View* view = problem.Find(other);
    if (view == nullptr) continue;
    reasons->Invalid(other, " must not be sent with ", q != nullptr ? kCuQ : kCuK, ", got ",
                     ToString(view->shape));
  }
  if (problem.B > 1) reasons->Invalid("B must be 1 with packed sequences, got ", problem.B);
  CheckSequences(problem, kCuQ, "Nq", problem.Nq, reasons);
  CheckSequences(problem, kCuK, "Nk", problem.Nk, reasons);
  if (q == nullptr || k == nullptr || q->shape.rank != 1 || k->shape.rank != 1) return;
  if (q->shape[0] != k->shape[0]) {
    reasons->Invalid("cu_seqlens_k must tell of as many sequences as cu_seqlens_q, ",
                     q->shape[0] - 1, ", got ", k->shape[0] - 1);
    return;
  }
  if (!lacks.cross) return;
  for (int64_t s = 0; s < q->shape[0]; ++s) {
    const int64_t in_q = problem.Int(kCuQ, s, 0), in_k = problem.Int(kCuK, s, 0);
    if (in_q == in_k) continue;
    reasons->Invalid(kCuK, "[", s, "] must be ", kCuQ, "[", s, "] = ", in_q, ", got ", in_k);
    return;
  }
}

}  // namespace attnd
