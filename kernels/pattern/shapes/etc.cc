// Global and long halves of a sequence, and their relative labels; keys of a second source.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/counts.h"
#include "kernels/pattern/plan.h"
#include "kernels/pattern/shapes/shapes.h"
#include "kernels/pattern/tiles.h"

namespace attnd {
namespace {

// As in Etc.
struct GivenLabels {
  std::vector<int32_t> l2l, l2g, g2g, g2l;
  bool empty() const { return size() == 0; }
  size_t size() const { return l2l.size() + l2g.size() + g2g.size() + g2l.size(); }
};

struct Halves {
  int64_t ng, N, k, radius;
  std::vector<int32_t> sentences;  // of the long positions
  std::shared_ptr<const GivenLabels> given;

  // The global position whose sentence position x is, or -1 - x of a global one.
  int64_t SentenceOf(int64_t x) const { return x < ng ? -1 - x : sentences[x - ng]; }
};

class LabelsOf : public Constants {
 public:
  explicit LabelsOf(Halves halves) : h_(std::move(halves)) {}

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
    if (!h_.given->empty()) return {};
    const int64_t i = q_tile * kTile, j = key_tile * kTile;
    if (!IsWhole(i, j)) return {};
    if ((i < h_.ng) == (j < h_.ng)) {
      // Beyond the largest distance all labels are the same.
      const int64_t far = h_.k / kTile + 2;
      return {2, {0, std::clamp(key_tile - q_tile, -far, far)}};
    }
    const int64_t longs = std::max(i, j) - h_.ng, globals = std::min(i, j);
    for (int64_t c = longs; c < longs + kTile; ++c) {
      if (h_.sentences[c] >= globals && h_.sentences[c] < globals + kTile) return {};
    }
    return {1, {1}};
  }
  int64_t bytes() const override {
    return static_cast<int64_t>((h_.sentences.size() + h_.given->size()) * sizeof(int32_t));
  }

 private:
  // A tile that lies in one half on either side, and ends inside of the sequence.
  bool IsWhole(int64_t i, int64_t j) const {
    return std::max(i, j) + kTile <= h_.N && !(i < h_.ng && i + kTile > h_.ng) &&
           !(j < h_.ng && j + kTile > h_.ng);
  }
  // Of one that has a half on either side, with labels that nobody gave.
  bool IsAcross(int64_t i, int64_t j) const {
    return h_.given->empty() && IsWhole(i, j) && (i < h_.ng) != (j < h_.ng);
  }
  // One label but where a sentence meets its global position.
  void FillAcross(int64_t i, int64_t j, uint16_t* labels) const {
    const int64_t longs = std::max(i, j) - h_.ng, globals = std::min(i, j);
    std::fill_n(labels, kTile * kTile, static_cast<uint16_t>(2 * h_.k + 1));
    for (int64_t c = 0; c < kTile; ++c) {
      const int64_t own = h_.sentences[longs + c] - globals;
      if (own < 0 || own >= kTile) continue;
      labels[i > j ? own * kTile + c : c * kTile + own] = static_cast<uint16_t>(2 * h_.k + 2);
    }
  }
  uint16_t Label(int64_t i, int64_t j) const {
    const int64_t ng = h_.ng, nl = h_.N - ng;
    const GivenLabels& g = *h_.given;
    const auto label = [](const std::vector<int32_t>& labels, int64_t at) {
      return static_cast<uint16_t>(labels[at]);
    };
    if (i < ng && j < ng && !g.g2g.empty()) return label(g.g2g, i * ng + j);
    if (i < ng && j >= ng && !g.g2l.empty()) return label(g.g2l, i * nl + j - ng);
    if (i >= ng && j < ng && !g.l2g.empty()) return label(g.l2g, (i - ng) * ng + j);
    if (i >= ng && j >= ng && !g.l2l.empty()) {
      if (std::abs(j - i) > h_.radius) return TileTerms::kNoLabel;
      return label(g.l2l, (i - ng) * (2 * h_.radius + 1) + h_.radius + j - i);
    }
    if ((i < h_.ng) != (j < h_.ng)) {
      const bool is_own = h_.SentenceOf(std::max(i, j)) == std::min(i, j);
      return static_cast<uint16_t>(2 * h_.k + 1 + (is_own ? 1 : 0));
    }
    const int64_t delta = j - i;
    return static_cast<uint16_t>(delta >= 0 ? std::min(delta, h_.k)
                                            : h_.k + std::min(-delta, h_.k));
  }

  const Halves h_;
};

Halves HalvesOf(int64_t N, const Etc& etc, std::span<const int32_t> sentences) {
  Halves h{etc.ng, N, etc.max_distance, etc.radius, {}, nullptr};
  h.sentences.assign(sentences.begin(), sentences.end());
  const int64_t nl = N - etc.ng;
  if (h.sentences.empty()) {
    for (int64_t c = 0; c < nl; ++c) h.sentences.push_back(static_cast<int32_t>(c * etc.ng / nl));
  }
  return h;
}

// x[key] = sentence for pairs across halves; a number that nobody looks for elsewhere.
Visible OwnSentence(const Halves& h, bool of_long_rows) {
  std::vector<int32_t> q(h.N, -1), k(h.N, -1);
  for (int64_t x = 0; x < h.N; ++x) {
    const auto id = static_cast<int32_t>(x < h.ng ? x : h.sentences[x - h.ng]);
    ((x < h.ng) == of_long_rows ? k : q)[x] = id;
  }
  return SameSegment(q, k);
}

// Of every position; numbered from 0, as segments are.
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

enum class Rows : uint8_t { kLong, kGlobal, kBoth };

PatternSource EtcSource(const PatternRow& row, const Etc& etc, Rows kind) {
  const int64_t N = row.Nk, ng = etc.ng;
  const auto below = [ng](int64_t n) { return std::min(n, ng); };
  const Lengths longs{row.lengths.nq - below(row.lengths.nq),
                      row.lengths.nk - below(row.lengths.nk)};
  PatternCounts counts;
  const bool has_longs = kind != Rows::kGlobal, has_globals = kind != Rows::kLong;
  const bool hard_l2g = has_longs && etc.hard_l2g, hard_g2l = has_globals && etc.hard_g2l;
  const int64_t radius = std::min(etc.radius, kFar);
  if (has_longs) {
    const Window window = Canonical(longs.nq, longs.nk, {.before = radius, .after = radius});
    counts.pairs =
        WindowPairs(longs, window) + static_cast<double>(longs.nq * below(row.lengths.nk));
    counts.tiles =
        WindowTiles(longs, window) + static_cast<double>(Tiles(longs.nq) * (Tiles(ng) + 1));
  }
  if (has_globals) {
    const int64_t rows = below(row.lengths.nq);
    counts.pairs += static_cast<double>(rows) * static_cast<double>(row.lengths.nk);
    counts.tiles += static_cast<double>(Tiles(rows) * Tiles(row.lengths.nk));
  }
  std::string key =
      absl::StrCat("etc ", static_cast<int>(kind), " ", ng, " ", radius, " ", hard_l2g, " ",
                   hard_g2l, " ", etc.is_labelled, " ", etc.max_distance);
  const auto copy = [&](std::span<const int32_t> ids) {
    absl::StrAppend(&key, " ", Fingerprint(ids));
    return std::vector<int32_t>(ids.begin(), ids.end());
  };
  const auto given = std::make_shared<const GivenLabels>(GivenLabels{.l2l = copy(etc.l2l_ids),
                                                                     .l2g = copy(etc.l2g_ids),
                                                                     .g2g = copy(etc.g2g_ids),
                                                                     .g2l = copy(etc.g2l_ids)});
  const auto plan = [=, ids = copy(etc.sentence_ids)] {
    Halves halves = HalvesOf(N, etc, ids);
    halves.given = given;
    std::vector<int32_t> first(ng);
    for (size_t x = 0; x < first.size(); ++x) first[x] = static_cast<int32_t>(x);
    const Visible rows = Queries(first), globals = Keys(first);
    PatternPlan made{.Nq = N, .Nk = N};
    if (has_longs) {
      const Visible far = hard_l2g ? OwnSentence(halves, /*of_long_rows=*/true) : globals;
      made.visible = Or(AndNot(Band(-radius, radius), globals), far);
    }
    // Global rows that see everything need not be taken out first: few predicates, known shapes.
    if (!has_globals || hard_g2l) made.visible = has_longs ? AndNot(made.visible, rows) : nullptr;
    if (has_globals) {
      const Visible seen =
          hard_g2l ? And(rows, Or(globals, OwnSentence(halves, /*of_long_rows=*/false))) : rows;
      made.visible = made.visible == nullptr ? seen : Or(made.visible, seen);
    }
    if (etc.is_labelled) made.constants = std::make_shared<LabelsOf>(halves);
    return made;
  };
  PatternSource source = SourceOf(N, N, key, counts, plan);
  source.host.bytes += static_cast<int64_t>(sizeof(int32_t)) * etc.sent_ids;
  if (etc.has_examples) {
    const HostCost examples = CostOf(N, N, {});
    source.host.bytes += examples.bytes;
    source.host.seconds += examples.seconds;
  }
  if (etc.is_labelled) source.host.bytes += TermBytes(N, N, sizeof(uint16_t));
  source.is_counted = !hard_l2g && !hard_g2l && !etc.has_examples;
  if (etc.long_examples.empty() && etc.global_examples.empty()) return source;
  const std::vector<int32_t> examples = Examples(etc);
  return WithinSegments(source, examples, examples);
}

}  // namespace

PatternSource EtcLong(const PatternRow& row, const Etc& etc) {
  return EtcSource(row, etc, Rows::kLong);
}
PatternSource EtcGlobal(const PatternRow& row, const Etc& etc) {
  return EtcSource(row, etc, Rows::kGlobal);
}
PatternSource EtcBoth(const PatternRow& row, const Etc& etc) {
  return EtcSource(row, etc, Rows::kBoth);
}

PatternSource WithSecondKeys(const PatternRow& row, const std::optional<Window>& local,
                             const SecondKeys& second) {
  PatternCounts counts = second.counts;
  std::string key =
      absl::StrCat("second ", row.lengths.nq, " ", row.lengths.nk, " ", Fingerprint(second.rows),
                   " ", second.visible == nullptr ? "all" : second.visible->key());
  Visible near;
  if (local.has_value()) {
    const PatternSource natural = WindowSource(row.Nq, row.Nk, *local, row.lengths);
    counts.pairs += natural.visible_pairs;
    counts.tiles += natural.visible_tiles;
    near = Windows(*local);
    absl::StrAppend(&key, " and ", near->key());
  }
  PatternSource source = SourceOf(row.Nq, row.Nk, key, counts, [row, near, second] {
    PatternPlan plan{.Nq = row.lengths.nq, .visible = second.visible, .key_rows = second.rows};
    if (near != nullptr) {
      plan.key_rows = AppendedOrder(row.lengths.nk, second.rows);
      const Visible all = Band(PatternBuilder::kUnbounded, kFar);
      plan.visible = Beside(near, Tiles(row.lengths.nk), plan.visible ? plan.visible : all);
    }
    plan.Nk = static_cast<int64_t>(plan.key_rows.size());
    return plan;
  });
  source.gathers = true;
  return source;
}

}  // namespace attnd
