#include "kernels/methods/linear/scan_split.h"

#include "kernels/pattern/base/window.h"

namespace attnd {
namespace {

ScanSeq SeqOf(const ProblemShape& p, const Lengths& lengths, bool causal) {
  const int64_t offset = p.Nk - p.Nq;
  const int64_t last = causal ? offset : kUnbounded;
  return {.nq = lengths.nq,
          .nk = lengths.nk,
          .offset = offset,
          .visible_pairs = BandPairs(lengths, kUnbounded, last)};
}

// `count` sequences of a scan, one entry each. For a plan two entries stand for them, since a
// composed scan makes a problem of each, and one entry would be planned as one problem.
void AddSeqs(ScanSeq seq, int64_t count, bool is_planned, std::vector<ScanSeq>* seqs) {
  if (is_planned && count > 2) {
    seq.count = count - 1;
    seqs->push_back(seq);
    seq.count = count = 1;
  }
  seqs->insert(seqs->end(), static_cast<size_t>(count), seq);
}

// A composed scan is planned in steps, for each of its sequences at each length of any of them.
size_t MostPlanned(const Ops& ops, size_t most) {
  constexpr size_t kMostComposed = 24;
  return ops.Declines(ScanArgs()) ? kMostComposed : most;
}

// What a plan describes; a run describes all, and does not ask the device.
size_t MostParts(Ops& ops) {
  return ops.stream().is_dry() ? MostPlanned(ops, kPlannedProblems) : kPlannedProblems;
}

}  // namespace

ScanSeqs WholeScanSeqs(Ops& ops, const Inputs& in, bool causal) {
  const bool is_planned = ops.stream().is_dry();
  ScanSeqs seqs;
  for (const ProblemShape& p : in.problems) {
    std::vector<ScanSeq>& of_problem = seqs.emplace_back();
    const auto groups =
        is_planned ? SeqGroupsOf(p, MostPlanned(ops, kPlannedSeqs)) : SeqRunsOf(p, false);
    if (AreRounded(groups)) ops.EstimatePairs();
    for (const SeqGroup& g : groups) {
      AddSeqs(SeqOf(p, g.lengths, causal), g.count, is_planned, &of_problem);
    }
  }
  return seqs;
}

ScanSplit::ScanSplit(Ops& ops, const Inputs& in, bool causal)
    : SeqSplit(ops, in, MostParts(ops)), in_(in) {
  for (const Part& part : parts()) {
    const ScanSeq seq = SeqOf(in.problems[part.problem], part.lengths, causal);
    AddSeqs(seq, part.count, ops.stream().is_dry(), &seqs_.emplace_back());
  }
}

Tensor ScanSplit::JoinState(const Tensor& state) const {
  if (state.empty()) return state;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < state.size(); ++i) {
    const size_t problem = parts()[i].problem;
    if (problem < shapes.size()) continue;
    Shape& shape = shapes.emplace_back(state[i].shape);
    shape.dims[0] = in_.problems[problem].B;
  }
  return Join(state, shapes);
}

}  // namespace attnd
