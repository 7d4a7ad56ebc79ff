// Random keys (Zaheer et al. 2020, section 2, the random component alone): query i sees the R keys
// that rand_keys lists, or a draw that depends on seed, head and position p = i + off alone:
//   sample(C_i, R) of C_i = valid keys and, if causal, j <= p
// and, with include_self, j = p. Scores, tensors and shapes as in softmax.
#include "kernels/ops/pattern_draws.h"
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

struct RandomOptions : PatternOptions {
  std::optional<int64_t> num_random;
  bool include_self = false, per_head = true;
  uint64_t seed = 0;
};

// Keys that one batch row may draw: half a second of one thread.
constexpr int64_t kMostDrawn = int64_t{1} << 25;

HeadParts Sees(const SeenRow& r, const RandomOptions& o, const HostInts& sent) {
  KeyLists lists{.multiset = o.duplicates == Duplicates::kMultiset,
                 .include_self = o.include_self,
                 .ids_q = r.ids_q,
                 .ids_k = r.ids_k};
  HeadParts heads;
  if (!sent.is_sent()) {
    lists.R = std::min(*o.num_random, r.Nk);
    for (int64_t h = 0; h < (o.per_head ? r.problem.H : 1); ++h) {
      lists.name = absl::StrCat("seed ", o.seed, " head ", h);
      lists.keys = [row = PatternRow(r), R = lists.R, seed = o.seed, h] {
        return DrawnKeys(row, R, seed, h);
      };
      heads.push_back({ListSource(r, lists)});
    }
    return heads;
  }
  lists.R = sent.RowShape(r.p)[2];
  for (int64_t h = 0; h < sent.Heads(r.p); ++h) {
    const std::span<const int32_t> own = sent.Head(r.p, r.b, h);
    lists.name = Fingerprint(own);
    lists.keys = [copy = std::vector<int32_t>(own.begin(), own.end())] { return copy; };
    heads.push_back({ListSource(r, lists)});
  }
  return heads;
}

class Random : public MethodOf<RandomOptions> {
 public:
  Random()
      : MethodOf(
            {.id = "random",
             .summary = "R random keys for every query",
             .reference = "Zaheer et al. 2020 (arXiv 2007.14062), section 2",
             .cost = "2 (D + Dv) FLOPs per visible pair, n R pairs; memory O(n R) for the lists",
             .inputs = PatternInputs(
                 {}, {{"rand_keys", "[H,Nq,R] or [1,Nq,R] or [B,H,Nq,R] or [B,1,Nq,R]", "int32",
                       "keys of every query; others than 0..Nk-1 are ignored; default: drawn"}}),
             .outputs = PatternOutputs(),
             .support = PatternSupport()},
            WithPatternOptions<RandomOptions>({
                IntOption<RandomOptions>("num_random", &RandomOptions::num_random, {.min = 1},
                                         "required without rand_keys", "R, at most Nk"),
                BoolOption<RandomOptions>("include_self", &RandomOptions::include_self, "false",
                                          "adds the key at the query's own position"),
                BoolOption<RandomOptions>("per_head", &RandomOptions::per_head, "true",
                                          "false: one draw for all heads"),
                SeedOption<RandomOptions>(&RandomOptions::seed),
            })) {}

 protected:
  void CheckProblem(const ProblemShape& problem, const RandomOptions& o,
                    Reasons* reasons) const override {
    CheckPatternTensors(problem, reasons);
    const View* sent = problem.Find("rand_keys");
    if (!o.num_random.has_value()) {
      if (sent == nullptr) {
        reasons->Invalid("num_random is required without rand_keys, got none");
      }
      return;
    }
    if (*o.num_random < 1) return;  // told by its range
    const int64_t heads = o.per_head ? problem.H : 1;
    if (sent == nullptr && problem.Knows("q") && problem.Nq * heads > 0 &&
        *o.num_random > kMostDrawn / (problem.Nq * heads)) {
      reasons->Invalid("num_random must be at most ", kMostDrawn,
                       " / (Nq heads) = ", kMostDrawn / (problem.Nq * heads),
                       " where it is drawn, got ", *o.num_random);
    }
    if (sent != nullptr && sent->shape.rank >= 3) {
      const int64_t R = sent->shape[sent->shape.rank - 1];
      if (*o.num_random != R) {
        reasons->Invalid("num_random must be that of rand_keys, ", R, ", got ", *o.num_random);
      }
    } else if (problem.Nk > 0 && *o.num_random > problem.Nk) {
      reasons->Invalid("num_random must be in 1..Nk = 1..", problem.Nk, ", got ", *o.num_random);
    }
  }

  Outputs Formula(Ops& ops, const Inputs& in, const RandomOptions& o) const override {
    return ForSequences(ops, in, info().inputs, [&](const Inputs& sequences) {
      const HostInts sent(ops, sequences, "rand_keys", 4);
      return PatternAttend(ops, sequences, o, [&](const SeenRow& r) { return Sees(r, o, sent); },
                           {.rows_differ = sent.differs()});
    });
  }
};

}  // namespace

ATTND_METHOD(random, Random)

}  // namespace attnd
