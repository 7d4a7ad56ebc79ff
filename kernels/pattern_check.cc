// What must hold between the common tensors of the pattern family.
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

constexpr char kCuQ[] = "cu_seqlens_q", kCuK[] = "cu_seqlens_k";
// Each is planned as a problem of its own, some microseconds and kilobytes.
constexpr int64_t kMaxSequences = 8192;

void CheckPair(const ProblemShape& problem, absl::string_view a, absl::string_view b,
               Reasons* reasons) {
  if ((problem.Find(a) == nullptr) == (problem.Find(b) == nullptr)) return;
  const absl::string_view sent = problem.Find(a) != nullptr ? a : b;
  reasons->Invalid(a, " and ", b, " must be sent together, got ", sent, " alone");
}

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

void CheckPatternTensors(const ProblemShape& problem, Reasons* reasons) {
  CheckPair(problem, "segment_ids_q", "segment_ids_kv", reasons);
  CheckPair(problem, kCuQ, kCuK, reasons);
  const View *q = problem.Find(kCuQ), *k = problem.Find(kCuK);
  if (q == nullptr && k == nullptr) return;
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
  }
}

}  // namespace attnd
