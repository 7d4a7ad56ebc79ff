// Longformer (Beltagy et al. 2020, sections 3.1 and 3.2). G: positions with global_mask; p = i +
// off, w = window, d_h = dilation of head h. A local row (p not in G) sees, through k and v,
//   |p - j| <= w d_h with (p - j) mod d_h = 0, and j in G
// and a global row sees every key, through q_global, k_global, v_global; if causal, j <= p in both.
// Scores, tensors and shapes as in softmax; q_global as q, k_global as k, v_global as v.
#include <algorithm>
#include <map>

#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/shapes/longformer.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  int64_t window = 256;
  std::vector<int64_t> dilation = {1};  // of each head, or of all
};

// For a plan: the mask may ask for more tiles and for any order.
PatternSource WithAnyMask(const SeenSeq& seq, PatternSource source, double more_pairs,
                          int64_t dilation) {
  const auto nq = static_cast<double>(seq.lengths.nq), nk = static_cast<double>(seq.lengths.nk);
  source.visible_pairs = std::min(source.visible_pairs + more_pairs, nq * nk);
  source.visible_tiles += more_pairs / (kTile * kTile);
  // In the order of residues global rows see each tile in part.
  if (dilation > 1) {
    source.most_tiles =
        static_cast<double>(Tiles(source.Nq)) * static_cast<double>(Tiles(source.Nk));
  }
  source.is_counted = source.knows_pairs = false;
  source.gathers = true;
  return source;
}

// Pairs that a plan, which does not read the mask, adds to those of the window.
double PlannedPairs(const SeenSeq& seq, bool of_global_rows) {
  const auto nq = static_cast<double>(seq.lengths.nq), nk = static_cast<double>(seq.lengths.nk);
  const auto globals = static_cast<double>(seq.tuning.device.planned_globals);
  return of_global_rows ? std::min(globals, nq) * nk : std::min(globals, nk) * nq;
}

// What local rows see, or (`both`) local and global ones.
HeadParts LocalRows(const SeenSeq& seq, const Options& o, const HostInts& mask, bool both) {
  const std::vector<int32_t> globals = mask.Nonzero(seq.p, seq.b);
  const double more = PlannedPairs(seq, false) + (both ? PlannedPairs(seq, true) : 0);
  std::map<int64_t, PatternSource> sources;  // of a dilation
  const auto source_of = [&](int64_t dilation) {
    PatternSource source =
        LongformerSource(seq, {o.window, dilation}, globals, both ? Half::kBoth : Half::kLocal);
    return mask.is_unknown() ? WithAnyMask(seq, std::move(source), more, dilation) : source;
  };
  const auto last = o.dilation.begin() + std::min<int64_t>(o.dilation.size(), seq.problem.H);
  const bool is_alike =
      std::count(o.dilation.begin(), last, o.dilation[0]) == last - o.dilation.begin();
  return EachHead(seq, {.count = is_alike ? 1 : last - o.dilation.begin()}, [&](int64_t head) {
    const int64_t dilation = o.dilation[head];
    if (!sources.contains(dilation)) sources[dilation] = source_of(dilation);
    return PatternParts{sources[dilation]};
  });
}

HeadParts GlobalRows(const SeenSeq& seq, const HostInts& mask) {
  PatternSource source = LongformerSource(seq, {}, mask.Nonzero(seq.p, seq.b), Half::kGlobal);
  return AllHeads(mask.is_unknown()
                      ? WithAnyMask(seq, std::move(source), PlannedPairs(seq, true), 1)
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
             .has_windows = [](const Options&) { return true; },
             .inputs = {{"global_mask", "[B,Nk] or [Nk]", "uint8", "1: this position is global"},
                        Differentiable("q_global", "[B,H,Nq,D]",
                                       "queries of global rows; default q"),
                        Differentiable("k_global", "[B,Hkv,Nk,D]",
                                       "keys that global rows see; default k"),
                        Differentiable("v_global", "[B,Hkv,Nk,Dv]",
                                       "values that global rows see; default v")},
             .options = {IntOption("window", &Options::window, {.min = 1},
                                   absl::StrCat("w, keys on either side of p, in dilated steps; ",
                                                kPositionHelp)),
                         IntsOption("dilation", &Options::dilation, {.min = 1},
                                    "distance of the window's keys, of all heads or of each")}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const auto values = static_cast<int64_t>(o.dilation.size());
    CheckSources(problem, "dilation values", values, reasons);
    if (values > 1 && problem.HasSizesOf("q") && values != problem.H) {
      reasons->Invalid("dilation must have 1 or H = ", problem.H, " values, got ", values);
    }
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    return LocalRows(seq, o, ints["global_mask"], /*both=*/true);
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o, const Integers& ints,
                 const PatternExtras& extras) const override {
    // Without a mask no row is global; tensors of global rows then have a gradient of zero.
    const bool has_own = in.tensors.contains("q_global") || in.tensors.contains("k_global") ||
                         in.tensors.contains("v_global");
    if (!has_own) return PatternMethod::Attend(ops, in, o, ints, extras);
    const HostInts& mask = ints["global_mask"];
    const auto local = [&](const SeenSeq& seq) { return LocalRows(seq, o, mask, /*both=*/false); };
    const auto global = [&](const SeenSeq& seq) { return GlobalRows(seq, mask); };
    return AttendLocalAndGlobal(ops, in, o, local, global, extras);
  }
};

}  // namespace

ATTND_METHOD(longformer, Longformer)

}  // namespace attnd
