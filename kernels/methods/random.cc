// Random keys (Zaheer et al. 2020, section 2, the random component alone): query i sees the R keys
// that rand_keys lists, or a draw that depends on seed, head and position p = i + off alone:
//   sample(C_i, R) of C_i = valid keys and, if causal, j <= p
// and, with include_self, j = p. Scores, tensors and shapes as in softmax.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/lists.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  std::optional<int64_t> num_random;
  bool include_self = false, per_head = true;
  uint64_t seed = 0;
};

// Keys that a problem may draw, and keys that it may list for sequences that share a tensor: each
// takes 8 bytes on the host and about 40 ns.
constexpr int64_t kMostDrawn = int64_t{1} << 24, kMostShared = int64_t{1} << 26;

// Sequences of a batch that have lists of their own. Their lengths may still be equal.
int64_t SeqsWithLists(const ProblemShape& problem) {
  const SeqsApart seqs = SeqsApartOf(problem);
  return seqs.letter == "B" ? seqs.count : 1;
}

class Random : public PatternMethod<Options> {
 public:
  Random()
      : PatternMethod(
            {.id = "random",
             .summary = "R random keys for every query",
             .reference = "Zaheer et al. 2020 (arXiv 2007.14062), section 2",
             .cost = "2 (D + Dv) FLOPs per visible pair, n R pairs; memory O(n R) for the lists",
             .lists_keys = true,
             .has_windows = [](const Options& o) { return o.include_self; },
             .inputs = {{"rand_keys", "[H,Nq,R] or [1,Nq,R] or [B,H,Nq,R] or [B,1,Nq,R]", "int32",
                         "keys of every query; others than 0..Nk-1 are ignored; default: drawn"}},
             .options = {
                 IntOption("num_random", &Options::num_random, {.min = 1},
                           "required without rand_keys", "R, at most Nk"),
                 BoolOption("include_self", &Options::include_self,
                            absl::StrCat("adds the key at p; ", kPositionHelp)),
                 ReadIf(
                     "rand_keys is absent",
                     [](const Options&, const ProblemShape& p) {
                       return p.Find("rand_keys") == nullptr;
                     },
                     BoolOption("per_head", &Options::per_head, "false: one draw for all heads")),
                 SeedOption(&Options::seed)}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const View* sent = problem.Find("rand_keys");
    const int64_t seqs = SeqsWithLists(problem);
    if (sent != nullptr && sent->shape.rank == 3 && seqs > 1) {
      CheckLimit("rand_keys elements", sent->shape.size(),
                 {kMostShared, "B", seqs, " where batch rows differ in length"}, reasons);
    }
    if (!o.num_random.has_value()) {
      if (sent == nullptr) reasons->Invalid("num_random is required without rand_keys, got none");
      return;
    }
    const int64_t R = *o.num_random, heads = o.per_head ? problem.H : 1;
    if (R < 1) return;  // refused by its range
    CheckListed(problem, "num_random", R, {"rand_keys", 3}, reasons);
    if (sent == nullptr && problem.HasSizesOf("q")) {
      CheckLimit("num_random", R,
                 {kMostDrawn, seqs == 1 ? "(Nq heads)" : "(B Nq heads)", problem.Nq * heads * seqs,
                  " where it is drawn"},
                 reasons);
    }
    if (sent == nullptr && problem.Nk > 0) {
      CheckUpTo(problem, "num_random", R, {1, "Nk", problem.Nk}, reasons);
    }
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    const HostInts& sent = ints["rand_keys"];
    KeyLists lists{.multiset = o.duplicates == Duplicates::kMultiset,
                   .include_self = o.include_self,
                   .ids_q = {seq.ids_q.begin(), seq.ids_q.end()},
                   .ids_k = {seq.ids_k.begin(), seq.ids_k.end()}};
    HeadRule rule{.count = o.per_head ? seq.problem.H : 1, .differ_by_values = true};
    if (sent.is_sent()) {
      rule.count = sent.Heads(seq.p);
      lists.R = sent.SeqShape(seq.p)[2];
    } else {
      lists.R = std::min(*o.num_random, seq.Nk);  // a short packed sequence lists all its keys
      lists.seed = o.seed;
    }
    return EachHead(seq, rule, [&](int64_t head) {
      if (sent.is_sent()) {
        const std::span<const int32_t> own = sent.Head(seq.p, seq.b, head);
        lists.keys = {own.begin(), own.end()};
      } else {
        lists.head = head;
      }
      PatternSource source = ListSource(seq, lists);
      // A plan does not read them.
      if (sent.is_sent()) source.knows_pairs = false;
      return PatternParts{std::move(source)};
    });
  }
};

}  // namespace

ATTND_METHOD(random, Random)

}  // namespace attnd
