#include "kernels/pattern/shapes/etc.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

// Etc of N positions, with the sentences of all long ones.
struct Halves {
  std::shared_ptr<const Etc> shared;
  int64_t N;
  std::vector<int32_t> sentences;
  const Etc& etc = *shared;

  // The global position of the sentence that holds x; -1 - x if x is global.
  int64_t SentenceOf(int64_t x) const { return x < etc.ng ? -1 - x : sentences[x - etc.ng]; }
  size_t given() const {
    return etc.l2l_ids.size() + etc.l2g_ids.size() + etc.g2g_ids.size() + etc.g2l_ids.size();
  }
};
using HalvesPtr = std::shared_ptr<const Halves>;

class LabelsOf : public Constants {
 public:
  explicit LabelsOf(HalvesPtr halves) : shared_(std::move(halves)), h_(*shared_), e_(h_.etc) {}

  void Fill(int64_t q_tile, int64_t key_tile, TileTerms* terms) const override {
    terms->labels.assign(kTile * kTile, TileTerms::kNoLabel);
    const int64_t i = q_tile * kTile, j = key_tile * kTile;
    if (IsAcross(i, j)) return FillAcross(i, j, terms->labels.data());
    for (int64_t key = 0; key < std::min(kTile, h_.N - j); ++key) {
      for (int64_t q = 0; q < std::min(kTile, h_.N - i); ++q) {
        terms->labels[key * kTile + q] = Label(i + q, j + key);
      }
    }
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    if (h_.given() > 0) return {};
    const int64_t i = q_tile * kTile, j = key_tile * kTile;
    if (!IsWhole(i, j)) return {};
    if ((i < e_.ng) == (j < e_.ng)) {
      // Beyond the largest distance all labels are equal.
      const int64_t far = e_.max_distance / kTile + 2;
      return {2, {0, std::clamp(key_tile - q_tile, -far, far)}};
    }
    const int64_t longs = std::max(i, j) - e_.ng, globals = std::min(i, j);
    for (int64_t c = longs; c < longs + kTile; ++c) {
      if (h_.sentences[c] >= globals && h_.sentences[c] < globals + kTile) return {};
    }
    return {1, {1}};
  }
  int64_t bytes() const override {
    return static_cast<int64_t>((h_.sentences.size() + h_.given()) * sizeof(int32_t));
  }

 private:
  // Whether all queries of a tile are of one half, all keys are, and all exist.
  bool IsWhole(int64_t i, int64_t j) const {
    return std::max(i, j) + kTile <= h_.N && !(i < e_.ng && i + kTile > e_.ng) &&
           !(j < e_.ng && j + kTile > e_.ng);
  }
  // Whether queries are of one half and keys of the other, with computed labels.
  bool IsAcross(int64_t i, int64_t j) const {
    return h_.given() == 0 && IsWhole(i, j) && (i < e_.ng) != (j < e_.ng);
  }
  // One label, except where a sentence meets its global position.
  void FillAcross(int64_t i, int64_t j, uint16_t* labels) const {
    const int64_t longs = std::max(i, j) - e_.ng, globals = std::min(i, j);
    std::fill_n(labels, kTile * kTile, static_cast<uint16_t>(2 * e_.max_distance + 1));
    for (int64_t c = 0; c < kTile; ++c) {
      const int64_t own = h_.sentences[longs + c] - globals;
      if (own < 0 || own >= kTile) continue;
      labels[i > j ? own * kTile + c : c * kTile + own] =
          static_cast<uint16_t>(2 * e_.max_distance + 2);
    }
  }
  uint16_t Label(int64_t i, int64_t j) const {
    const int64_t ng = e_.ng, nl = h_.N - ng;
    const auto label = [](const std::vector<int32_t>& labels, int64_t at) {
      return static_cast<uint16_t>(labels[at]);
    };
    if (i < ng && j < ng && !e_.g2g_ids.empty()) return label(e_.g2g_ids, i * ng + j);
    if (i < ng && j >= ng && !e_.g2l_ids.empty()) return label(e_.g2l_ids, i * nl + j - ng);
    if (i >= ng && j < ng && !e_.l2g_ids.empty()) return label(e_.l2g_ids, (i - ng) * ng + j);
    if (i >= ng && j >= ng && !e_.l2l_ids.empty()) {
      if (std::abs(j - i) > e_.radius) return TileTerms::kNoLabel;
      return label(e_.l2l_ids, (i - ng) * (2 * e_.radius + 1) + e_.radius + j - i);
    }
    if ((i < e_.ng) != (j < e_.ng)) {
      const bool is_own = h_.SentenceOf(std::max(i, j)) == std::min(i, j);
      return static_cast<uint16_t>(2 * e_.max_distance + 1 + (is_own ? 1 : 0));
    }
    const int64_t delta = j - i;
    return static_cast<uint16_t>(delta >= 0 ? std::min(delta, e_.max_distance)
                                            : e_.max_distance + std::min(-delta, e_.max_distance));
  }

  const HalvesPtr shared_;
  const Halves& h_;
  const Etc& e_;
};

HalvesPtr HalvesOf(const std::shared_ptr<const Etc>& etc, int64_t N) {
  auto h = std::make_shared<Halves>(Halves{etc, N, etc->sentence_ids});
  const int64_t nl = N - etc->ng;
  if (h->sentences.empty()) {
    for (int64_t c = 0; c < nl; ++c) h->sentences.push_back(static_cast<int32_t>(c * etc->ng / nl));
  }
  return h;
}

// Pairs of a position and the global position of its sentence; no pairs inside a half.
Visible OwnSentence(const Halves& h, bool of_long_rows) {
  std::vector<int32_t> q(h.N, -1), k(h.N, -1);
  for (int64_t x = 0; x < h.N; ++x) {
    const bool is_global = x < h.etc.ng;
    const auto id = static_cast<int32_t>(is_global ? x : h.sentences[x - h.etc.ng]);
    (is_global == of_long_rows ? k : q)[x] = id;
  }
  return SameSegment(q, k);
}

// The example of every position, renumbered from 0 as segment ids.
std::vector<int32_t> Examples(const Etc& etc) {
  std::map<int32_t, int32_t> numbers;
  std::vector<int32_t> examples;
  for (const std::span<const int32_t> half : {etc.global_examples, etc.long_examples}) {
    for (const int32_t id : half) {
      const auto next = static_cast<int32_t>(numbers.size());
      examples.push_back(numbers.emplace(id, next).first->second);
    }
  }
  return examples;
}

struct EtcRows {
  int64_t N;
  Half half;
  std::shared_ptr<const Etc> etc;  // without examples
};

PatternSpec SpecOf(const EtcRows& r) {
  const Etc& etc = *r.etc;
  const bool has_longs = r.half != Half::kGlobal, has_globals = r.half != Half::kLocal;
  const HalvesPtr halves = HalvesOf(r.etc, r.N);
  std::vector<int32_t> first(etc.ng);
  for (size_t x = 0; x < first.size(); ++x) first[x] = static_cast<int32_t>(x);
  const Visible rows = Queries(first), globals = Keys(first);
  PatternSpec made{.Nq = r.N, .Nk = r.N};
  if (has_longs) {
    const Visible far = etc.hard_l2g ? OwnSentence(*halves, /*of_long_rows=*/true) : globals;
    made.visible = Or(AndNot(Band(-etc.radius, etc.radius), globals), far);
  }
  // Global rows that see everything are not excluded first: fewer predicates, known shapes.
  if (!has_globals || etc.hard_g2l) made.visible = has_longs ? AndNot(made.visible, rows) : nullptr;
  if (has_globals) {
    const Visible seen =
        etc.hard_g2l ? And(rows, Or(globals, OwnSentence(*halves, /*of_long_rows=*/false))) : rows;
    made.visible = made.visible == nullptr ? seen : Or(made.visible, seen);
  }
  if (etc.is_labelled) made.constants = std::make_shared<LabelsOf>(halves);
  return made;
}

}  // namespace

PatternSource EtcSource(const PatternSeq& seq, Etc etc, Half half) {
  const int64_t N = seq.Nk, ng = etc.ng;
  const auto below = [ng](int64_t n) { return std::min(n, ng); };
  const Lengths longs{seq.lengths.nq - below(seq.lengths.nq),
                      seq.lengths.nk - below(seq.lengths.nk)};
  PatternCounts counts;
  const bool has_longs = half != Half::kGlobal, has_globals = half != Half::kLocal;
  etc.hard_l2g = has_longs && etc.hard_l2g;
  etc.hard_g2l = has_globals && etc.hard_g2l;
  etc.radius = std::min(etc.radius, kFar);
  // Of the first `n` long positions, those whose sentence is below `places`.
  const auto in_sentences = [&](int64_t n, int64_t places) {
    return ng == 0 ? 0 : std::min(n, CeilDiv(places * (N - ng), ng));
  };
  if (has_longs) {
    const Window window =
        Canonical(longs.nq, longs.nk, {.before = etc.radius, .after = etc.radius});
    const int64_t places = below(seq.lengths.nk);
    const int64_t far = etc.hard_l2g ? in_sentences(longs.nq, places) : longs.nq * places;
    counts.pairs = WindowPairs(longs, window) + static_cast<double>(far);
    counts.tiles =
        WindowTiles(longs, window) + static_cast<double>(Tiles(longs.nq) * (Tiles(ng) + 1));
  }
  if (has_globals) {
    const int64_t rows = below(seq.lengths.nq);
    const int64_t far = etc.hard_g2l ? in_sentences(longs.nk, rows) : rows * longs.nk;
    counts.pairs += static_cast<double>(rows * below(seq.lengths.nk) + far);
    counts.tiles += static_cast<double>(Tiles(rows) * Tiles(seq.lengths.nk));
  }
  const bool has_examples = std::exchange(etc.has_examples, false);
  const bool has_sentences = !etc.sentence_ids.empty();
  const int64_t sent_ids = std::exchange(etc.sent_ids, 0);
  const std::vector<int32_t> examples = Examples(etc);
  etc.long_examples = etc.global_examples = {};
  if (etc.is_labelled) counts.term_bytes = sizeof(uint16_t);
  const bool is_hard = etc.hard_l2g || etc.hard_g2l;
  PatternSource source = SourceOf(
      N, N, "etc", EtcRows{N, half, std::make_shared<const Etc>(std::move(etc))}, counts, SpecOf);
  source.host.bytes += static_cast<int64_t>(sizeof(int32_t)) * sent_ids;
  if (has_examples) {
    const HostCost more = CostOf(N, N, {});
    source.host.bytes += more.bytes;
    source.host.seconds += more.seconds;
  }
  source.is_counted = !is_hard && !has_examples;
  source.knows_pairs = !(is_hard && has_sentences) && !has_examples;
  return examples.empty() ? source : WithinSegments(source, examples, examples);
}

}  // namespace attnd
