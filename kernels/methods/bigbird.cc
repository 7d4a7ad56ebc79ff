// BigBird (Zaheer et al. 2020, section 2 and appendix D). Blocks of `block_size` positions; query
// block t of head h sees every block if t is one of the global ones (global_left first,
// global_right last), else the global ones, |t - c| <= (window_blocks - 1) / 2 and rand_blocks[h, t
// - left, :]. etc: the first num_global_tokens see all and are seen by all, the rule holds for the
// positions behind them. If causal, and j <= i. Scores, tensors and shapes as in softmax; Nq = Nk =
// N.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/draws.h"

namespace attnd {
namespace {

enum class Variant : uint8_t { kItc, kEtc };
enum class RandPlan : uint8_t { kUniform, kPrefix };

constexpr int64_t kUsualRandomBlocks = 3;

struct Options : PatternOptions {
  Variant variant = Variant::kItc;
  int64_t block_size = 64, window_blocks = 3;
  std::optional<int64_t> num_random_blocks;          // unset: kUsualRandomBlocks
  std::optional<int64_t> global_left, global_right;  // unset: 1, of etc 0
  int64_t num_global_tokens = 0;
  RandPlan rand_plan = RandPlan::kUniform;
  int64_t prefix_tokens = 1024;
  uint64_t seed = 0;
};

// Blocks at either end.
int64_t UsualGlobals(const Options& o, int64_t /*D*/) { return o.variant == Variant::kItc ? 1 : 0; }

// Blocks that one sequence may draw, of all heads: small blocks of long sequences would take
// gigabytes.
constexpr int64_t kMostDrawn = int64_t{1} << 21;

// The structure of N positions, without what is random. REQUIRES: block_size >= 1.
BigBird StructureOf(const Options& o, int64_t N) {
  const int64_t usual = UsualGlobals(o, 0);
  BigBird bird{.block = std::min(o.block_size, std::max<int64_t>(N, 1)),
               .globals = o.num_global_tokens,
               .multiset = o.duplicates == Duplicates::kMultiset};
  const int64_t nb = bird.Blocks(N);
  bird.half_window = std::min((o.window_blocks - 1) / 2, nb);
  bird.left = std::clamp<int64_t>(o.global_left.value_or(usual), 0, nb);
  bird.right = std::clamp<int64_t>(o.global_right.value_or(usual), 0, nb);
  return bird;
}

// More than all blocks cannot be drawn.
int64_t DrawnSlots(const Options& o, const BigBird& bird, int64_t N) {
  return std::min(o.num_random_blocks.value_or(kUsualRandomBlocks), bird.Blocks(N));
}

class BigBirdMethod : public PatternMethod<Options> {
 public:
  BigBirdMethod()
      : PatternMethod(
            {.id = "bigbird",
             .summary = "Windows, global and random keys, in blocks",
             .reference = "Zaheer et al. 2020 (arXiv 2007.14062), section 2 and appendix D",
             .cost = "2 (D + Dv) FLOPs per visible pair, n b (window + left + right + r) pairs; "
                     "memory O(n)",
             .unsupported = {.cross = true},
             .lists_keys = true,
             .inputs = {{"rand_blocks", "[H,T,r] or [1,T,r]", "int32",
                         "random blocks of every query block that is not global, T = nb - "
                         "global_left - global_right; -1: none; default: drawn"}},
             .options = {
                 EnumOption("variant", &Options::variant, {"itc", "etc"},
                            "global blocks among the others, or tokens before them"),
                 IntOption("block_size", &Options::block_size, {.min = 1}, "positions of a block"),
                 IntOption("window_blocks", &Options::window_blocks, {.min = 1}, "odd"),
                 IntOption(
                     "num_random_blocks", &Options::num_random_blocks, {.min = 0},
                     kUsualRandomBlocks,
                     "r, drawn from blocks of the padded N; of rand_blocks where that is sent"),
                 IntOption("global_left", &Options::global_left, {.min = 0}, "1, of etc 0",
                           "global blocks at the left", UsualGlobals),
                 IntOption("global_right", &Options::global_right, {.min = 0}, "1, of etc 0",
                           "global blocks at the right of the padded N", UsualGlobals),
                 IntOption("num_global_tokens", &Options::num_global_tokens, {.min = 0},
                           "of etc: at most N"),
                 ReadIf(
                     "blocks are drawn",
                     [](const Options& o, const ProblemShape& p) {
                       return p.Find("rand_blocks") == nullptr && o.num_random_blocks != 0;
                     },
                     EnumOption("rand_plan", &Options::rand_plan, {"uniform", "prefix"},
                                "draws from all blocks, or from the first ones")),
                 ReadIf(
                     "rand_plan is prefix",
                     [](const Options& o) { return o.rand_plan == RandPlan::kPrefix; },
                     IntOption("prefix_tokens", &Options::prefix_tokens, {.min = 0},
                               "where blocks of a prefix begin")),
                 SeedOption(&Options::seed)}}) {}

 protected:
  void CheckOwn(const ProblemShape& problem, const Options& o, Reasons* reasons) const override {
    if (o.window_blocks > 0 && o.window_blocks % 2 == 0) {
      reasons->Invalid("window_blocks must be odd, got ", o.window_blocks);
    }
    CheckVariant(problem, o, reasons);
    CheckApart(problem, "rand_blocks", "cu_seqlens_q", reasons);
    CheckListed(problem, "num_random_blocks", o.num_random_blocks, {"rand_blocks", 3}, reasons);
    if (o.block_size < 1 || !problem.HasSizesOf("q")) return;
    const BigBird bird = StructureOf(o, problem.Nq);
    const int64_t T = bird.InnerRows(problem.Nq);
    if (problem.Find("rand_blocks") == nullptr) {
      CheckLimit("num_random_blocks", DrawnSlots(o, bird, problem.Nq),
                 {kMostDrawn, "(H T)", problem.H * T, " where they are drawn"}, reasons);
    }
    CheckShape(problem, "rand_blocks", "[H,T,r]", {{"T", T, "nb - global_left - global_right"}},
               reasons);
  }

  void CheckIntegers(Ops& ops, const Inputs& in, const Options& o,
                     const Integers& ints) const override {
    ints["rand_blocks"].CheckRange(ops, info().id, [&](size_t p) {
      const int64_t N = in.problems[p].Nk, last = StructureOf(o, N).Blocks(N) - 1;
      return HostInts::Range{-1, last, absl::StrCat("-1..nb-1 = -1..", last)};
    });
  }

  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers& ints) const override {
    const HostInts& sent = ints["rand_blocks"];
    BigBird bird = StructureOf(o, seq.Nk);
    bird.r = sent.is_sent() ? sent.SeqShape(seq.p)[2] : DrawnSlots(o, bird, seq.Nk);
    // Drawn ones differ from each other and from all others of their row.
    bird.multiset = bird.multiset && sent.is_sent();
    const bool draws = !sent.is_sent() && bird.r > 0 && bird.InnerRows(seq.Nk) > 0;
    const int64_t heads = sent.is_sent() ? sent.Heads(seq.p) : draws ? seq.problem.H : 1;
    BlockDraw draw{.N = seq.Nk, .seed = o.seed};
    if (o.rand_plan == RandPlan::kPrefix) draw.prefix = o.prefix_tokens;
    const HeadRule rule{.count = heads, .differ_by_values = true, .bound = [&] {
                          return OfHeads(BigBirdSource(seq, bird), heads);
                        }};
    return EachHead(seq, rule, [&](int64_t head) {
      if (sent.is_sent()) {
        const std::span<const int32_t> own = sent.Head(seq.p, seq.b, head);
        bird.random = {own.begin(), own.end()};
      } else if (draws) {
        bird.random = DrawnBlocks(bird, draw, head);
      }
      return PatternParts{BigBirdSource(seq, bird)};
    });
  }

 private:
  static void CheckVariant(const ProblemShape& problem, const Options& o, Reasons* reasons) {
    const int64_t tokens = o.num_global_tokens;
    if (o.variant != Variant::kEtc) {
      if (tokens > 0) {
        reasons->Invalid("num_global_tokens must be 0 unless variant is etc, got ", tokens);
      }
      return;
    }
    for (const auto& [name, blocks] :
         {std::pair("global_left", o.global_left), std::pair("global_right", o.global_right)}) {
      if (blocks.value_or(0) <= 0) continue;
      reasons->Invalid(name, " must be 0 when variant is etc, got ", *blocks);
    }
    if (problem.HasSizesOf("q")) {
      CheckUpTo(problem, "num_global_tokens", tokens, {0, "N", problem.Nq, "cu_seqlens_q"},
                reasons);
    }
  }
};

}  // namespace

ATTND_METHOD(bigbird, BigBirdMethod)

}  // namespace attnd
