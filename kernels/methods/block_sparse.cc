// Block-sparse attention over a caller's layout (Gray et al. 2017; Child et al. 2019): query i sees
// key j if layout[h, floor(i / block_q), floor(j / block_k)] is not 0 (i, not p = i + off) and, if
// causal, j <= p. indptr and indices say the same as lists: the key blocks of row t of head h are
// indices[indptr[h,t], indptr[h,t+1]). Scores, tensors and shapes as in softmax.
#include "kernels/core/integer.h"
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  int64_t block_q = 64, block_k = 64;
};

// A layout names each block once.
bool IsMultiset(const Options& o, const Integers& ints) {
  return o.duplicates == Duplicates::kMultiset && !ints["layout"].is_sent();
}

// For a plan: every block may be there.
PatternSource BoundOf(const SeenSeq& seq, const Options& o, const Integers& ints, int64_t heads) {
  PatternSource all = AllKeys(seq);
  all.is_counted = all.knows_pairs = false;
  const int64_t elements = ints.Elements(seq.p);
  // A run of blocks takes 12 bytes, three times that while a list of them grows; runs of a layout
  // are two elements apart.
  const int64_t element_bytes = ints["layout"].is_sent() ? 20 : 40;
  if (IsMultiset(o, ints)) all.term_bytes = sizeof(float);
  const HostCost pattern = CostOf(seq.Nq, seq.Nk, {.slot_bytes = 0, .term_bytes = all.term_bytes});
  all.patterns = heads;
  all.host.bytes = heads * pattern.bytes + element_bytes * elements;
  all.host.seconds =
      static_cast<double>(heads) * pattern.seconds + 2e-8 * static_cast<double>(elements);
  return all;
}

class BlockSparse : public PatternMethod<Options> {
 public:
  BlockSparse()
      : PatternMethod(
            {.id = "block_sparse",
             .summary = "Blocks that a layout of the caller switches on",
             .reference = "Child et al. 2019 (arXiv 1904.10509), section 5",
             .cost = "2 (D + Dv) FLOPs per visible pair, blocks x block_q x block_k pairs; memory "
                     "O(n + blocks)",
             .unsupported = {.packed = true},
             .lists_keys = true,
             .inputs =
                 {{"layout", "[H,nbq,nbk] or [1,nbq,nbk] or [B,H,nbq,nbk] or [B,1,nbq,nbk]",
                   "uint8", "1: the block is there; nbq = ceil(Nq / block_q), nbk likewise"},
                  {"indptr", "[H,n] or [1,n]", "int32",
                   "in place of layout: where the list of each row of blocks begins, n = nbq + 1"},
                  {"indices", "[nnz]", "int32", "key blocks, row after row and head after head"}},
             .options = {IntOption("block_q", &Options::block_q, {.min = 1, .max = 512},
                                   "queries of a block"),
                         IntOption("block_k", &Options::block_k, {.min = 1, .max = 512},
                                   "keys of a block")}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const bool has_lists = problem.Find("indptr") != nullptr || problem.Find("indices") != nullptr;
    if (problem.Find("layout") == nullptr && !has_lists) {
      reasons->Invalid("layout or indptr with indices is required, got none");
    }
    CheckApart(problem, "layout", "indptr", reasons);
    CheckPair(problem, "indptr", "indices", reasons);
    if (!problem.HasSizesOf("q") || !problem.HasSizesOf("k")) return;
    if (o.block_q < 1 || o.block_k < 1) return;
    const int64_t nbq = CeilDiv(problem.Nq, o.block_q), nbk = CeilDiv(problem.Nk, o.block_k);
    CheckShape(problem, "layout", "[..,nbq,nbk]", {{"nbq", nbq}, {"nbk", nbk}}, reasons);
    CheckShape(problem, "indptr", "[..,n]", {{"n", nbq + 1, "nbq + 1"}}, reasons);
  }

  void CheckIntegers(Ops& ops, const Inputs& in, const Options& o,
                     const Integers& ints) const override {
    ints["indptr"].CheckOffsets(ops, info().id, ints["indices"]);
    ints["indices"].CheckRange(ops, info().id, [&](size_t p) {
      const int64_t last = CeilDiv(in.problems[p].Nk, o.block_k) - 1;
      return HostInts::Range{0, last, absl::StrCat("0..nbk-1 = 0..", last)};
    });
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    const HostInts &layout = ints["layout"], &indptr = ints["indptr"];
    const int64_t heads = layout.is_sent() ? layout.Heads(seq.p) : indptr.Heads(seq.p);
    const HeadRule rule{.count = heads, .differ_by_values = true, .bound = [&] {
                          return BoundOf(seq, o, ints, heads);
                        }};
    return EachHead(seq, rule, [&](int64_t head) {
      BlockRows rows =
          layout.is_sent()
              ? BlocksOfLayout(layout.Head(seq.p, seq.b, head), layout.SeqShape(seq.p)[2],
                               o.block_q, o.block_k)
              : BlocksOfLists(indptr.Head(seq.p, seq.b, head), ints["indices"].OfSeq(seq.p, seq.b),
                              o.block_q, o.block_k);
      return PatternParts{BlockSource(seq, std::move(rows), IsMultiset(o, ints))};
    });
  }
};

}  // namespace

ATTND_METHOD(block_sparse, BlockSparse)

}  // namespace attnd
