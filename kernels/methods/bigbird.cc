// BigBird (Zaheer et al. 2020, section 2 and appendix D). Blocks of `block_size` positions; query
// block t of head h sees every block if t is one of the global ones (global_left first,
// global_right last), else the global ones, |t - c| <= (window_blocks - 1) / 2 and rand_blocks[h, t
// - left, :]. etc: the first num_global_tokens see all and are seen by all, the rule holds for the
// positions behind them. If causal, and j <= i. Scores, tensors and shapes as in softmax; Nq = Nk =
// N.
#include "kernels/ops/pattern_draws.h"
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

enum class Variant : uint8_t { kItc, kEtc };
enum class RandPlan : uint8_t { kUniform, kPrefix };

struct BigBirdOptions : PatternOptions {
  Variant variant = Variant::kItc;
  int64_t block_size = 64, window_blocks = 3;
  std::optional<int64_t> num_random_blocks;          // unset: 3
  std::optional<int64_t> global_left, global_right;  // unset: 1, of etc 0
  int64_t num_global_tokens = 0;
  RandPlan rand_plan = RandPlan::kUniform;
  int64_t prefix_tokens = 1024;
  uint64_t seed = 0;

  int64_t left() const { return global_left.value_or(variant == Variant::kItc ? 1 : 0); }
  int64_t right() const { return global_right.value_or(variant == Variant::kItc ? 1 : 0); }
  int64_t half_window() const { return (window_blocks - 1) / 2; }
  // Of N positions.
  int64_t Blocks(int64_t N) const {
    const int64_t n = std::max<int64_t>(N - num_global_tokens, 0);
    return n / block_size + (n % block_size != 0 ? 1 : 0);
  }
  // Query blocks that have random ones.
  int64_t InnerRows(int64_t N) const {
    const int64_t nb = Blocks(N);
    return nb - std::min(left(), nb) - std::min(right(), nb - std::min(left(), nb));
  }
};

constexpr Lacks kLacks{.cross = true};

// Candidates are the blocks that are neither global nor in the window of t and, of a prefix, begin
// in it.
BlockDraw DrawOf(const BigBirdOptions& o, int64_t N, int64_t slots) {
  BlockDraw draw{.blocks = o.Blocks(N), .left = o.left(), .right = o.right(), .slots = slots};
  draw.half_window = std::min(o.half_window(), draw.blocks);
  draw.end = draw.blocks - draw.right;
  draw.seed = o.seed;
  if (o.rand_plan == RandPlan::kPrefix) {
    const int64_t begun = o.prefix_tokens / o.block_size + (o.prefix_tokens % o.block_size != 0);
    draw.end = std::min(draw.end, begun);
  }
  return draw;
}

PatternSource Source(const SeenRow& r, const BigBirdOptions& o, std::span<const int32_t> random,
                     int64_t slots) {
  const int64_t nb = o.Blocks(r.Nk);
  return BigBirdSource(r, {.block = o.block_size,
                           .half_window = std::min(o.half_window(), nb),
                           .left = std::min(o.left(), nb),
                           .right = std::min(o.right(), nb),
                           .globals = o.num_global_tokens,
                           .random = random,
                           .r = slots,
                           .multiset = o.duplicates == Duplicates::kMultiset});
}

HeadParts Sees(const SeenRow& r, const BigBirdOptions& given, const HostInts& sent) {
  BigBirdOptions o = given;
  o.block_size = std::min(o.block_size, std::max<int64_t>(r.Nk, 1));
  HeadParts heads;
  if (sent.is_sent()) {
    for (int64_t h = 0; h < sent.Heads(r.p); ++h) {
      heads.push_back({Source(r, o, sent.Head(r.p, r.b, h), sent.RowShape(r.p)[2])});
    }
    return heads;
  }
  // More than all blocks cannot be drawn.
  const int64_t slots = std::min(o.num_random_blocks.value_or(3), o.Blocks(r.Nk));
  const bool draws = slots > 0 && o.InnerRows(r.Nk) > 0;
  for (int64_t h = 0; h < (draws ? r.problem.H : 1); ++h) {
    std::vector<int32_t> drawn;
    if (draws && !r.is_planned) drawn = DrawnBlocks(DrawOf(o, r.Nk, slots), h);
    heads.push_back({Source(r, o, drawn, slots)});
    if (r.is_planned) break;  // all heads are planned alike
  }
  return heads;
}

class BigBirdMethod : public MethodOf<BigBirdOptions> {
 public:
  BigBirdMethod()
      : MethodOf(
            {.id = "bigbird",
             .summary = "Windows, global and random keys, in blocks",
             .reference = "Zaheer et al. 2020 (arXiv 2007.14062), section 2 and appendix D",
             .cost = "2 (D + Dv) FLOPs per visible pair, n b (window + left + right + r) pairs; "
                     "memory O(n)",
             .inputs = PatternInputs(
                 kLacks, {{"rand_blocks", "[H,T,r] or [1,T,r]", "int32",
                           "random blocks of every query block that is not global, T = nb - "
                           "global_left - global_right; -1: none; default: drawn"}}),
             .outputs = PatternOutputs(kLacks),
             .support = PatternSupport(kLacks)},
            WithPatternOptions<BigBirdOptions>(
                {EnumOption<BigBirdOptions>("variant", &BigBirdOptions::variant, {"itc", "etc"},
                                            "itc",
                                            "global blocks among the others, or tokens before "
                                            "them"),
                 IntOption<BigBirdOptions>("block_size", &BigBirdOptions::block_size, {.min = 1},
                                           "64", "positions of a block"),
                 IntOption<BigBirdOptions>("window_blocks", &BigBirdOptions::window_blocks,
                                           {.min = 1}, "3", "odd"),
                 IntOption<BigBirdOptions>("num_random_blocks", &BigBirdOptions::num_random_blocks,
                                           {.min = 0}, "3", "r; of rand_blocks where that is sent"),
                 IntOption<BigBirdOptions>("global_left", &BigBirdOptions::global_left, {.min = 0},
                                           "1, of etc 0", "global blocks at the left"),
                 IntOption<BigBirdOptions>("global_right", &BigBirdOptions::global_right,
                                           {.min = 0}, "1, of etc 0", "global blocks at the right"),
                 IntOption<BigBirdOptions>("num_global_tokens", &BigBirdOptions::num_global_tokens,
                                           {.min = 0}, "0", "of etc: at most N"),
                 EnumOption<BigBirdOptions>("rand_plan", &BigBirdOptions::rand_plan,
                                            {"uniform", "prefix"}, "uniform",
                                            "draws from all blocks, or from the first ones"),
                 IntOption<BigBirdOptions>("prefix_tokens", &BigBirdOptions::prefix_tokens,
                                           {.min = 0}, "1024",
                                           "where blocks of a prefix begin; no effect on uniform"),
                 SeedOption<BigBirdOptions>(&BigBirdOptions::seed)},
                kLacks)) {}

 protected:
  void CheckProblem(const ProblemShape& problem, const BigBirdOptions& o,
                    Reasons* reasons) const override {
    CheckPatternTensors(problem, kLacks, reasons);
    if (o.window_blocks > 0 && o.window_blocks % 2 == 0) {
      reasons->Invalid("window_blocks must be odd, got ", o.window_blocks);
    }
    CheckVariant(problem, o, reasons);
    CheckDraw(problem, o, reasons);
    const View* sent = problem.Find("rand_blocks");
    if (sent == nullptr) return;
    if (problem.Find("cu_seqlens_q") != nullptr) {
      reasons->Invalid("rand_blocks must not be sent with cu_seqlens_q, got ",
                       ToString(sent->shape));
    }
    if (sent->shape.rank != 3) return;
    if (o.num_random_blocks.value_or(sent->shape[2]) != sent->shape[2]) {
      reasons->Invalid("num_random_blocks must be that of rand_blocks, ", sent->shape[2], ", got ",
                       *o.num_random_blocks);
    }
    if (o.block_size < 1 || !problem.Knows("q")) return;
    CheckSize(problem, "rand_blocks",
              {.shape = "[H,T,r]",
               .axis = 1,
               .letter = "T = nb - global_left - global_right",
               .size = o.InnerRows(problem.Nq)},
              reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const BigBirdOptions& o) const override {
    return ForSequences(ops, in, info().inputs, [&](const Inputs& sequences) {
      const HostInts sent(ops, sequences, "rand_blocks", 4);
      sent.CheckRange(ops, info().id, [&](size_t p) {
        const int64_t last = o.Blocks(sequences.problems[p].Nk) - 1;
        return HostInts::Range{-1, last, absl::StrCat("-1..nb-1 = -1..", last)};
      });
      return PatternAttend(ops, sequences, o, [&](const SeenRow& r) { return Sees(r, o, sent); });
    });
  }

 private:
  // What is drawn, of all heads: small blocks of long sequences would take gigabytes.
  static void CheckDraw(const ProblemShape& problem, const BigBirdOptions& o, Reasons* reasons) {
    constexpr int64_t kMostDrawn = int64_t{1} << 21;
    if (problem.Find("rand_blocks") != nullptr || !problem.Knows("q") || o.block_size < 1) return;
    const int64_t nb = o.Blocks(problem.Nq), rows = o.InnerRows(problem.Nq) * problem.H;
    const int64_t slots = std::min(o.num_random_blocks.value_or(3), nb);
    if (rows <= 0 || slots <= kMostDrawn / rows) return;
    reasons->Invalid("num_random_blocks must be at most ", kMostDrawn,
                     " / (H T) = ", kMostDrawn / rows, " where they are drawn, got ", slots);
  }

  static void CheckVariant(const ProblemShape& problem, const BigBirdOptions& o, Reasons* reasons) {
    if (o.variant == Variant::kEtc) {
      for (const auto& [name, blocks] :
           {std::pair("global_left", o.left()), std::pair("global_right", o.right())}) {
        if (blocks > 0) reasons->Invalid(name, " must be 0 when variant is etc, got ", blocks);
      }
      if (problem.Knows("q") && o.num_global_tokens > problem.Nq) {
        reasons->Invalid("num_global_tokens must be in 0..N = 0..", problem.Nq, ", got ",
                         o.num_global_tokens);
        return;
      }
      const View* ends = problem.Find("cu_seqlens_q");
      const int64_t count = ends == nullptr || ends->shape.rank != 1 ? 0 : ends->shape[0] - 1;
      for (int64_t s = 0; s < count && ends->data != nullptr; ++s) {
        const int64_t n = problem.Int("cu_seqlens_q", s + 1, 0) - problem.Int("cu_seqlens_q", s, 0);
        if (n <= 0 || o.num_global_tokens <= n) continue;
        reasons->Invalid("num_global_tokens must be in 0..N = 0..", n, " of sequence ", s, ", got ",
                         o.num_global_tokens);
        return;
      }
    } else if (o.num_global_tokens > 0) {
      reasons->Invalid("num_global_tokens must be 0 unless variant is etc, got ",
                       o.num_global_tokens);
    }
  }
};

}  // namespace

ATTND_METHOD(bigbird, BigBirdMethod)

}  // namespace attnd
