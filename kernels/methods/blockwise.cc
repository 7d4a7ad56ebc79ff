// Blockwise self-attention (Qiu et al. 2019, section 3): with blk(x) = floor(x num_blocks / Nk),
// query i of head h sees the keys of one block, perm[h, blk(p)] = blk(j), p = i + off in [0, Nk);
// if causal and j <= p: then a head whose blocks are shifted has rows that see nothing. Scores,
// tensors and shapes as in softmax.
#include <map>

#include "kernels/core/integer.h"
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

struct Options : PatternOptions {
  int64_t num_blocks = 2;
  std::optional<int64_t> identity_heads;
};

// How far head h shifts its blocks: the first heads keep them in place, the others shift them by 1
// to nb - 1 in turn.
int64_t ShiftOf(const Options& o, int64_t H, int64_t h) {
  const int64_t nb = o.num_blocks;
  const int64_t shifted = (nb - 1) * std::max<int64_t>(1, (H + 3) / 6);
  const int64_t identity = o.identity_heads.value_or(std::max<int64_t>(1, H - shifted));
  return h < identity ? 0 : 1 + (h - identity) * (nb - 1) / (H - identity);
}

std::vector<int32_t> Shifted(int64_t nb, int64_t shift) {
  std::vector<int32_t> perm(static_cast<size_t>(nb));
  for (int64_t t = 0; t < nb; ++t) perm[t] = static_cast<int32_t>((t + shift) % nb);
  return perm;
}

// Blocks of all heads that a request may have.
constexpr int64_t kMostBlocks = int64_t{1} << 22;

// For a plan: about as many pairs as any permutation shows.
PatternSource AnyPerm(const SeenSeq& seq, const Options& o) {
  PatternSource source = BandSource(seq.Nq, seq.Nk, kUnbounded, kUnbounded, seq.lengths);
  source.visible_pairs /= static_cast<double>(o.num_blocks);
  const auto blocks = static_cast<double>(o.num_blocks);
  const auto tiles_of = [&](int64_t rows) {
    return static_cast<double>(Tiles(CeilDiv(rows, o.num_blocks) + kTile / 2));
  };
  source.visible_tiles =
      std::min(source.visible_tiles, blocks * tiles_of(seq.Nq) * tiles_of(seq.Nk));
  source.is_counted = source.knows_pairs = false;
  source.host = CostOf(seq.Nq, seq.Nk, {.slot_bytes = 32});
  source.gathers = BlockwiseGathers(seq, o.num_blocks);
  return source;
}

class Blockwise : public PatternMethod<Options> {
 public:
  Blockwise()
      : PatternMethod(
            {.id = "blockwise",
             .summary = "One key block for every query block, permuted by head",
             .reference = "Qiu et al. 2019 (arXiv 1911.02972), section 3",
             .cost = "2 (D + Dv) FLOPs per visible pair, n^2 / nb pairs; memory O(n)",
             .has_windows = [](const Options&) { return true; },
             .inputs = {{"perm", "[H,nb] or [1,nb]", "int32",
                         "the key block of every query block, a permutation of 0..nb-1; default: "
                         "identity_heads heads in place, the others shifted"}},
             .options = {IntOption("num_blocks", &Options::num_blocks, {.min = 1},
                                   "nb, at most Nk; blocks of the padded sequence"),
                         ReadIf(
                             "perm is absent",
                             [](const Options&, const ProblemShape& p) {
                               return p.Find("perm") == nullptr;
                             },
                             IntOption("identity_heads", &Options::identity_heads, {.min = 0},
                                       "max(1, H - (nb - 1) max(1, floor(H/6 + 1/2)))",
                                       "heads whose blocks see themselves, at most H"))}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    const int64_t nb = o.num_blocks;
    if (problem.HasSizesOf("q")) {
      CheckUpTo(problem, "identity_heads", o.identity_heads.value_or(0), {0, "H", problem.H},
                reasons);
      CheckLimit("num_blocks", nb, {kMostBlocks, "H", problem.H}, reasons);
    }
    if (nb < 1) return;  // refused by its range
    if (problem.HasSizesOf("k") && problem.Nk > 0) {
      CheckUpTo(problem, "num_blocks", nb, {1, "Nk", problem.Nk, "cu_seqlens_k"}, reasons);
    }
    CheckShapes(problem, info().inputs, {{"nb", nb, "num_blocks"}}, reasons);
  }

  void CheckIntegers(Ops& ops, const Inputs&, const Options&, const Integers& ints) const override {
    ints["perm"].CheckPermutations(ops, info().id);
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    if (seq.Nk == 0) return AllHeads(WindowSource(seq.Nq, seq.Nk, {}, seq.lengths));
    const int64_t H = seq.problem.H;
    const HostInts& sent = ints["perm"];
    const HeadRule rule{.count = sent.is_sent() ? sent.Heads(seq.p) : H,
                        .differ_by_values = sent.is_sent(),
                        .work = o.num_blocks,
                        .bound = [&] { return OfHeads(AnyPerm(seq, o), H); }};
    std::map<int64_t, PatternSource> sources;  // of a shift
    return EachHead(seq, rule, [&](int64_t head) {
      if (sent.is_sent()) {
        return PatternParts{BlockwiseSource(seq, sent.Head(seq.p, seq.b, head))};
      }
      const int64_t shift = ShiftOf(o, H, head);
      if (!sources.contains(shift)) {
        sources[shift] = BlockwiseSource(seq, Shifted(o.num_blocks, shift));
      }
      return PatternParts{sources[shift]};
    });
  }
};

}  // namespace

ATTND_METHOD(blockwise, Blockwise)

}  // namespace attnd
