#include "kernels/method/seq_groups.h"

#include <algorithm>
#include <tuple>

#include "kernels/core/integer.h"

namespace attnd {
namespace {

auto Place(const SeqGroup& g) {
  return std::tuple(g.lengths.nq, g.lengths.nk, g.offset, g.mem, g.cmem);
}

constexpr const char* kLengths[] = {"q_lengths", "kv_lengths", "mem_lengths", "cmem_lengths"};

std::vector<SeqGroup> Merged(std::vector<SeqGroup> groups) {
  std::sort(groups.begin(), groups.end(),
            [](const SeqGroup& a, const SeqGroup& b) { return Place(a) < Place(b); });
  size_t kept = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (kept > 0 && Place(groups[kept - 1]) == Place(groups[g])) {
      groups[kept - 1].count += groups[g].count;
    } else {
      groups[kept++] = groups[g];
    }
  }
  groups.resize(kept);
  return groups;
}

std::vector<SeqGroup> SeqsOf(const ProblemShape& problem) {
  const auto column = [&](const char* name, int64_t absent) {
    return [view = problem.Find(name), absent](int64_t b) {
      return view == nullptr || view->data == nullptr ? absent : IntAt(*view, b);
    };
  };
  const auto nq = column("q_lengths", problem.Nq), nk = column("kv_lengths", problem.Nk);
  const auto offset = column("causal_offset", problem.Nk - problem.Nq);
  const auto mem = column("mem_lengths", MemoryRows(problem, "mem_k"));
  const auto cmem = column("cmem_lengths", MemoryRows(problem, "cmem_k"));
  std::vector<SeqGroup> seqs;
  seqs.reserve(static_cast<size_t>(problem.B));
  for (int64_t b = 0; b < problem.B; ++b) {
    seqs.push_back(
        {.lengths = {nq(b), nk(b)}, .offset = offset(b), .mem = mem(b), .cmem = cmem(b)});
  }
  return seqs;
}

// Whether lengths or offsets were sent, so that sequences may differ.
bool SeqsDiffer(const ProblemShape& problem) {
  const auto has_values = [&](const char* name) {
    const View* view = problem.Find(name);
    return view != nullptr && view->data != nullptr;
  };
  return has_values("causal_offset") ||
         std::any_of(std::begin(kLengths), std::end(kLengths), has_values);
}

SeqGroup WholeSeqs(const ProblemShape& problem) {
  return {.lengths = {problem.Nq, problem.Nk},
          .offset = problem.Nk - problem.Nq,
          .count = problem.B,
          .mem = MemoryRows(problem, "mem_k"),
          .cmem = MemoryRows(problem, "cmem_k")};
}

std::vector<SeqGroup> InTwo(std::vector<SeqGroup> groups) {
  if (groups.size() != 1 || groups[0].count < 2) return groups;
  SeqGroup last = groups[0];
  last.count = 1;
  --groups[0].count;
  groups.push_back(last);
  return groups;
}

}  // namespace

bool AreRounded(const std::vector<SeqGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const SeqGroup& g) { return g.is_rounded; });
}

int64_t MemoryRows(const ProblemShape& problem, absl::string_view name) {
  const View* view = problem.Find(name);
  return view == nullptr || view->shape.rank != 4 ? 0 : view->shape[2];
}

Lengths OfSameTokens(const ProblemShape& problem, Lengths lengths) {
  const bool follows = problem.Nq == problem.Nk && problem.Find("q_lengths") == nullptr;
  if (follows) lengths.nq = std::min(lengths.nq, lengths.nk);
  return lengths;
}

bool HasLengths(const ProblemShape& problem) {
  return std::any_of(std::begin(kLengths), std::end(kLengths),
                     [&](const char* name) { return problem.Find(name) != nullptr; });
}

std::vector<SeqGroup> Alike(std::vector<SeqGroup> seqs, size_t most, const Lengths& largest) {
  seqs = Merged(std::move(seqs));
  int64_t mem = 0, cmem = 0;
  for (const SeqGroup& g : seqs) {
    mem = std::max(mem, g.mem);
    cmem = std::max(cmem, g.cmem);
  }
  // Starts near the unit that is needed: smaller units would leave too many groups.
  int64_t unit = 1;
  const int64_t longest = std::max({largest.nq, largest.nk, mem, cmem});
  while (longest / unit > 4 * static_cast<int64_t>(most)) unit *= 2;
  for (; seqs.size() > most; unit *= 2) {
    for (SeqGroup& g : seqs) {
      g.lengths.nq = std::min(RoundUp(g.lengths.nq, unit), largest.nq);
      g.lengths.nk = std::min(RoundUp(g.lengths.nk, unit), largest.nk);
      g.offset = RoundUp(g.offset, unit);
      g.mem = std::min(RoundUp(g.mem, unit), mem);
      g.cmem = std::min(RoundUp(g.cmem, unit), cmem);
      g.is_rounded = true;
    }
    seqs = Merged(std::move(seqs));
  }
  return InTwo(std::move(seqs));
}

std::vector<SeqGroup> SeqGroupsOf(const ProblemShape& problem, size_t most) {
  if (!SeqsDiffer(problem)) return {WholeSeqs(problem)};
  return Alike(SeqsOf(problem), most, {problem.Nq, problem.Nk});
}

std::vector<SeqGroup> SeqRunsOf(const ProblemShape& problem, bool is_planned, size_t most) {
  if (!SeqsDiffer(problem)) return {WholeSeqs(problem)};
  if (is_planned) {
    std::vector<SeqGroup> equal = Merged(SeqsOf(problem));
    return equal.size() == 1 ? equal : Alike(std::move(equal), most, {problem.Nq, problem.Nk});
  }
  std::vector<SeqGroup> runs;
  for (const SeqGroup& seq : SeqsOf(problem)) {
    if (!runs.empty() && Place(runs.back()) == Place(seq)) {
      ++runs.back().count;
    } else {
      runs.push_back(seq);
    }
  }
  return runs;
}

}  // namespace attnd
