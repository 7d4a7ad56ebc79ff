#include "kernels/methods/pattern/seqs.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/stopped.h"
#include "kernels/method/seq_groups.h"
#include "kernels/methods/pattern/data.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

// Parts of one sequence, heads included.
struct SeqParts {
  std::vector<AttendSeq> parts;
  PairTotal pairs;
  int64_t host_bytes = 0;  // of the entries of `parts`, about
};

class SeqMaker {
 public:
  SeqMaker(Ops& ops, const Inputs& in, const PartsOfSeq& parts_of)
      : ops_(ops),
        parts_of_(parts_of),
        ids_q_(ops, in, "segment_ids_q", 2),
        ids_k_(ops, in, "segment_ids_kv", 2) {}

  bool has_segments() const { return ids_q_.is_sent(); }
  // For a plan: `seqs` share the sources that it may describe.
  void Share(size_t seqs) {
    most_sources_ = std::max<int64_t>(kPlannedSources / static_cast<int64_t>(seqs), 1);
  }

  SeqParts Make(const PatternSeq& of, const ProblemShape& problem, size_t p, int64_t b) {
    // Heads with nothing to see are alike: one is described.
    ProblemShape one_head = problem;
    one_head.H = 1;
    const bool is_empty = of.lengths.nq == 0 || of.lengths.nk == 0;
    SeenSeq seq{of, is_empty ? one_head : problem, p, b};
    seq.is_planned = ops_.stream().is_dry();
    if (seq.is_planned) seq.most_sources = most_sources_;
    seq.ids_q = ids_q_.OfSeq(seq.p, seq.b);
    seq.ids_k = ids_k_.OfSeq(seq.p, seq.b);
    const HeadParts heads = parts_of_(seq);
    SeqParts made;
    if (!ops_.status().ok()) return made;
    // A list takes up to three times its size while it grows.
    made.host_bytes = static_cast<int64_t>(
        heads[0].size() *
        (3 * sizeof(AttendSeq) +
         (heads.size() > 1 ? heads.size() * sizeof(std::shared_ptr<Pattern>) : 0)));
    for (size_t part = 0; part < heads[0].size(); ++part) {
      std::vector<PatternSource> sources;
      for (const PatternParts& head : heads) {
        sources.push_back(seq.is_planned ? Planned(head[part], seq) : Segmented(head[part], seq));
      }
      made.parts.push_back(ops_.Seq(seq.lengths.nq, seq.lengths.nk, sources));
      made.parts.back().offset = seq.offset;
      // A mean over heads times their number is whole again once rounded.
      const double pairs = made.parts.back().visible_pairs * static_cast<double>(problem.H);
      made.pairs.known += std::round(pairs);
      if (const auto& count = made.parts.back().pair_count) made.pairs.counted.push_back(count);
    }
    return made;
  }

 private:
  // On a dry stream there are no ids.
  PatternSource Planned(const PatternSource& source, const SeenSeq& seq) const {
    PatternSource planned = source;
    if (!has_segments()) return planned;
    const HostCost segments = CostOf(seq.Nq, seq.Nk, {});
    planned.host.bytes += segments.bytes;
    planned.host.seconds += segments.seconds;
    planned.is_counted = planned.knows_pairs = false;
    return planned;
  }
  PatternSource Segmented(const PatternSource& source, const SeenSeq& seq) const {
    if (seq.ids_q.empty() && seq.ids_k.empty()) return source;
    const bool is_done = source.build != nullptr && source.spec == nullptr;
    return is_done ? source : WithinSegments(source, seq.ids_q, seq.ids_k);
  }

  Ops& ops_;
  const PartsOfSeq& parts_of_;
  const HostInts ids_q_, ids_k_;
  int64_t most_sources_ = kPlannedSources;
};

// The sequences of one problem of a plan, equal ones together.
std::vector<SeqGroup> PlannedSeqs(const Inputs& in, size_t p) {
  return SeqGroupsOf(in.problems[p], std::max<size_t>(kPlannedSeqs / in.problems.size(), 1));
}

// Calls `add` for each sequence. Describing a pattern costs much more than copying an entry, and
// most sequences are alike: with `is_alike` this one equals the one before.
template <class Add>
void AddSeqs(const ProblemShape& problem, bool may_differ, const Add& add) {
  Lengths before;
  int64_t offset_before = 0;
  for (int64_t b = 0; b < problem.B; ++b) {
    const Lengths lengths{problem.Int("q_lengths", b, problem.Nq),
                          problem.Int("kv_lengths", b, problem.Nk)};
    const int64_t offset = problem.Int("causal_offset", b, problem.Nk - problem.Nq);
    const bool is_alike = b > 0 && !may_differ && before.nq == lengths.nq &&
                          before.nk == lengths.nk && offset_before == offset;
    if (!add(SeqGroup{lengths, offset}, b, is_alike)) return;
    before = lengths;
    offset_before = offset;
  }
}

}  // namespace

PatternSeqs SeqsOf(Ops& ops, const Inputs& in, bool causal, const std::vector<bool>& seqs_differ,
                   const PartsOfSeq& parts_of) {
  PatternSeqs seqs;
  SeqMaker maker(ops, in, parts_of);
  // The values of refused index tensors must not be used as indices.
  for (size_t p = 0; p < in.problems.size() && ops.status().ok(); ++p) {
    const ProblemShape& problem = in.problems[p];
    PairTotal pairs;
    SeqParts made;
    const bool may_differ = maker.has_segments() || (!seqs_differ.empty() && seqs_differ[p]);
    bool shares_pattern = true;  // sequences of a group do
    const auto add = [&](const SeqGroup& group, int64_t b, bool is_alike) {
      const Work before = ops.stream().work();
      if (!is_alike) {
        const PatternTuning& tuning = ops.stream().device().info().patterns;
        made = maker.Make({problem.Nq, problem.Nk, group.lengths, group.offset, causal, {tuning}},
                          problem, p, b);
      }
      if (ops.stream().is_dry()) {
        ops.stream().work().Repeat(before, may_differ ? group.count : 1);
        ops.stream().work().host_bytes += made.host_bytes * group.count;
      }
      if (CheckPoint()) ops.Fail(StoppedStatus());
      if (!ops.status().ok()) return false;
      seqs.parts.resize(std::max(seqs.parts.size(), made.parts.size()));
      for (size_t part = 0; part < made.parts.size(); ++part) {
        seqs.parts[part].resize(in.problems.size());
        seqs.parts[part][p].push_back(AttendSeq(made.parts[part]));
        AttendSeq& added = seqs.parts[part][p].back();
        added.count = group.count;
        if (shares_pattern) continue;
        added.patterns *= group.count;
        added.pattern_tiles *= static_cast<double>(group.count);
        added.pattern_bytes *= group.count;
      }
      PairTotal more = made.pairs;
      more.known *= static_cast<double>(group.count);
      pairs += more;
      return true;
    };
    if (ops.stream().is_dry()) {
      const std::vector<SeqGroup> groups = PlannedSeqs(in, p);
      if (AreRounded(groups)) ops.EstimatePairs();
      maker.Share(groups.size() * in.problems.size());
      // A group of several may hold lengths that were rounded.
      shares_pattern = !may_differ && groups.size() == 1;
      for (const SeqGroup& group : groups) {
        if (!add(group, 0, /*is_alike=*/false)) break;
      }
    } else {
      AddSeqs(problem, may_differ, add);
    }
    seqs.visible_pairs.push_back(pairs);
  }
  return seqs;
}

}  // namespace attnd
