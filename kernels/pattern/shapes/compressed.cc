#include "kernels/pattern/shapes/compressed.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// p >= (t + 1) length - 1 is t < floor((p + 1) / length).
int64_t OffsetOf(const PatternSeq& seq, const CompressedSegments& s) {
  return seq.offset + (s.completed ? 1 : 0);
}

// Null: every pair.
Visible BeforeQuery(const PatternSeq& seq, const CompressedSegments& s) {
  if (!seq.causal) return nullptr;
  return BlockDiagonal(
      {.bq = s.length, .bk = s.rank, .lo = -BlockSteps::kAll, .hi = 0, .offset = OffsetOf(seq, s)});
}

PatternCounts CountsOf(const PatternSeq& seq, const CompressedSegments& s) {
  const int64_t nq = seq.lengths.nq, segments = CeilDiv(seq.lengths.nk, s.length);
  const auto rank = static_cast<double>(s.rank), length = static_cast<double>(s.length);
  const double rows = static_cast<double>(Tiles(nq));
  PatternCounts counts{.runs_of_row = 8, .slot_bytes = 0};
  counts.pairs = static_cast<double>(nq) * static_cast<double>(segments) * rank;
  if (seq.causal) {
    counts.pairs =
        SteppedSum(nq, OffsetOf(seq, s), s.length, 0, segments * s.length) / length * rank;
  }
  counts.tiles = std::min(rows * static_cast<double>(Tiles(s.Keys(seq.lengths.nk))),
                          counts.pairs / (kTile * kTile) + 2 * rows);
  return counts;
}

struct BesideWindow {
  PatternSeq seq;
  Window window;
  CompressedSegments segments;
};

PatternSpec SpecOf(const BesideWindow& of) {
  const auto& [seq, window, segments] = of;
  std::vector<int32_t> rows(static_cast<size_t>(segments.Keys(seq.lengths.nk)));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(seq.Nk));
  Visible compressed = BeforeQuery(seq, segments);
  if (compressed == nullptr) compressed = Band(kUnbounded, kUnbounded);
  PatternSpec spec{.Nq = seq.lengths.nq};
  spec.visible = Beside(Windows(window), Tiles(seq.lengths.nk), std::move(compressed));
  spec.key_rows = AppendedOrder(seq.lengths.nk, rows);
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  return spec;
}

}  // namespace

int64_t CompressedSegments::Keys(int64_t nk) const { return CeilDiv(nk, length) * rank; }

PatternSource CompressedSource(const PatternSeq& seq, const CompressedSegments& segments) {
  return SourceOf(seq.Nq, segments.Keys(seq.Nk), BeforeQuery(seq, segments),
                  CountsOf(seq, segments));
}

PatternSource WindowAndCompressed(const PatternSeq& seq, const Window& window,
                                  const CompressedSegments& segments) {
  const PatternSource near = WindowSource(seq.Nq, seq.Nk, window, seq.lengths);
  PatternCounts counts = CountsOf(seq, segments);
  counts.pairs += near.visible_pairs;
  counts.tiles += near.visible_tiles;
  counts.runs_of_row = 16;
  counts.slot_bytes = 16;
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "compressed", BesideWindow{seq, window, segments}, counts, SpecOf);
  source.host = CostOf(seq.Nq, Tiles(seq.Nk) * kTile + segments.Keys(seq.Nk), counts);
  source.gathers = true;
  return source;
}

}  // namespace attnd
