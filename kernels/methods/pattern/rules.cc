#include "kernels/methods/pattern/rules.h"

namespace attnd {
namespace {

constexpr char kCuQ[] = "cu_seqlens_q", kCuK[] = "cu_seqlens_k";
// Each is planned as a problem of its own, which takes some microseconds and kilobytes.
constexpr int64_t kMaxSequences = 8192;

// From 0 to N, non-decreasing. The checks of shape and dtype report their own reasons.
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

void CheckApart(const ProblemShape& problem, absl::string_view name, absl::string_view other,
                Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr || problem.Find(other) == nullptr) return;
  reasons->Invalid(name, " must not be sent with ", other, ", got ", ToString(view->shape));
}

bool CheckUpTo(const ProblemShape& problem, absl::string_view name, int64_t value, const UpTo& rule,
               Reasons* reasons) {
  const auto is_refused = [&](int64_t size, const std::string& where) {
    if (value <= size) return false;
    reasons->Invalid(name, " must be in ", rule.low, "..", rule.letter, " = ", rule.low, "..", size,
                     where, ", got ", value);
    return true;
  };
  if (is_refused(rule.size, "")) return false;
  const View* ends = problem.Find(rule.packed);
  if (ends == nullptr || ends->shape.rank != 1 || ends->data == nullptr) return true;
  for (int64_t s = 0; s + 1 < ends->shape[0]; ++s) {
    const int64_t n = problem.Int(rule.packed, s + 1, 0) - problem.Int(rule.packed, s, 0);
    if (n > 0 && is_refused(n, absl::StrCat(" of sequence ", s))) return false;
  }
  return true;
}

void CheckLimit(absl::string_view name, int64_t value, const Limit& limit, Reasons* reasons) {
  if (limit.size <= 0 || value <= limit.most / limit.size) return;
  reasons->Invalid(name, " must be at most ", limit.most, " / ", limit.letter, " = ",
                   limit.most / limit.size, limit.where, ", got ", value);
}

SeqsApart SeqsApartOf(const ProblemShape& problem) {
  const View* ends = problem.Find(kCuQ);
  if (ends != nullptr && ends->shape.rank == 1) return {ends->shape[0] - 1, "sequences"};
  for (const char* name : {"q_lengths", "kv_lengths", "causal_offset", "segment_ids_q"}) {
    if (problem.Find(name) != nullptr) return {problem.B, "B"};
  }
  return {};
}

void CheckSources(const ProblemShape& problem, absl::string_view name, int64_t sources,
                  Reasons* reasons) {
  // Each takes some microseconds and hundreds of bytes.
  constexpr int64_t kMostSources = int64_t{1} << 18;
  const SeqsApart seqs = SeqsApartOf(problem);
  if (seqs.count <= 1 || sources <= 1) return;
  const bool is_packed = seqs.letter != "B";
  CheckLimit(name, sources,
             {kMostSources, seqs.letter, seqs.count,
              is_packed ? " of packed sequences" : " where batch rows differ in length"},
             reasons);
}

void CheckGrid(const ProblemShape& problem, const std::vector<int64_t>& grid, Reasons* reasons) {
  if (grid.empty()) reasons->Invalid("grid is required, got none");
  if (grid.size() > kMostExtents) {
    reasons->Invalid("grid must have at most ", kMostExtents, " values, got ", grid.size());
    return;
  }
  int64_t cells = 1;
  for (const int64_t extent : grid) {
    if (extent < 1) return;  // refused by its range
    if (__builtin_mul_overflow(cells, extent, &cells)) cells = INT64_MAX;
  }
  if (grid.empty() || !problem.HasSizesOf("q") || cells == problem.Nq) return;
  reasons->Invalid("grid must multiply to N = ", problem.Nq, ", got ", ToString(OptionValue(grid)));
}

bool CheckAxis(absl::string_view name, int64_t axis, const std::vector<int64_t>& grid,
               Reasons* reasons) {
  const auto m = static_cast<int64_t>(grid.size());
  if (axis >= -m && axis < m) return true;
  reasons->Invalid(name, " must be in ", -m, "..", m - 1, ", got ", axis);
  return false;
}

void CheckListed(const ProblemShape& problem, absl::string_view name, std::optional<int64_t> value,
                 const ListRule& lists, Reasons* reasons) {
  const View* sent = problem.Find(lists.tensor);
  if (sent == nullptr || sent->shape.rank < lists.rank || !value.has_value()) return;
  const int64_t listed = sent->shape[sent->shape.rank - 1];
  if (*value == listed) return;
  reasons->Invalid(name, " must be that of ", lists.tensor, ", ", listed, ", got ", *value);
}

void CheckPatternTensors(const ProblemShape& problem, const Unsupported& unsupported,
                         Reasons* reasons) {
  const bool is_known = problem.HasSizesOf("q") && problem.HasSizesOf("k");
  if (unsupported.cross && is_known && problem.Nq != problem.Nk) {
    reasons->Invalid("Nk must be Nq = ", problem.Nq, ", got ", problem.Nk);
  }
  CheckPair(problem, "segment_ids_q", "segment_ids_kv", reasons);
  const View *q = problem.Find(kCuQ), *k = problem.Find(kCuK);
  if (unsupported.packed || (q == nullptr && k == nullptr)) return;
  CheckPair(problem, kCuQ, kCuK, reasons);
  for (const absl::string_view other :
       {"causal_offset", "q_lengths", "kv_lengths", "segment_ids_q", "segment_ids_kv"}) {
    CheckApart(problem, other, q != nullptr ? kCuQ : kCuK, reasons);
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
  if (!unsupported.cross || q->data == nullptr || k->data == nullptr) return;
  for (int64_t s = 0; s < q->shape[0]; ++s) {
    const int64_t in_q = problem.Int(kCuQ, s, 0), in_k = problem.Int(kCuK, s, 0);
    if (in_q == in_k) continue;
    reasons->Invalid(kCuK, "[", s, "] must be ", kCuQ, "[", s, "] = ", in_q, ", got ", in_k);
    return;
  }
}

}  // namespace attnd
