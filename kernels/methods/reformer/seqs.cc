#include "kernels/methods/reformer/seqs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"
#include "kernels/method/seq_groups.h"
#include "kernels/methods/pattern/heads.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

using O = ReformerOptions;

// What a sequence of n rows sees.
struct Windows {
  bool is_hashed = false;
  int64_t whole = 0;  // how many slots show each key of a window that reaches all chunks
  bool has_rest = false;
  int64_t lo = 0, hi = 0;  // of the rest of the window: ReformerRounds

  // Windows over all chunks: of the one round that is not hashed, of all rounds together, or of
  // each, since buckets differ.
  int64_t WholeParts(const O& o) const {
    if (whole == 0) return 0;
    return is_hashed && !o.attend_across_buckets ? o.n_hashes : 1;
  }
  int64_t Parts(const O& o) const { return WholeParts(o) + (has_rest ? o.n_hashes : 0); }
};

Windows WindowsOf(int64_t n, const O& o) {
  if (!IsHashed(n, o)) return {.whole = 1};
  constexpr int64_t kMost = int64_t{1} << 60;
  const int64_t C = CeilDiv(n, o.chunk_len);
  const bool is_flat = o.lookback == Lookback::kFlat;
  const int64_t chunks = is_flat ? o.n_hashes * C : C;
  const int64_t before = std::min(o.chunks_before, kMost);
  const int64_t width = before + 1 + std::min(o.chunks_after, kMost);
  Windows w{.is_hashed = true, .whole = width / chunks};
  if (o.dedup) {
    // 2 C - 1 chunks in a row hold all of some round, which are all keys.
    const bool holds_round = is_flat && o.attend_across_buckets && width >= 2 * C - 1;
    w.whole = w.whole > 0 || holds_round ? 1 : 0;
    w.has_rest = w.whole == 0;
  } else {
    w.has_rest = width % chunks > 0;
    // Every round shows the slots of all rounds, or of its own alone.
    if (o.attend_across_buckets) w.whole *= is_flat ? o.n_hashes * o.n_hashes : o.n_hashes;
  }
  w.lo = -(before % chunks);
  w.hi = w.lo + width % chunks - 1;
  const int64_t others = chunks - C;  // of other rounds
  if (!o.attend_across_buckets && w.lo >= -others && w.hi <= others && others > 0) {
    // Of a window that does not come around to its round again, the chunks of that round.
    w.lo = std::max(w.lo, 1 - C);
    w.hi = std::min(w.hi, C - 1);
    if (w.lo > w.hi) w.has_rest = false;  // all of other rounds
    const bool holds_round = w.lo == 1 - C && w.hi == C - 1;
    if (o.dedup && w.has_rest && holds_round) w.whole = 1, w.has_rest = false;
  }
  return w;
}

// All keys but the token itself; of one bucket, and not of one in an earlier round.
struct WholeKeys {
  int64_t N = 0;
  bool causal = false;
  int64_t times = 1;  // slots that show a key
  bool in_buckets = false;
  ReformerHeadPtr head;  // with in_buckets, but not in a plan
  int64_t round = 0;
};

PatternSpec SpecOf(const WholeKeys& w) {
  PatternSpec spec{.Nq = w.N, .Nk = w.N};
  spec.visible = w.causal ? Band(kUnbounded, -1) : Not(Band(0, 0));
  if (w.head != nullptr) {
    const ReformerRounds& r = w.head->rounds();
    for (int64_t round = r.unique ? 0 : w.round; round <= w.round; ++round) {
      std::vector<int32_t> ids(r.buckets.begin() + round * r.n,
                               r.buckets.begin() + (round + 1) * r.n);
      ids.resize(static_cast<size_t>(w.N), -1);
      const Visible same = SameSegment(ids, ids);
      spec.visible = round < w.round ? AndNot(spec.visible, same) : And(spec.visible, same);
    }
  }
  if (w.times > 1) {
    spec.key_bias.assign(static_cast<size_t>(w.N), std::log(static_cast<float>(w.times)));
  }
  return spec;
}

PatternSource WholeSource(const WholeKeys& w, const Lengths& rows) {
  const auto nq = static_cast<double>(rows.nq), nk = static_cast<double>(rows.nk);
  PatternCounts counts{.pairs = w.causal ? nq * (nq - 1) / 2 : nq * (nk - 1)};
  const auto q_tiles = static_cast<double>(Tiles(rows.nq));
  counts.tiles = q_tiles * (w.causal ? (q_tiles + 1) / 2 : static_cast<double>(Tiles(rows.nk)));
  if (!w.in_buckets) counts.runs_of_row = 3, counts.masks = 3, counts.slot_bytes = 0;
  if (w.times > 1) counts.slot_bytes += 8;
  if (w.in_buckets) counts.slot_bytes += 8 * (w.round + 1);
  PatternSource source = SourceOf(w.N, w.N, "reformer whole", w, counts, SpecOf);
  if (!w.in_buckets) return source;
  source.knows_pairs = false;
  constexpr double kPatternSeconds = 7e-6, kBucketsSeconds = 4e-7;  // of a tile in a round
  const double masks = counts.tiles * static_cast<double>(w.round + 1) * kBucketsSeconds;
  source.is_counted = false;
  source.host.seconds += kPatternSeconds + masks;
  source.mask_seconds = masks;
  return source;
}

// For a plan: pairs that a round shows where each row has `shown` of the other keys in its chunks,
// about: as if rows were hashed at random, and rounds independent of each other.
double PairsOfRound(const O& o, int64_t N, const Lengths& rows, double shown) {
  const auto others = static_cast<double>(std::max<int64_t>(rows.nk - 1, 1));
  double share = std::min(shown / others, 1.0);
  if (!o.attend_across_buckets) {
    double buckets = 1;
    for (const int64_t factor : BucketFactors(o, N)) buckets *= static_cast<double>(factor);
    share = std::min(share, 1 / buckets);
  }
  const auto rounds = static_cast<double>(o.n_hashes);
  // A round hides what earlier ones show: the mean of all.
  if (o.dedup) share = (1 - std::pow(1 - share, rounds)) / rounds;
  return static_cast<double>(rows.nq) * others * share / (o.causal ? 2 : 1);
}

// Makes the parts of one sequence after the other.
class SeqMaker {
 public:
  SeqMaker(Ops& ops, const O& o, const ReformerBuckets* buckets)
      : ops_(ops), o_(o), buckets_(buckets) {}

  // Of sequence b of problem p, or of any with these rows in a plan. Appends to `far_rows`.
  std::vector<AttendSeq> Make(const ProblemShape& problem, size_t p, int64_t b, const Lengths& rows,
                              std::vector<int32_t>* far_rows) {
    const Windows w = WindowsOf(rows.nk, o_);
    std::vector<ReformerHeadPtr> heads;
    self_slots_.clear();
    if (w.is_hashed) heads = Heads(problem, p, b, rows, w);
    const int64_t far = ops_.stream().is_dry() ? 0 : ReformerFarRows(problem, o_);
    for (int64_t h = 0; h < problem.H && far > 0; ++h) {
      std::vector<int32_t> of_head;
      if (w.has_rest && !heads.empty()) of_head = heads[h]->FarRows();
      of_head.resize(static_cast<size_t>(far), -1);
      far_rows->insert(far_rows->end(), of_head.begin(), of_head.end());
    }
    std::vector<AttendSeq> parts;
    for (int64_t i = 0; i < w.WholeParts(o_) && ops_.status().ok(); ++i) {
      const bool is_shared = !w.is_hashed || o_.attend_across_buckets;
      WholeKeys keys{.N = problem.Nk,
                     .causal = o_.causal,
                     .times = w.whole,
                     .in_buckets = !is_shared,
                     .round = i};
      std::vector<PatternSource> sources;
      // A plan has no heads: one source stands for all.
      for (size_t h = 0; h < std::max<size_t>(is_shared ? 1 : heads.size(), 1); ++h) {
        if (!is_shared && h < heads.size()) keys.head = heads[h];
        sources.push_back(WholeSource(keys, rows));
      }
      if (ops_.stream().is_dry() && !is_shared) {
        sources[0].visible_pairs =
            PairsOfRound(o_, problem.Nq, rows, static_cast<double>(rows.nk - 1));
      }
      parts.push_back(Seq(problem, rows, std::move(sources), is_shared));
    }
    for (int64_t round = 0; w.has_rest && round < o_.n_hashes && ops_.status().ok(); ++round) {
      std::vector<PatternSource> sources;
      for (const ReformerHeadPtr& head : heads) {
        sources.push_back(ReformerRound(problem.Nk, head, round));
      }
      if (ops_.stream().is_dry()) {
        sources = {PlannedReformerRound(problem.Nk, Described(problem, rows, w))};
        const int64_t chunks = w.hi - w.lo + 1;
        sources[0].visible_pairs =
            PairsOfRound(o_, problem.Nq, rows, static_cast<double>(chunks * o_.chunk_len - 1));
      }
      parts.push_back(Seq(problem, rows, std::move(sources), /*is_shared=*/false));
    }
    return parts;
  }

  // Slots that show a row of head h to itself, in all rounds.
  int32_t SelfSlots(int64_t h, int64_t row) const {
    return self_slots_.empty() ? 1 : self_slots_[h][row];
  }

 private:
  ReformerRounds Described(const ProblemShape& problem, const Lengths& rows,
                           const Windows& w) const {
    return {.rounds = o_.n_hashes,
            .n = rows.nk,
            .queries = rows.nq,
            .chunk = o_.chunk_len,
            .lo = w.has_rest ? w.lo : 0,
            .hi = w.has_rest ? w.hi : 0,
            .flat = o_.lookback == Lookback::kFlat,
            .causal = o_.causal,
            .across = o_.attend_across_buckets,
            .unique = o_.dedup,
            .far_row = ReformerFarRows(problem, o_) > 0 ? problem.Nk : -1};
  }

  // None in a plan.
  std::vector<ReformerHeadPtr> Heads(const ProblemShape& problem, size_t p, int64_t b,
                                     const Lengths& rows, const Windows& w) {
    std::vector<ReformerHeadPtr> heads;
    const bool needs_order = w.has_rest || !o_.attend_across_buckets;
    for (int64_t h = 0; h < problem.H && !ops_.stream().is_dry(); ++h) {
      if (CheckPoint()) ops_.Fail(StoppedStatus());
      if (!ops_.status().ok()) return {};
      ReformerRounds rounds = Described(problem, rows, w);
      if (needs_order) {
        buckets_->Sort(p, b, h, &rounds);
        heads.push_back(std::make_shared<const ReformerHead>(std::move(rounds)));
      }
      if (o_.dedup) continue;
      std::vector<int32_t>& slots = self_slots_.emplace_back();
      if (w.has_rest) slots = heads.back()->SelfSlots();
      slots.resize(static_cast<size_t>(rows.nk), 0);
      const auto more = w.whole * (o_.attend_across_buckets ? 1 : o_.n_hashes);
      for (int32_t& count : slots) count = static_cast<int32_t>(Sum(count, more));
    }
    return heads;
  }
  static int64_t Sum(int64_t count, int64_t more) {
    return std::min<int64_t>(count + more, std::numeric_limits<int32_t>::max());
  }

  AttendSeq Seq(const ProblemShape& problem, const Lengths& rows,
                std::vector<PatternSource> sources, bool is_shared) {
    if (!ops_.status().ok()) return {};
    if (ops_.stream().is_dry() && !is_shared) {
      sources[0] = OfHeads(std::move(sources[0]), problem.H);
    }
    AttendSeq seq = ops_.Seq(rows.nq, rows.nk, sources);
    if (ops_.stream().is_dry()) {
      // A list takes up to three times its size while it grows.
      ops_.stream().work().host_bytes += static_cast<int64_t>(
          3 * sizeof(AttendSeq) + static_cast<size_t>(problem.H) * sizeof(seq.pattern));
    }
    return seq;
  }

  Ops& ops_;
  const O& o_;
  const ReformerBuckets* const buckets_;
  std::vector<std::vector<int32_t>> self_slots_;  // [H][n]; empty: one of each
};

}  // namespace

int64_t ReformerFarRows(const ProblemShape& p, const O& o) {
  if (!HasHashed(p, o) || p.Find("bias") != nullptr) return 0;
  const int64_t chunks = std::min(o.chunks_before, p.Nk) + std::min(o.chunks_after, p.Nk);
  const int64_t of_rounds = o.n_hashes * o.chunk_len;
  return chunks <= p.Nk / of_rounds ? chunks * of_rounds : 0;
}

int64_t ReformerPartsOf(const ProblemShape& p, const O& o) {
  int64_t parts = 1;
  ForEachKeyLength(p, [&](int64_t n) {
    parts = std::max(parts, WindowsOf(n, o).Parts(o));
    return true;
  });
  return parts;
}

namespace {

// The sequences of one problem: in a plan equal ones together.
std::vector<SeqGroup> GroupsOf(const Inputs& in, size_t p, bool is_dry) {
  const ProblemShape& problem = in.problems[p];
  if (is_dry) return SeqGroupsOf(problem, std::max<size_t>(kPlannedSeqs / in.problems.size(), 1));
  std::vector<SeqGroup> groups;
  for (const SeqGroup& run : SeqRunsOf(problem, /*is_planned=*/false)) {
    groups.insert(groups.end(), run.count, {run.lengths});
  }
  return groups;
}

}  // namespace

ReformerSeqs ReformerSeqsOf(Ops& ops, const Inputs& in, const O& o,
                            const ReformerBuckets* buckets) {
  ReformerSeqs seqs;
  SeqMaker maker(ops, o, buckets);
  const bool is_dry = ops.stream().is_dry();
  const float kHidden = -std::numeric_limits<float>::infinity();
  std::vector<Shape> shapes, whole, far_shapes;
  std::vector<std::vector<float>> self(in.problems.size());
  std::vector<std::vector<int32_t>> far(in.problems.size());
  for (size_t p = 0; p < in.problems.size(); ++p) {
    const ProblemShape& problem = in.problems[p];
    const int64_t heads = o.dedup || buckets == nullptr ? 1 : problem.H;
    shapes.push_back({problem.B, heads, problem.Nq});
    whole.push_back({problem.B, problem.H, problem.Nq});
    far_shapes.push_back({problem.B, problem.H, ReformerFarRows(problem, o)});
    if (!is_dry) far[p].reserve(static_cast<size_t>(far_shapes[p].size()));
    const std::vector<SeqGroup> groups = GroupsOf(in, p, is_dry);
    if (AreRounded(groups)) ops.EstimatePairs();
    auto parts = static_cast<size_t>(ReformerPartsOf(problem, o));
    for (const SeqGroup& group : groups) {  // a plan may have rounded lengths
      const auto own = WindowsOf(ReformerRows(problem, group.lengths).nk, o).Parts(o);
      parts = std::max(parts, static_cast<size_t>(own));
    }
    if (seqs.parts.size() < parts) seqs.parts.resize(parts);
    PairTotal pairs;
    for (size_t g = 0; g < groups.size(); ++g) {
      const Lengths rows = ReformerRows(problem, groups[g].lengths);
      const int64_t count = groups[g].count;
      const Work before = ops.stream().work();
      std::vector<AttendSeq> made = maker.Make(problem, p, static_cast<int64_t>(g), rows, &far[p]);
      if (CheckPoint()) ops.Fail(StoppedStatus());
      if (!ops.status().ok()) return {};
      if (is_dry) ops.stream().work().Repeat(before, count);
      pairs.known += static_cast<double>(rows.nq * problem.H * count);
      for (const AttendSeq& seq : made) {
        pairs.known += std::round(seq.visible_pairs * static_cast<double>(problem.H * count));
        if (seq.pair_count != nullptr) pairs.counted.push_back(seq.pair_count);
      }
      for (int64_t h = 0; h < heads && !is_dry; ++h) {
        for (int64_t i = 0; i < problem.Nq; ++i) {
          const int32_t slots = i < rows.nq ? maker.SelfSlots(h, i) : 0;
          self[p].push_back(slots == 0 ? kHidden
                                       : static_cast<float>(o.self_value + std::log(slots)));
        }
      }
      made.resize(parts);
      for (size_t i = 0; i < parts; ++i) {
        seqs.parts[i].resize(in.problems.size());
        made[i].count = count;
        made[i].patterns *= count;
        made[i].pattern_tiles *= static_cast<double>(count);
        made[i].pattern_bytes *= count;
        seqs.parts[i][p].push_back(std::move(made[i]));
      }
    }
    seqs.visible_pairs.push_back(pairs);
  }
  // All or none have some: requests of one batch agree.
  if (far_shapes[0].size() > 0) seqs.far_rows = ops.FromHost(far_shapes, std::move(far));
  seqs.self_lse = ops.Expand(ops.FromHost(shapes, self), whole);
  return seqs;
}

}  // namespace attnd
