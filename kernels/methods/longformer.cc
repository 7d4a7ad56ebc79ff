// Longformer (Beltagy et al. 2020, sections 3.1 and 3.2). G: positions with global_mask; p = i +
// off, w = window, d_h = dilation of head h. A local row (p not in G) sees, through k and v,
//   |p - j| <= w d_h with (p - j) mod d_h = 0, and j in G
// and a global row sees every key, through q_global, k_global, v_global; if causal, j <= p in both.
// Scores, tensors and shapes as in softmax; q_global as q, k_global as k, v_global as v.
#include <map>

#include "kernels/core/integer.h"
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/longformer.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  int64_t window = 256;
  std::vector<int64_t> dilation = {1};  // of each head, or of all
};

// Of a plan: the mask may ask for more tiles and for any order.
PatternSource Planned(PatternSource source, double more_pairs) {
  source.visible_pairs += more_pairs;
  source.visible_tiles += more_pairs / (kTile * kTile);
  source.is_counted = false;
  source.gathers = true;
  return source;
}

// Pairs that the rows of a plan may see beyond the window.
double PlannedPairs(const SeenSeq& r, bool of_global_rows) {
  const auto nq = static_cast<double>(r.lengths.nq), nk = static_cast<double>(r.lengths.nk);
  // It does not read the mask.
  const auto globals = static_cast<double>(r.tuning.device.planned_globals);
  return of_global_rows ? std::min(globals, nq) * nk : std::min(globals, nk) * nq;
}

// Local rows of every head, or (`both`) global rows with them.
HeadParts LocalRows(const SeenSeq& r, const Options& o, const HostInts& mask, bool both) {
  const std::vector<int32_t> globals = mask.Nonzero(r.p, r.b);
  std::map<int64_t, PatternSource> sources;  // of a dilation
  HeadParts heads;
  const auto listed = std::min(static_cast<int64_t>(o.dilation.size()), r.problem.H);
  // Of a plan with more heads than it describes, some.
  const int64_t step = r.is_planned ? CeilDiv(listed, r.most_sources) : 1;
  for (int64_t h = 0; h < listed; h += std::max<int64_t>(step, 1)) {
    const int64_t dilation = o.dilation[h];
    if (!sources.contains(dilation)) {
      PatternSource source =
          LongformerSource(r, {o.window, dilation}, globals, both ? Half::kBoth : Half::kLocal);
      const double more = PlannedPairs(r, false) + (both ? PlannedPairs(r, true) : 0);
      const bool is_unknown = r.is_planned && mask.is_sent();
      sources[dilation] = is_unknown ? Planned(std::move(source), more) : std::move(source);
    }
    heads.push_back({OfHeads(sources[dilation], std::max<int64_t>(step, 1))});
  }
  if (sources.size() == 1) heads.resize(1);
  for (PatternParts& head : heads) {
    if (step > 1) head[0].is_counted = false;
  }
  return heads;
}

HeadParts GlobalRows(const SeenSeq& r, const HostInts& mask) {
  PatternSource source = LongformerSource(r, {}, mask.Nonzero(r.p, r.b), Half::kGlobal);
  return AllHeads(r.is_planned ? Planned(std::move(source), PlannedPairs(r, true))
                               : std::move(source));
}

class Longformer : public PatternMethod<Options> {
 public:
  Longformer()
      : PatternMethod(
            {.id = "longformer",
             .summary = "A sliding window, dilated or not, and global tokens",
             .reference = "Beltagy et al. 2020 (arXiv 2004.05150), sections 3.1-3.2",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (2 w + 1 + g) + g n pairs; memory O(n)",
             .inputs = {{"global_mask", "[B,Nk] or [Nk]", "uint8", "1: this position is global"},
                        Differentiable("q_global", "[B,H,Nq,D]",
                                       "queries of global rows; default q"),
                        Differentiable("k_global", "[B,Hkv,Nk,D]",
                                       "keys that global rows see; default k"),
                        Differentiable("v_global", "[B,Hkv,Nk,Dv]",
                                       "values that global rows see; default v")},
             .options = {IntOption("window", &Options::window, {.min = 1},
                                   "w, keys on either side, in dilated steps"),
                         IntsOption("dilation", &Options::dilation, {.min = 1},
                                    "distance of the window's keys, of all heads or of each")}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const auto values = static_cast<int64_t>(o.dilation.size());
    CheckSources(problem, "dilation values", values, reasons);
    if (values > 1 && problem.Knows("q") && values != problem.H) {
      reasons->Invalid("dilation must have 1 or H = ", problem.H, " values, got ", values);
    }
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o) const override {
    const HostInts mask(ops, in, "global_mask", 2);
    const PatternExtras extras{.seqs_differ = mask.differs()};
    // Without a mask no row is global; tensors of global rows then have a gradient of zero.
    const bool has_global = in.tensors.contains("q_global") || in.tensors.contains("k_global") ||
                            in.tensors.contains("v_global");
    const auto local = [&](const SeenSeq& r) { return LocalRows(r, o, mask, !has_global); };
    const auto global = [&](const SeenSeq& r) { return GlobalRows(r, mask); };
    return has_global ? AttendLocalAndGlobal(ops, in, o, local, global, extras)
                      : PatternAttend(ops, in, o, local, extras);
  }
};

}  // namespace

ATTND_METHOD(longformer, Longformer)

}  // namespace attnd
