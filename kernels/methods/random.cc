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

// Keys that a problem may draw, and those that it may list for rows that share what was sent: 8
// bytes each on the host, and about 40 ns.
constexpr int64_t kMostDrawn = int64_t{1} << 24, kMostShared = int64_t{1} << 26;

// Batch rows that have lists of their own, whatever their lengths turn out to be.
int64_t RowsWithLists(const ProblemShape& problem) {
  const SeqsApart rows = SeqsApartOf(problem);
  return rows.letter == "B" ? rows.count : 1;
}

HeadParts Sees(const SeenSeq& r, const Options& o, const HostInts& sent) {
  KeyLists lists{.multiset = o.duplicates == Duplicates::kMultiset,
                 .include_self = o.include_self,
                 .ids_q = {r.ids_q.begin(), r.ids_q.end()},
                 .ids_k = {r.ids_k.begin(), r.ids_k.end()}};
  HeadParts heads;
  if (!sent.is_sent()) {
    lists.R = std::min(*o.num_random, r.Nk);  // a short packed sequence lists all its keys
    const int64_t heads_apart = o.per_head && !r.is_planned ? r.problem.H : 1;
    for (int64_t h = 0; h < heads_apart; ++h) {
      lists.seed = o.seed;
      lists.head = h;
      const bool is_for_all = r.is_planned && o.per_head;
      heads.push_back({OfHeads(ListSource(r, lists), is_for_all ? r.problem.H : 1)});
    }
    return heads;
  }
  lists.R = sent.SeqShape(r.p)[2];
  if (r.is_planned) return AllHeads(OfHeads(ListSource(r, lists), sent.Heads(r.p)));
  for (int64_t h = 0; h < sent.Heads(r.p); ++h) {
    const std::span<const int32_t> own = sent.Head(r.p, r.b, h);
    lists.keys = {own.begin(), own.end()};
    heads.push_back({ListSource(r, lists)});
  }
  return heads;
}

class Random : public PatternMethod<Options> {
 public:
  Random()
      : PatternMethod(
            {.id = "random",
             .summary = "R random keys for every query",
             .reference = "Zaheer et al. 2020 (arXiv 2007.14062), section 2",
             .cost = "2 (D + Dv) FLOPs per visible pair, n R pairs; memory O(n R) for the lists",
             .inputs = {{"rand_keys", "[H,Nq,R] or [1,Nq,R] or [B,H,Nq,R] or [B,1,Nq,R]", "int32",
                         "keys of every query; others than 0..Nk-1 are ignored; default: drawn"}},
             .options = {
                 IntOption("num_random", &Options::num_random, {.min = 1},
                           "required without rand_keys", "R, at most Nk"),
                 BoolOption("include_self", &Options::include_self,
                            "adds the key at the query's own position"),
                 BoolOption("per_head", &Options::per_head, "false: one draw for all heads"),
                 SeedOption(&Options::seed)}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const View* sent = problem.Find("rand_keys");
    const int64_t rows = RowsWithLists(problem);
    if (sent != nullptr && sent->shape.rank == 3 && rows > 1) {
      CheckLimit("rand_keys elements", sent->shape.size(),
                 {kMostShared, "B", rows, " where batch rows differ in length"}, reasons);
    }
    if (!o.num_random.has_value()) {
      if (sent == nullptr) reasons->Invalid("num_random is required without rand_keys, got none");
      return;
    }
    const int64_t R = *o.num_random, heads = o.per_head ? problem.H : 1;
    if (R < 1) return;  // told by its range
    CheckListed(problem, "num_random", R, {"rand_keys", 3}, reasons);
    if (sent == nullptr && problem.Knows("q")) {
      CheckLimit("num_random", R,
                 {kMostDrawn, rows == 1 ? "(Nq heads)" : "(B Nq heads)", problem.Nq * heads * rows,
                  " where it is drawn"},
                 reasons);
    }
    if (sent == nullptr && problem.Nk > 0) {
      CheckUpTo(problem, "num_random", R, {1, "Nk", problem.Nk}, reasons);
    }
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o) const override {
    const HostInts sent(ops, in, "rand_keys", 4);
    return PatternAttend(ops, in, o, [&](const SeenSeq& r) { return Sees(r, o, sent); },
                         {.seqs_differ = sent.differs()});
  }
};

}  // namespace

ATTND_METHOD(random, Random)

}  // namespace attnd
