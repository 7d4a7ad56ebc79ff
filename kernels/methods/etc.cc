// ETC (Ainslie et al. 2020, section 3). Positions [0, ng) are global, the others long; a, c are
// places in a half. Long rows see |a - c| <= local_radius of the long half and the globals
// (hard_l2g: that of their sentence); global rows see the globals and the long half (hard_g2l:
// their sentence).
//   t_ij = scale (q_i . k_j + q_i . E[id_ij, h] + beta[id_ij, h])      (Shaw et al. 2018, eq. 3)
// E, beta: rel_emb_long [V,H,D] and rel_bias_long [V,H] of long rows, ..._global of global rows;
// id_ij: EtcLong in pattern_parts.h, or as sent. Global rows read k_global and v_global. Scores,
// tensors and shapes otherwise as in softmax; Nq = Nk = N.
#include <map>

#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

struct EtcOptions : PatternOptions {
  std::optional<int64_t> num_global;
  int64_t local_radius = 84, max_distance = 12, relative_vocab_size = 32;
  bool hard_g2l = false, hard_l2g = false;
};

constexpr Lacks kLacks{.causal = true, .alibi = true, .cross = true, .packed = true};

// What the caller sent, on the host.
struct EtcData {
  HostInts sentences, long_examples, global_examples, l2l, l2g, g2g, g2l;

  EtcData(Ops& ops, const Inputs& in)
      : sentences(ops, in, "sentence_ids", 2),
        long_examples(ops, in, "long_example_ids", 2),
        global_examples(ops, in, "global_example_ids", 2),
        l2l(ops, in, "l2l_ids", 3),
        l2g(ops, in, "l2g_ids", 3),
        g2g(ops, in, "g2g_ids", 3),
        g2l(ops, in, "g2l_ids", 3) {}
  bool any() const {
    return sentences.is_sent() || long_examples.is_sent() || l2l.is_sent() || l2g.is_sent() ||
           g2g.is_sent() || g2l.is_sent();
  }
};

Etc Of(const SeenRow& r, const EtcOptions& o, const EtcData& sent, bool is_labelled) {
  return {.ng = *o.num_global,
          .radius = o.local_radius,
          .hard_l2g = o.hard_l2g,
          .hard_g2l = o.hard_g2l,
          .is_labelled = is_labelled,
          .max_distance = o.max_distance,
          .sentence_ids = sent.sentences.Row(r.p, r.b),
          .l2l_ids = sent.l2l.Row(r.p, r.b),
          .l2g_ids = sent.l2g.Row(r.p, r.b),
          .g2g_ids = sent.g2g.Row(r.p, r.b),
          .g2l_ids = sent.g2l.Row(r.p, r.b)};
}

// Only equal examples see each other; numbers of any sign.
PatternSource WithinExamples(const PatternSource& source, const SeenRow& r, const EtcData& sent) {
  if (!sent.long_examples.is_sent()) return source;
  PatternSource hidden = source;
  hidden.is_counted = false;
  if (r.is_planned) return hidden;
  std::map<int32_t, int32_t> number;
  std::vector<int32_t> ids;
  for (const HostInts* half : {&sent.global_examples, &sent.long_examples}) {
    for (const int32_t id : half->Row(r.p, r.b)) {
      ids.push_back(number.emplace(id, static_cast<int32_t>(number.size())).first->second);
    }
  }
  return WithinSegments(hidden, ids, ids);
}

TensorInfo Learned(const std::string& name, const std::string& shape, const std::string& help) {
  return {.name = name, .shape = shape, .dtype = "float", .help = help, .differentiable = true};
}

class EtcMethod : public MethodOf<EtcOptions> {
 public:
  EtcMethod()
      : MethodOf(
            {.id = "etc",
             .summary = "A global and a long half, with relative labels",
             .reference = "Ainslie et al. 2020 (arXiv 2004.08483), section 3",
             .cost =
                 "2 (D + Dv) FLOPs per visible pair, nl (2 r + 1 + ng) + ng n pairs, and 2 n V D "
                 "for tables; memory O(n V)",
             .inputs = PatternInputs(
                 kLacks,
                 {Learned("rel_emb_long", "[V,H,D]", "E of long rows, by label; default 0"),
                  Learned("rel_emb_global", "[V,H,D]", "E of global rows"),
                  Learned("rel_bias_long", "[V,H]", "beta of long rows, by label; default 0"),
                  Learned("rel_bias_global", "[V,H]", "beta of global rows"),
                  {"sentence_ids", "[B,nl]", "int32",
                   "the global place of every long token; default floor(c ng / nl)"},
                  {"long_example_ids", "[B,nl]", "int32",
                   "unequal ones never see each other; with global_example_ids"},
                  {"global_example_ids", "[B,ng]", "int32", "with long_example_ids"},
                  {"l2l_ids", "[B,nl,W]", "int32",
                   "labels of long rows and long keys a - r .. a + r, W = 2 r + 1"},
                  {"l2g_ids", "[B,nl,ng]", "int32", "labels of long rows and global keys"},
                  {"g2g_ids", "[B,ng,ng]", "int32", "labels of global rows and keys"},
                  {"g2l_ids", "[B,ng,nl]", "int32", "labels of global rows and long keys"},
                  Learned("k_global", "[B,Hkv,Nk,D]", "keys that global rows see; default k"),
                  Learned("v_global", "[B,Hkv,Nk,Dv]", "values that global rows see; default v")}),
             .outputs = PatternOutputs(kLacks),
             .support = PatternSupport(kLacks)},
            WithPatternOptions<EtcOptions>(
                {IntOption<EtcOptions>("num_global", &EtcOptions::num_global, {.min = 0},
                                       "required", "ng, the first positions; at most N"),
                 IntOption<EtcOptions>("local_radius", &EtcOptions::local_radius, {.min = 1}, "84",
                                       "r, long keys on either side"),
                 IntOption<EtcOptions>("max_distance", &EtcOptions::max_distance,
                                       {.min = 0, .max = 32000}, "12",
                                       "k: farther distances share a label"),
                 IntOption<EtcOptions>("relative_vocab_size", &EtcOptions::relative_vocab_size,
                                       {.min = 4, .max = 65535}, "32",
                                       "V, rows of the tables; at least 2 k + 4"),
                 BoolOption<EtcOptions>("hard_g2l", &EtcOptions::hard_g2l, "false",
                                        "global rows see the long tokens of their sentence only, "
                                        "as sentence_ids or its default have it"),
                 BoolOption<EtcOptions>("hard_l2g", &EtcOptions::hard_l2g, "false",
                                        "long rows see the global token of their sentence only")},
                kLacks)) {}

 protected:
  void CheckProblem(const ProblemShape& problem, const EtcOptions& o,
                    Reasons* reasons) const override {
    CheckPatternTensors(problem, kLacks, reasons);
    CheckPair(problem, "long_example_ids", "global_example_ids", reasons);
    const int64_t V = o.relative_vocab_size, least = 2 * o.max_distance + 4;
    if (V >= 4 && o.max_distance >= 0 && o.max_distance <= 32000 && V < least) {
      reasons->Invalid("relative_vocab_size must be >= 2 max_distance + 4 = ", least, ", got ", V);
    }
    for (const char* name : {"rel_emb_long", "rel_emb_global"}) {
      CheckSize(problem, name, {"[V,H,D]", 0, "V = relative_vocab_size", V}, reasons);
    }
    for (const char* name : {"rel_bias_long", "rel_bias_global"}) {
      CheckSize(problem, name, {"[V,H]", 0, "V = relative_vocab_size", V}, reasons);
    }
    if (!o.num_global.has_value()) {
      reasons->Invalid("num_global is required, got none");
      return;
    }
    if (!problem.Knows("q")) return;
    const int64_t ng = *o.num_global, N = problem.Nq;
    if (ng > N) reasons->Invalid("num_global must be in 0..N = 0..", N, ", got ", ng);
    if (ng >= 0 && ng <= N) CheckHalves(problem, o, ng, N - ng, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const EtcOptions& o) const override {
    const EtcData sent(ops, in);
    CheckLabels(ops, in, o, sent);
    PatternExtras extras{
        .table = Table(ops, in, o), .rows_differ = sent.any(), .dtype = DType::kF32};
    const bool is_labelled = !extras.table.empty();
    const auto rows = [&](auto half) {
      return [&, half](const SeenRow& r) {
        return AllHeads(WithinExamples(half(r, Of(r, o, sent, is_labelled)), r, sent));
      };
    };
    const Outputs longs = PatternAttend(ops, in, o, rows(EtcLong), extras);
    Inputs global = in;
    global.tensors.erase("sink_logits");  // the long rows' call has them for all rows
    if (in.tensors.contains("k_global")) global.k = in.tensors.at("k_global");
    if (in.tensors.contains("v_global")) global.v = in.tensors.at("v_global");
    const Outputs globals = PatternAttend(ops, global, o, rows(EtcGlobal), extras);
    if (!ops.status().ok()) return {};
    return MergeRows(ops, longs, globals, in.q[0].dtype);
  }

 private:
  static void CheckHalves(const ProblemShape& problem, const EtcOptions& o, int64_t ng, int64_t nl,
                          Reasons* reasons) {
    const int64_t W = o.local_radius > (int64_t{1} << 40) ? 0 : 2 * o.local_radius + 1;
    const auto check = [&](const char* name, const char* shape, SizeRule first, SizeRule second) {
      const View* view = problem.Find(name);
      first.shape = second.shape = shape;
      if (view == nullptr || view->shape.rank != second.axis + 1) return;
      if (!CheckSize(problem, name, first, reasons)) return;
      if (second.axis != first.axis) CheckSize(problem, name, second, reasons);
    };
    const SizeRule of_long{"", 1, "nl", nl}, of_global{"", 1, "ng", ng};
    check("sentence_ids", "[B,nl]", of_long, of_long);
    check("long_example_ids", "[B,nl]", of_long, of_long);
    check("global_example_ids", "[B,ng]", of_global, of_global);
    check("l2l_ids", "[B,nl,W]", of_long, {"", 2, "W = 2 local_radius + 1", W});
    check("l2g_ids", "[B,nl,ng]", of_long, {"", 2, "ng", ng});
    check("g2g_ids", "[B,ng,ng]", of_global, {"", 2, "ng", ng});
    check("g2l_ids", "[B,ng,nl]", of_global, {"", 2, "nl", nl});
  }

  // Labels that some pair may have are rows of the tables.
  void CheckLabels(Ops& ops, const Inputs& in, const EtcOptions& o, const EtcData& sent) const {
    const int64_t r = o.local_radius, last = o.relative_vocab_size - 1;
    const auto range = [&](size_t) {
      return HostInts::Range{0, last, absl::StrCat("0..relative_vocab_size-1 = 0..", last)};
    };
    for (const HostInts* labels : {&sent.l2g, &sent.g2g, &sent.g2l}) {
      labels->CheckRange(ops, info().id, range);
    }
    // Of a window only the slots whose long token exists.
    sent.l2l.CheckRange(ops, info().id, range, [&](size_t p, int64_t element) {
      const int64_t nl = in.problems[p].Nq - *o.num_global, W = 2 * r + 1;
      const int64_t key = element / W % nl + element % W - r;
      return key >= 0 && key < nl;
    });
  }

  // q E^T + beta of every row's own half, [B,H,N,V]; empty: no tables.
  static Tensor Table(Ops& ops, const Inputs& in, const EtcOptions& o) {
    const auto sent = [&](const char* name) {
      const auto found = in.tensors.find(name);
      return found == in.tensors.end() ? Tensor() : found->second;
    };
    const Tensor emb_long = sent("rel_emb_long"), emb_global = sent("rel_emb_global");
    const Tensor bias_long = sent("rel_bias_long"), bias_global = sent("rel_bias_global");
    if (emb_long.empty() && emb_global.empty() && bias_long.empty() && bias_global.empty()) {
      return {};
    }
    const Tensor q = ValidQueries(ops, in);
    std::vector<int64_t> zero, border, end;
    for (const ProblemShape& problem : in.problems) {
      zero.push_back(0);
      border.push_back(*o.num_global);
      end.push_back(problem.Nq);
    }
    const Tensor global = Half(ops, ops.Slice(q, 2, zero, border), emb_global, bias_global, o);
    const Tensor local = Half(ops, ops.Slice(q, 2, border, end), emb_long, bias_long, o);
    return ops.Concat({global, local}, 2);
  }

  // [B,H,rows,V] of q [B,H,rows,D], emb [V,H,D] and bias [V,H], either may be missing.
  static Tensor Half(Ops& ops, const Tensor& q, const Tensor& emb, const Tensor& bias,
                     const EtcOptions& o) {
    std::vector<Shape> by_head, added, whole;
    for (size_t p = 0; p < q.size(); ++p) {
      const Shape& s = q[p].shape;
      by_head.push_back({1, s[1], o.relative_vocab_size, s[3]});
      added.push_back({1, s[1], 1, o.relative_vocab_size});
      whole.push_back({s[0], s[1], s[2], o.relative_vocab_size});
    }
    Tensor beta;
    if (!bias.empty()) beta = ops.Reshape(ops.Transpose(bias, 0, 1), added);
    if (emb.empty()) {
      if (beta.empty()) beta = ops.Constant(0, added);
      return ops.Copy(ops.Expand(beta, whole));
    }
    const Tensor rows = ops.Reshape(ops.Transpose(emb, 0, 1), by_head);  // [1,H,V,D]
    return ops.MatMul(q, ops.Transpose(rows, 2, 3), {}, beta);
  }
};

}  // namespace

ATTND_METHOD(etc, EtcMethod)

}  // namespace attnd
