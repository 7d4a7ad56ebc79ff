#include "kernels/methods/long_short/options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/methods/pattern/rules.h"

namespace attnd {
namespace {

constexpr const char* kRanked[] = {"dyn_weight", "dyn_bias", "dyn_logits"};
constexpr int64_t kMostRank = 1024;
// Compressed keys are rows of a pattern's order, which are int32.
constexpr int64_t kMostCompressed = int64_t{1} << 28;

// The last dimension of the first tensor that has r; 0: none was sent.
int64_t SentRank(const ProblemShape& problem, absl::string_view* name) {
  for (const char* ranked : kRanked) {
    const View* view = problem.Find(ranked);
    if (view == nullptr || view->shape.rank == 0) continue;
    *name = ranked;
    return view->shape[view->shape.rank - 1];
  }
  return 0;
}

// Why a tensor has no effect under the options; empty: it has one.
std::string UnusedBecause(absl::string_view name, const LongShortOptions& o, int64_t rank) {
  const bool is_norm = absl::StartsWith(name, "ln_");
  const bool is_local_norm = absl::StartsWith(name, "ln_local_");
  const bool is_long = absl::StartsWith(name, "dyn_") || absl::StartsWith(name, "ln_global_") ||
                       name == "bias_global";
  if (is_norm && !o.dual_ln) return "dual_ln, got dual_ln = false";
  if (is_long && rank == 0) return "rank >= 1, got rank = 0";
  if (o.Width() != -1) return "";
  if (name == "bias_local") return "window >= 0, got window = -1";
  if (is_local_norm && o.ln_order == LnOrder::kPaper) {
    return "window >= 0 or ln_order nested, got window = -1 and ln_order = paper";
  }
  return "";
}

void CheckWindow(const ProblemShape& problem, const LongShortOptions& o, Reasons* reasons) {
  const bool is_blocks = o.Mode() == WindowMode::kBlocks;
  const bool is_causal_sliding = o.causal && o.Mode() == WindowMode::kSliding;
  if (o.Width() == 0 && (is_blocks || is_causal_sliding)) {
    reasons->Invalid("window must be -1 or >= 1 with window_mode ",
                     is_blocks ? "blocks" : "sliding and causal", ", got 0");
  }
  const bool is_known = problem.HasSizesOf("q") && problem.HasSizesOf("k");
  if (is_known && problem.Nq != problem.Nk && !o.causal && o.Width() != -1) {
    reasons->Invalid("Nk must be Nq = ", problem.Nq, " unless causal or window = -1, got ",
                     problem.Nk);
  }
}

}  // namespace

int64_t RankOf(const ProblemShape& problem, const LongShortOptions& o) {
  absl::string_view name;
  if (o.rank.has_value()) return *o.rank;
  const int64_t sent = SentRank(problem, &name);
  return name.empty() ? o.UsualRank() : sent;
}

Window WindowOf(const LongShortOptions& o, int64_t offset) {
  const int64_t w = o.Width();
  switch (o.Mode()) {
    case WindowMode::kSliding:
      if (o.causal) return BandWindow(offset - w + 1, offset);
      return BandWindow(offset - w / 2, offset + w / 2);
    case WindowMode::kBlocks:
      return WindowOf(BlockBand{
          .block = w, .look_backward = 1, .look_forward = 1, .offset = offset, .causal = o.causal});
    case WindowMode::kSegment:
      break;
  }
  if (w == 0) return BandWindow(offset, offset);
  const int64_t extent = std::max<int64_t>(w / 2, 1);
  return {.block = w, .before = extent, .after = extent, .offset = offset, .causal = o.causal};
}

CompressedSegments SegmentsOf(const LongShortOptions& o, int64_t Nk, int64_t rank) {
  return {.length = o.SegmentLength(Nk),
          .rank = rank,
          .completed = o.segment_visibility == SegmentVisibility::kCompleted};
}

DrawParams DrawOfWeight(int64_t D, uint64_t seed) {
  const double bound = 1 / std::sqrt(static_cast<double>(D));
  return UniformDraw(seed, "dyn_weight", bound);
}

void CheckLongShort(const ProblemShape& problem, const LongShortOptions& o,
                    const std::vector<TensorInfo>& inputs, Reasons* reasons) {
  const int64_t rank = RankOf(problem, o);
  CheckWindow(problem, o, reasons);
  if (rank == 0 && o.rank.has_value() && o.Width() == -1) {
    reasons->Invalid("rank must be >= 1 with window = -1, got 0");
  }
  absl::string_view ranked;
  const int64_t sent = SentRank(problem, &ranked);
  if (!ranked.empty() && !o.rank.has_value() && (sent < 1 || sent > kMostRank)) {
    reasons->Invalid(ranked, " shape must have r in 1..", kMostRank, ", got ",
                     ToString(problem.Find(ranked)->shape));
    return;
  }
  for (const TensorInfo& input : inputs) {
    const View* view = problem.Find(input.name);
    const std::string needed = view == nullptr ? "" : UnusedBecause(input.name, o, rank);
    if (!needed.empty()) reasons->Invalid(input.name, " needs ", needed);
  }
  CheckApart(problem, "dyn_weight", "dyn_logits", reasons);
  CheckApart(problem, "dyn_bias", "dyn_logits", reasons);
  if (rank < 1 || rank > kMostRank || o.segment_len < 1) return;
  if (problem.Find("dyn_logits") == nullptr && problem.D > 0) {
    CheckDrawn(problem, "dyn_weight", DrawOfWeight(problem.D, o.seed),
               {problem.Hkv, problem.D, rank}, reasons);
  }
  const int64_t segments = o.Segments(problem.Nk);
  const char* meaning = o.causal ? "ceil(Nk / segment_len) r" : "r";
  CheckShapes(problem, inputs,
              {{"r", rank, o.rank.has_value() ? "rank" : ""}, {"R", segments * rank, meaning}},
              reasons);
  if (o.causal) {
    CheckLimit("rank", rank, {kMostCompressed, "ceil(Nk / segment_len)", segments}, reasons);
  }
}

}  // namespace attnd
