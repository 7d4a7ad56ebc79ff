#include "kernels/engine/notes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

bool Takes(const MethodInfo& info, absl::string_view tensor) {
  return std::any_of(info.inputs.begin(), info.inputs.end(),
                     [&](const TensorInfo& input) { return input.name == tensor; });
}

// A cache of keys that is padded behind them: positions count from its end, not from the last key.
bool HasPaddedCache(const ProblemShape& problem) {
  if (problem.Nq == problem.Nk) return false;
  if (problem.Find("causal_offset") != nullptr || problem.Find("q_lengths") != nullptr) {
    return false;
  }
  const View* lengths = problem.Find("kv_lengths");
  if (lengths == nullptr || lengths->data == nullptr) return false;
  for (int64_t b = 0; b < problem.B; ++b) {
    if (IntAt(*lengths, b) < problem.Nk) return true;
  }
  return false;
}

std::string PaddedCacheNote(const MethodInfo& info) {
  const std::string rule =
      "kv_lengths end before Nk, and query i still stands at key i + Nk - Nq; where the last "
      "query belongs to the last valid key, ";
  if (Takes(info, "causal_offset")) return rule + "send causal_offset = kv_lengths - Nq";
  return rule + "send k and v without padding, sequences of other lengths in other requests";
}

}  // namespace

std::vector<std::string> NotesOf(const Method& method, const ProblemShape& problem,
                                 const void* options) {
  std::vector<std::string> notes = method.Notes(problem, options);
  if (method.SeesByPosition(problem, options) && HasPaddedCache(problem)) {
    notes.push_back(PaddedCacheNote(method.info()));
  }
  for (std::string& note : notes) note = absl::StrCat(method.info().id, ": ", note);
  return notes;
}

}  // namespace attnd
