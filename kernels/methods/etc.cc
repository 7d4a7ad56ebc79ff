// ETC (Ainslie et al. 2020, section 3). Positions [0, ng) are global, the others long; a, c are
// places in a half. Long rows see |a - c| <= local_radius of the long half and the globals
// (hard_l2g: that of their sentence); global rows see the globals and the long half (hard_g2l:
// their sentence).
//   t_ij = scale (q_i . k_j + q_i . E[id_ij, h] + beta[id_ij, h])      (Shaw et al. 2018, eq. 3)
// E, beta: rel_emb_long [V,H,D] and rel_bias_long [V,H] of long rows, ..._global of global rows;
// id_ij: computed as in kernels/pattern/shapes/etc.h, or sent. Global rows read k_global and
// v_global. Scores, tensors and shapes otherwise as in softmax; Nq = Nk = N.
#include <algorithm>
#include <iterator>

#include "kernels/methods/pattern/method.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/etc.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  std::optional<int64_t> num_global;
  int64_t local_radius = 84, max_distance = 12, relative_vocab_size = 32;
  bool hard_g2l = false, hard_l2g = false;
};

constexpr const char* kLabels[] = {"l2g_ids", "g2g_ids", "g2l_ids", "l2l_ids"};
constexpr const char* kTables[] = {"rel_emb_long", "rel_emb_global", "rel_bias_long",
                                   "rel_bias_global"};
constexpr char kTablesAreSent[] = "rel_emb_* or rel_bias_* is sent";

bool SendsTables(const Options&, const ProblemShape& problem) {
  return std::any_of(std::begin(kTables), std::end(kTables),
                     [&](const char* name) { return problem.Find(name) != nullptr; });
}

Etc StructureOf(const SeenSeq& seq, const Options& o, const Integers& ints) {
  const auto ids = [&](const char* name) {
    const std::span<const int32_t> values = ints[name].OfSeq(seq.p, seq.b);
    return std::vector<int32_t>(values.begin(), values.end());
  };
  return {.ng = *o.num_global,
          .radius = o.local_radius,
          .hard_l2g = o.hard_l2g,
          .hard_g2l = o.hard_g2l,
          .is_labelled = SendsTables(o, seq.problem),
          .max_distance = o.max_distance,
          .sentence_ids = ids("sentence_ids"),
          .has_examples = ints["long_example_ids"].is_sent(),
          .long_examples = ids("long_example_ids"),
          .global_examples = ids("global_example_ids"),
          .l2l_ids = ids("l2l_ids"),
          .l2g_ids = ids("l2g_ids"),
          .g2g_ids = ids("g2g_ids"),
          .g2l_ids = ids("g2l_ids"),
          .sent_ids = ints.Elements(seq.p)};
}

HeadParts SeenBy(const SeenSeq& seq, const Options& o, const Integers& ints, Half half) {
  PatternSource source = EtcSource(seq, StructureOf(seq, o, ints), half);
  // A plan does not read them.
  const bool is_hard = o.hard_g2l || o.hard_l2g;
  if (is_hard && ints["sentence_ids"].is_sent()) source.knows_pairs = false;
  return AllHeads(std::move(source));
}

class EtcMethod : public PatternMethod<Options> {
 public:
  EtcMethod()
      : PatternMethod(
            {.id = "etc",
             .summary = "A global and a long half, with relative labels",
             .reference = "Ainslie et al. 2020 (arXiv 2004.08483), section 3",
             .cost =
                 "2 (D + Dv) FLOPs per visible pair, nl (2 r + 1 + ng) + ng n pairs, and 2 n V D "
                 "for tables; memory O(n V)",
             .unsupported = {.causal = true, .alibi = true, .cross = true, .packed = true},
             .inputs = {Differentiable("rel_emb_long", "[V,H,D]",
                                       "E of long rows, by label; default 0"),
                        Differentiable("rel_emb_global", "[V,H,D]", "E of global rows"),
                        Differentiable("rel_bias_long", "[V,H]",
                                       "beta of long rows, by label; default 0"),
                        Differentiable("rel_bias_global", "[V,H]", "beta of global rows"),
                        {"sentence_ids", "[B,nl]", "int32",
                         "the global place of every long token; default floor(c ng / nl), nl of "
                         "the padded N"},
                        {"long_example_ids", "[B,nl]", "int32",
                         "unequal ones never see each other; with global_example_ids"},
                        {"global_example_ids", "[B,ng]", "int32", "with long_example_ids"},
                        {"l2l_ids", "[B,nl,W]", "int32",
                         "labels of long rows and long keys a - r .. a + r, W = 2 r + 1"},
                        {"l2g_ids", "[B,nl,ng]", "int32", "labels of long rows and global keys"},
                        {"g2g_ids", "[B,ng,ng]", "int32", "labels of global rows and keys"},
                        {"g2l_ids", "[B,ng,nl]", "int32", "labels of global rows and long keys"},
                        Differentiable("k_global", "[B,Hkv,Nk,D]",
                                       "keys that global rows see; default k"),
                        Differentiable("v_global", "[B,Hkv,Nk,Dv]",
                                       "values that global rows see; default v")},
             .options = {
                 IntOption("num_global", &Options::num_global, {.min = 0}, "required",
                           "ng, the first positions; at most N"),
                 IntOption("local_radius", &Options::local_radius, {.min = 1},
                           "r, long keys on either side"),
                 ReadIf(kTablesAreSent, SendsTables,
                        IntOption("max_distance", &Options::max_distance, {.min = 0, .max = 32000},
                                  "k: farther distances share a label")),
                 ReadIf(kTablesAreSent, SendsTables,
                        IntOption("relative_vocab_size", &Options::relative_vocab_size,
                                  {.min = 4, .max = 65535},
                                  "V, rows of the tables; at least 2 k + 4")),
                 BoolOption("hard_g2l", &Options::hard_g2l,
                            "global rows see the long tokens of their sentence only, as "
                            "sentence_ids or its default have it"),
                 BoolOption("hard_l2g", &Options::hard_l2g,
                            "long rows see the global token of their sentence only")}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    CheckPair(problem, "long_example_ids", "global_example_ids", reasons);
    const int64_t V = o.relative_vocab_size, k = o.max_distance;
    if (V >= 4 && k >= 0 && k <= 32000 && V < 2 * k + 4) {
      reasons->Invalid("relative_vocab_size must be >= 2 max_distance + 4 = ", 2 * k + 4, ", got ",
                       V);
    }
    CheckShapes(problem, info().inputs, {{"V", V, "relative_vocab_size"}}, reasons);
    if (!o.num_global.has_value()) {
      reasons->Invalid("num_global is required, got none");
      return;
    }
    const int64_t ng = *o.num_global, nl = problem.Nq - ng;
    if (!problem.HasSizesOf("q") || ng < 0) return;
    if (!CheckUpTo(problem, "num_global", ng, {0, "N", problem.Nq}, reasons)) return;
    const int64_t W = o.local_radius > (int64_t{1} << 40) ? 0 : 2 * o.local_radius + 1;
    CheckShapes(problem, info().inputs, {{"nl", nl}, {"ng", ng}, {"W", W, "2 local_radius + 1"}},
                reasons);
  }

  void CheckIntegers(Ops& ops, const Inputs& in, const Options& o,
                     const Integers& ints) const override {
    CheckLabels(ops, in, o, ints);
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    return SeenBy(seq, o, ints, Half::kBoth);
  }

  PatternExtras Extras(Ops& ops, const Inputs& in, const Options& o) const override {
    return {.table = Table(ops, in, o)};
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o, const Integers& ints,
                 const PatternExtras& extras) const override {
    const bool has_own = in.tensors.contains("k_global") || in.tensors.contains("v_global");
    if (!has_own) return PatternMethod::Attend(ops, in, o, ints, extras);
    const auto seqs = [&](Half half) {
      return [&, half](const SeenSeq& seq) { return SeenBy(seq, o, ints, half); };
    };
    return AttendLocalAndGlobal(ops, in, o, seqs(Half::kLocal), seqs(Half::kGlobal), extras);
  }

 private:
  // Labels are rows of the tables; of a window those matter whose long token exists.
  void CheckLabels(Ops& ops, const Inputs& in, const Options& o, const Integers& ints) const {
    const int64_t r = o.local_radius, last = o.relative_vocab_size - 1;
    const auto range = [&](size_t) {
      return HostInts::Range{0, last, absl::StrCat("0..relative_vocab_size-1 = 0..", last)};
    };
    const auto exists = [&](size_t p, int64_t element) {
      const int64_t nl = in.problems[p].Nq - *o.num_global, W = 2 * r + 1;
      const int64_t key = element / W % nl + element % W - r;
      return key >= 0 && key < nl;
    };
    for (const std::string name : kLabels) {
      const bool is_window = name == "l2l_ids";
      ints[name].CheckRange(ops, info().id, range,
                            is_window ? HostInts::Matters(exists) : HostInts::Matters());
    }
  }

  // q E^T + beta of every row's own half, [B,H,N,V]; empty: no tables.
  static Tensor Table(Ops& ops, const Inputs& in, const Options& o) {
    const Tensor E_long = Sent(in, "rel_emb_long"), E_global = Sent(in, "rel_emb_global");
    const Tensor beta_long = Sent(in, "rel_bias_long"), beta_global = Sent(in, "rel_bias_global");
    if (E_long.empty() && E_global.empty() && beta_long.empty() && beta_global.empty()) return {};
    const Tensor q = ValidQueries(ops, in);
    const int64_t ng = *o.num_global, V = o.relative_vocab_size;
    std::vector<int64_t> end;
    for (const ProblemShape& problem : in.problems) end.push_back(problem.Nq);
    const Tensor globals = ops.Slice(q, 2, {0}, {ng}), longs = ops.Slice(q, 2, {ng}, end);
    return ops.Concat({LabelScores(ops, globals, E_global, beta_global, V),
                       LabelScores(ops, longs, E_long, beta_long, V)},
                      2);
  }
};

}  // namespace

ATTND_METHOD(etc, EtcMethod)

}  // namespace attnd
