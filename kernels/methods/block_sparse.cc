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

// What the caller sent, on the host.
struct Layouts {
  HostInts layout, indptr, indices;

  Layouts(Ops& ops, const Inputs& in)
      : layout(ops, in, "layout", 4),
        indptr(ops, in, "indptr", 3),
        indices(ops, in, "indices", 2) {}

  int64_t Heads(size_t p) const { return layout.is_sent() ? layout.Heads(p) : indptr.Heads(p); }
  // Of one batch row.
  int64_t Elements(size_t p) const {
    if (layout.is_sent()) return layout.SeqShape(p).size();
    return indptr.SeqShape(p).size() + indices.SeqShape(p).size();
  }
  BlockRows Of(const SeenSeq& r, int64_t h, const Options& o) const {
    if (layout.is_sent()) {
      return BlocksOfLayout(layout.Head(r.p, r.b, h), layout.SeqShape(r.p)[2], o.block_q,
                            o.block_k);
    }
    return BlocksOfLists(indptr.Head(r.p, r.b, h), indices.Row(r.p, r.b), o.block_q, o.block_k);
  }
};

HeadParts Sees(const SeenSeq& r, const Options& o, const Layouts& sent) {
  if (r.is_planned) {
    // Every block may be there.
    PatternSource all = AllKeys(r);
    all.is_counted = false;
    // A run of blocks takes 12 bytes, three times that while a list of them grows; runs of a layout
    // are two elements apart.
    const int64_t heads = sent.Heads(r.p), elements = sent.Elements(r.p);
    const int64_t element_bytes = sent.layout.is_sent() ? 20 : 40;
    const HostCost pattern = CostOf(r.Nq, r.Nk, {.slot_bytes = 0});
    all.host.bytes = heads * pattern.bytes + element_bytes * elements;
    if (o.duplicates == Duplicates::kMultiset) {
      all.host.bytes += heads * TermBytes(r.Nq, r.Nk, sizeof(float));
    }
    all.host.seconds =
        static_cast<double>(heads) * pattern.seconds + 2e-8 * static_cast<double>(elements);
    return AllHeads(std::move(all));
  }
  HeadParts heads;
  for (int64_t h = 0; h < sent.Heads(r.p); ++h) {
    heads.push_back({BlockSource(r, sent.Of(r, h, o), o.duplicates == Duplicates::kMultiset)});
  }
  return heads;
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
    if (!problem.Knows("q") || !problem.Knows("k")) return;
    if (o.block_q < 1 || o.block_k < 1) return;
    const int64_t nbq = CeilDiv(problem.Nq, o.block_q), nbk = CeilDiv(problem.Nk, o.block_k);
    CheckShape(problem, "layout", "[..,nbq,nbk]", {{"nbq", nbq}, {"nbk", nbk}}, reasons);
    CheckShape(problem, "indptr", "[..,n]", {{"n", nbq + 1, "nbq + 1"}}, reasons);
  }

  Outputs Attend(Ops& ops, const Inputs& in, const Options& o) const override {
    const Layouts sent(ops, in);
    sent.indptr.CheckOffsets(ops, info().id, sent.indices);
    sent.indices.CheckRange(ops, info().id, [&](size_t p) {
      const int64_t last = CeilDiv(in.problems[p].Nk, o.block_k) - 1;
      return HostInts::Range{0, last, absl::StrCat("0..nbk-1 = 0..", last)};
    });
    return PatternAttend(ops, in, o, [&](const SeenSeq& r) { return Sees(r, o, sent); },
                         {.seqs_differ = sent.layout.differs()});
  }
};

}  // namespace

ATTND_METHOD(block_sparse, BlockSparse)

}  // namespace attnd
