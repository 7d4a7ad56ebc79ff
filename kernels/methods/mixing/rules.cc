#include "kernels/methods/mixing/rules.h"

#include <algorithm>

#include "kernels/method/declared_shape.h"

namespace attnd {
namespace {

void CheckHeads(const ProblemShape& p, Reasons* reasons) {
  if (!p.HasSizesOf("q") || !(p.HasSizesOf("k") || p.HasSizesOf("v"))) return;
  // The shared checks know Hkv by k alone, and refuse what does not divide H.
  const bool is_refused = p.HasSizesOf("k") && (p.Hkv < 1 || p.H % p.Hkv != 0);
  if (p.H >= 1 && p.H != p.Hkv && !is_refused) {
    reasons->Invalid("Hkv must be H = ", p.H, ", got ", p.Hkv);
  }
  if (p.Nq != p.Nk) reasons->Invalid("Nk must be Nq = ", p.Nq, ", got ", p.Nk);
}

// Whether `lengths` was sent as the shared checks want it, with values in 0..most.
bool AreLengths(const ProblemShape& p, const View* lengths, int64_t most) {
  if (lengths == nullptr || lengths->dtype != DType::kI32 || lengths->shape.rank != 1 ||
      lengths->shape[0] != p.B || lengths->data == nullptr) {
    return false;
  }
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t n = IntAt(*lengths, b);
    if (n < 0 || n > most) return false;
  }
  return true;
}

void CheckLengths(const ProblemShape& p, Reasons* reasons) {
  const View *q = p.Find("q_lengths"), *k = p.Find("kv_lengths");
  if (p.Nq != p.Nk || !AreLengths(p, q, p.Nq)) return;
  if (k != nullptr && !AreLengths(p, k, p.Nk)) return;
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t want = k == nullptr ? p.Nk : IntAt(*k, b), got = IntAt(*q, b);
    if (got == want) continue;
    if (k == nullptr) {
      reasons->Invalid("q_lengths[", b, "] must be Nk = ", want, " without kv_lengths, got ", got);
    } else {
      reasons->Invalid("q_lengths[", b, "] must be kv_lengths[", b, "] = ", want, ", got ", got);
    }
    return;
  }
}

}  // namespace

void CheckMixing(const ProblemShape& problem, Reasons* reasons) {
  CheckHeads(problem, reasons);
  CheckLengths(problem, reasons);
}

void CheckRows(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
               Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr || !problem.HasSizesOf("v")) return;
  const DeclaredShape declared = ParseShape(shape);
  for (const DeclaredShape::Letters& list : declared.lists) {
    if (!declared.FitsRank(list, view->shape.rank)) continue;
    int64_t least = INT64_MAX, most = 0;
    ForEachLetter(list, view->shape, [&](absl::string_view letter, int64_t size) {
      if (letter != "L") return;
      least = std::min(least, size);
      most = std::max(most, size);
    });
    if (least < problem.Nk) {
      reasons->Invalid(name, " shape must have L >= Nk = ", problem.Nk, ", got ",
                       ToString(view->shape));
    } else if (least < most) {
      reasons->Invalid(name, " shape must be ", shape, ", got ", ToString(view->shape));
    }
    return;
  }
}

void CheckUnread(const ProblemShape& problem, absl::string_view name, absl::string_view option,
                 absl::string_view value, Reasons* reasons) {
  const View* view = problem.Find(name);
  if (view == nullptr) return;
  reasons->Invalid(name, " must be absent with ", option, " = ", value, ", got ",
                   ToString(view->shape));
}

int64_t ChannelsOf(const ProblemShape& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto fits = [](int64_t n) { return n >= 1 && n <= kMost; };
  return fits(problem.Hkv) && fits(problem.Dv) ? problem.Hkv * problem.Dv : 0;
}

}  // namespace attnd
