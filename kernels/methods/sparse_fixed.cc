// Fixed factorised attention (Child et al. 2019, sections 4.2-4.3). With s = stride, c = summary,
// p = i + off and v_h = h mod num_verts, key j is a summary of head h if
//   s - (v_h + 1) c <= j mod s < s - v_h c
// and visible if floor(p/s) = floor(j/s) or it is a summary (horizontal: or p is one); if causal
// and j <= p. Scores, tensors and shapes as in softmax.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/strided.h"

namespace attnd {
namespace {

enum class Part : uint8_t { kUnion, kSegment, kSummary, kAlternate };

struct Options : PatternOptions {
  int64_t stride = 128, summary = 32, num_verts = 1;
  Part part = Part::kUnion;
  bool horizontal = false, tail_summary = false;
};

Half HalfOf(Part part, int64_t h) {
  if (part == Part::kUnion) return Half::kBoth;
  if (part == Part::kAlternate) return h % 2 == 0 ? Half::kLocal : Half::kGlobal;
  return part == Part::kSegment ? Half::kLocal : Half::kGlobal;
}

// For a plan of more heads than it describes: about their mean.
PatternSource MeanOfHeads(const SeenSeq& r, const Options& o) {
  const FixedSegments all{.stride = o.stride,
                          .summary = o.summary * o.num_verts,
                          .horizontal = o.horizontal,
                          .tail_summary = o.tail_summary};
  const PatternSource near = FixedSource(r, all, Half::kLocal);
  PatternSource source = FixedSource(r, all, o.part == Part::kUnion ? Half::kBoth : Half::kGlobal);
  const auto mean = [&](double of_near, double of_all) {
    const auto places = static_cast<double>(o.num_verts);
    if (o.part == Part::kUnion) return of_near + (of_all - of_near) / places;
    return o.part == Part::kAlternate ? (of_near + of_all / places) / 2 : of_all / places;
  };
  source.visible_pairs = mean(near.visible_pairs, source.visible_pairs);
  source.visible_tiles = mean(near.visible_tiles, source.visible_tiles);
  source.is_counted = source.knows_pairs = false;
  return source;
}

class SparseFixed : public PatternMethod<Options> {
 public:
  SparseFixed()
      : PatternMethod(
            {.id = "sparse_fixed",
             .summary = "The own segment, and summary columns of every segment",
             .reference = "Child et al. 2019 (arXiv 1904.10509), sections 4.2-4.3",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (s + c n/s) pairs; memory O(n)",
             .has_windows = [](const Options&) { return true; },
             .options = {
                 IntOption("stride", &Options::stride, {.min = 1},
                           absl::StrCat("s, keys of a segment; ", kPositionHelp)),
                 ReadIf(
                     "part is union, summary or alternate",
                     [](const Options& o) { return o.part != Part::kSegment; },
                     IntOption("summary", &Options::summary, {.min = 1},
                               "c, summary columns of a segment; at most stride")),
                 ReadIf(
                     "part is union, summary or alternate",
                     [](const Options& o) { return o.part != Part::kSegment; },
                     IntOption("num_verts", &Options::num_verts, {.min = 1},
                               "places of the columns that heads take in turn; at most "
                               "stride / summary")),
                 EnumOption("part", &Options::part, {"union", "segment", "summary", "alternate"},
                            "one softmax over both, one of them, or heads in turn"),
                 BoolOption("horizontal", &Options::horizontal,
                            "summary rows see everything; not with causal, part union only"),
                 ReadIf(
                     "part is union, summary or alternate",
                     [](const Options& o) { return o.part != Part::kSegment; },
                     BoolOption(
                         "tail_summary", &Options::tail_summary,
                         "a short last segment of the padded keys has summary columns, too"))}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const int64_t s = o.stride, c = o.summary;
    if (s > 0 && c > 0 && CheckUpTo(problem, "summary", c, {1, "stride", s}, reasons)) {
      CheckUpTo(problem, "num_verts", o.num_verts, {1, "stride/summary", s / c}, reasons);
    }
    CheckSources(problem, "num_verts", std::min(o.num_verts, problem.H), reasons);
    if (o.horizontal && o.causal) {
      reasons->Invalid("horizontal must be false when causal, got true");
    }
    if (o.horizontal && o.part != Part::kUnion) {
      reasons->Invalid("horizontal must be false unless part is union, got true");
    }
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    // All heads see their segment.
    if (o.part == Part::kSegment) {
      return AllHeads(FixedSource(seq, {.stride = o.stride}, Half::kLocal));
    }
    const int64_t H = seq.problem.H, places = std::min(o.num_verts, H);
    const int64_t period = std::min(places * (o.part == Part::kAlternate ? 2 : 1), H);
    const HeadRule rule{.count = period == 1 ? 1 : H, .period = period, .bound = [&] {
                          return OfHeads(MeanOfHeads(seq, o), period);
                        }};
    return EachHead(seq, rule, [&](int64_t head) {
      const FixedSegments segments{.stride = o.stride,
                                   .summary = o.summary,
                                   .vertical = head % o.num_verts,
                                   .horizontal = o.horizontal,
                                   .tail_summary = o.tail_summary};
      return PatternParts{FixedSource(seq, segments, HalfOf(o.part, head))};
    });
  }
};

}  // namespace

ATTND_METHOD(sparse_fixed, SparseFixed)

}  // namespace attnd
