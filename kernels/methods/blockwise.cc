// Blockwise self-attention (Qiu et al. 2019, section 3): with blk(x) = floor(x num_blocks / Nk),
// query i of head h sees the keys of one block, perm[h, blk(p)] = blk(j), p = i + off in [0, Nk);
// if causal and j <= p: then a head whose blocks are shifted has rows that see nothing. Scores,
// tensors and shapes as in softmax.
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

struct BlockwiseOptions : PatternOptions {
  int64_t num_blocks = 2;
  std::optional<int64_t> identity_heads;
};

// The permutation of head h: the first heads keep the blocks in place, the others shift them by 1
// to nb - 1 in turn.
std::vector<int32_t> StandardPerm(const BlockwiseOptions& o, int64_t H, int64_t h) {
  const int64_t nb = o.num_blocks;
  const int64_t shifted = (nb - 1) * std::max<int64_t>(1, (H + 3) / 6);
  const int64_t identity = o.identity_heads.value_or(std::max<int64_t>(1, H - shifted));
  const int64_t shift = h < identity ? 0 : 1 + (h - identity) * (nb - 1) / (H - identity);
  std::vector<int32_t> perm(static_cast<size_t>(nb));
  for (int64_t t = 0; t < nb; ++t) perm[t] = static_cast<int32_t>((t + shift) % nb);
  return perm;
}

// Blocks of all heads: a plan counts so many of them one by one, a request may have so many.
constexpr int64_t kCounted = 4096, kMostBlocks = int64_t{1} << 22;

// Of a plan that does not read or write a permutation: about as many pairs.
PatternSource Planned(const SeenRow& r, const BlockwiseOptions& o) {
  PatternSource source =
      BandSource(r.Nq, r.Nk, PatternBuilder::kUnbounded, PatternBuilder::kUnbounded, r.lengths);
  source.visible_pairs /= static_cast<double>(o.num_blocks);
  source.visible_tiles /= static_cast<double>(o.num_blocks);
  source.is_counted = false;
  return source;
}

HeadParts Sees(const SeenRow& r, const BlockwiseOptions& o, const HostInts& sent) {
  if (r.Nk == 0) return AllHeads(WindowSource(r.Nq, r.Nk, {}, r.lengths));
  const int64_t H = r.problem.H;
  if (r.is_planned && (sent.is_sent() || H * o.num_blocks > kCounted)) {
    return AllHeads(Planned(r, o));
  }
  HeadParts heads;
  if (sent.is_sent()) {
    for (int64_t h = 0; h < sent.Heads(r.p); ++h) {
      heads.push_back({BlockwiseSource(r, sent.Head(r.p, r.b, h))});
    }
    return heads;
  }
  std::vector<int32_t> perm;
  for (int64_t h = 0; h < H; ++h) {
    std::vector<int32_t> next = StandardPerm(o, H, h);
    heads.push_back(next == perm ? heads.back() : PatternParts{BlockwiseSource(r, next)});
    perm = std::move(next);
  }
  return heads;
}

class Blockwise : public MethodOf<BlockwiseOptions> {
 public:
  Blockwise()
      : MethodOf(
            {.id = "blockwise",
             .summary = "One key block for every query block, permuted by head",
             .reference = "Qiu et al. 2019 (arXiv 1911.02972), section 3",
             .cost = "2 (D + Dv) FLOPs per visible pair, n^2 / nb pairs; memory O(n)",
             .inputs = PatternInputs(
                 {}, {{"perm", "[H,nb] or [1,nb]", "int32",
                       "the key block of every query block, a permutation of 0..nb-1; default: "
                       "identity_heads heads in place, the others shifted"}}),
             .outputs = PatternOutputs(),
             .support = PatternSupport()},
            WithPatternOptions<BlockwiseOptions>({
                IntOption<BlockwiseOptions>("num_blocks", &BlockwiseOptions::num_blocks, {.min = 1},
                                            "2", "nb, at most Nk"),
                IntOption<BlockwiseOptions>(
                    "identity_heads", &BlockwiseOptions::identity_heads, {.min = 0},
                    "max(1, H - (nb - 1) max(1, floor(H/6 + 1/2)))",
                    "heads whose blocks see themselves, at most H; no effect with perm"),
            })) {}

 protected:
  void CheckProblem(const ProblemShape& problem, const BlockwiseOptions& o,
                    Reasons* reasons) const override {
    CheckPatternTensors(problem, reasons);
    if (problem.Knows("q") && o.identity_heads.value_or(0) > problem.H) {
      reasons->Invalid("identity_heads must be in 0..H = 0..", problem.H, ", got ",
                       *o.identity_heads);
    }
    if (o.num_blocks < 1) return;  // told by its range
    CheckBlocks(problem, o, reasons);
    if (problem.Knows("q") && problem.H > 0 && o.num_blocks > kMostBlocks / problem.H) {
      reasons->Invalid("num_blocks must be at most ", kMostBlocks,
                       " / H = ", kMostBlocks / problem.H, ", got ", o.num_blocks);
    }
    CheckSize(
        problem, "perm",
        {.shape = "[H,nb] or [1,nb]", .axis = 1, .letter = "nb = num_blocks", .size = o.num_blocks},
        reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const BlockwiseOptions& o) const override {
    return ForSequences(ops, in, info().inputs, [&](const Inputs& sequences) {
      const HostInts sent(ops, sequences, "perm", 3);
      sent.CheckPermutations(ops, info().id);
      return PatternAttend(ops, sequences, o, [&](const SeenRow& r) { return Sees(r, o, sent); });
    });
  }

 private:
  static void CheckBlocks(const ProblemShape& problem, const BlockwiseOptions& o,
                          Reasons* reasons) {
    const View* ends = problem.Find("cu_seqlens_k");
    if (ends == nullptr || ends->shape.rank != 1) {
      if (!problem.Knows("k") || problem.Nk == 0 || o.num_blocks <= problem.Nk) return;
      reasons->Invalid("num_blocks must be in 1..Nk = 1..", problem.Nk, ", got ", o.num_blocks);
      return;
    }
    for (int64_t s = 0; s + 1 < ends->shape[0] && ends->data != nullptr; ++s) {
      const int64_t n = problem.Int("cu_seqlens_k", s + 1, 0) - problem.Int("cu_seqlens_k", s, 0);
      if (n <= 0 || o.num_blocks <= n) continue;
      reasons->Invalid("num_blocks must be in 1..Nk = 1..", n, " of sequence ", s, ", got ",
                       o.num_blocks);
      return;
    }
  }
};

}  // namespace

ATTND_METHOD(blockwise, Blockwise)

}  // namespace attnd
