#include "kernels/cpu/attend/attend_work.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

int64_t QueryTiles(const AttendProblem& p) { return CeilDiv(p.q.shape[2], kTile); }

// Query slots of a head, and how many of them may see something.
int64_t Slots(const Pattern* pattern, int64_t Nq) {
  const bool gathers = pattern != nullptr && !pattern->query_rows.empty();
  return gathers ? static_cast<int64_t>(pattern->query_rows.size()) : Nq;
}
int64_t KeySlots(const Pattern* pattern, int64_t nk) {
  const bool gathers = pattern != nullptr && !pattern->key_rows.empty();
  return gathers ? static_cast<int64_t>(pattern->key_rows.size()) : nk;
}

// How the key tiles of one sequence are split: so that few queries on many keys use all threads,
// and so that at most 2 kParts states are kept at a time, however many the queries.
struct SplitRule {
  static constexpr int64_t kParts = 64;
  static constexpr int64_t kLeast = 64;  // tiles: the merge costs less than a hundredth of them
  int64_t chunk;                         // tiles of a part
  int64_t states;                        // in all, so that memory is known without a pattern

  SplitRule(const AttendProblem& p, const AttendSeq& seq) {
    const double heads = static_cast<double>(p.q.shape[1]);
    const auto tiles = static_cast<int64_t>(seq.visible_tiles * heads);
    const int64_t second = p.terms.k2.given() ? p.terms.k2.shape[2] : 0;
    chunk = std::max(kLeast, CeilDiv(tiles, kParts));
    const int64_t longest = CeilDiv(seq.nk + second, kTile);
    states = longest <= chunk ? 0 : 2 * tiles / chunk;
    // The most that any number of tiles takes.
    if (!seq.is_counted) states = longest <= kLeast ? 0 : 2 * kParts;
  }
};

bool HasTerms(const AttendArgs& args, const AttendProblem& p, const Pattern* pattern) {
  const AttendTerms& t = p.terms;
  const bool tensors = t.bias.given() || t.alibi_slopes.given() || t.table.given() || t.r.given();
  const bool constants =
      pattern != nullptr &&
      (!pattern->key_bias.empty() || !pattern->terms.empty() || pattern->computed_terms != nullptr);
  return tensors || constants || args.params.softcap > 0 ||
         args.params.weighting != Weighting::kSoftmax;
}

// Seconds on one thread in FLOPs of the peak. Constants: tests/bench/attend.
double SeqFlops(const AttendArgs& args, const AttendProblem& p, const AttendSeq& seq) {
  // Of a sequence's tiles the last one may be partly filled.
  const auto filled = [](int64_t n, int64_t unit) {
    return n == 0 ? 0.0
                  : static_cast<double>(RoundUp(n, unit)) / static_cast<double>(RoundUp(n, kTile));
  };
  const auto D = static_cast<double>(p.q.shape[3]), Dv = static_cast<double>(p.v.shape[3]);
  const double pairs = seq.visible_tiles * kTile * kTile * filled(seq.nq, 16) * filled(seq.nk, 1);
  constexpr double kGemmShare = 0.92;   // of peak, in the two products
  constexpr double kSoftmaxFlops = 52;  // per pair: maximum, exponential, sum, in peak FLOPs
  constexpr double kTermFlops = 40;     // per pair: a pass over the scores
  constexpr double kPickFlops = 160;    // per pair: reading another element for each
  constexpr double kItemFlops = 24;     // per element of q and out: transposing, storing
  const AttendTerms& t = p.terms;
  double pair = 2 * (D + Dv) / kGemmShare + kSoftmaxFlops;
  if (HasTerms(args, p, nullptr)) pair += kTermFlops;
  if (t.bias.given()) pair += kTermFlops;
  if (t.table.given()) pair += kPickFlops;
  if (t.r.given()) {
    pair += seq.gathers ? kPickFlops + 4 * D / kGemmShare : 2 * D / kGemmShare;
  }
  const auto rows = static_cast<double>(RoundUp(p.q.shape[2], 16));
  return static_cast<double>(p.q.shape[1]) * (pairs * pair + kItemFlops * (D + Dv) * rows);
}

}  // namespace

double VisiblePairs(const AttendProblem& problem) {
  double pairs = 0;
  for (const AttendSeq& seq : problem.seqs) {
    pairs += seq.visible_pairs * static_cast<double>(seq.count * problem.q.shape[1]);
  }
  return pairs;
}

AttendWork::AttendWork(const Cpu& cpu, const AttendArgs& args) : args_(args) {
  double flops = 0, mask_seconds = 0;
  for (const AttendProblem& p : args.problems) {
    scratch_ = {p.q.shape[3], p.v.shape[3], p.terms.bias.given(), p.terms.r.given()};
    dry_items_ += p.q.shape[0] * p.q.shape[1] * QueryTiles(p);
    for (const AttendSeq& seq : p.seqs) {
      flops += SeqFlops(args, p, seq) * static_cast<double>(seq.count);
      mask_seconds += seq.mask_seconds * static_cast<double>(seq.count * p.q.shape[1]);
      states_ += SplitRule(p, seq).states * seq.count;
    }
  }
  constexpr double kItemSeconds = 8e-7;
  serial_seconds_ =
      flops / cpu.thread_flops + mask_seconds + kItemSeconds * static_cast<double>(dry_items_);
  // Fewer tiles than would be best for the caches where threads would otherwise wait at the end.
  constexpr int64_t kItemsPerThread = 4;
  const int64_t fair = dry_items_ / (kItemsPerThread * cpu.threads);
  tiles_ = std::clamp<int64_t>(fair, 1, ItemTiles(scratch_.D, scratch_.Dv));
}

void AttendWork::Add(const Entry& entry) {
  if (entry.rows > 0) items_.push_back(entry);
}

// Longest first, so that no thread ends with a long item alone. Levels are coarse: items of one
// level keep the order of heads, whose keys then stay in cache.
void AttendWork::List() {
  constexpr int64_t kLevels = 16;
  int64_t states = 0;
  for (int32_t n = 0; n < static_cast<int32_t>(args_.problems.size()); ++n) {
    const AttendProblem& p = args_.problems[n];
    for (int64_t b = 0; b < p.q.shape[0]; ++b) {
      int64_t used = states;
      PairCount* count = p.seqs[b].pair_count.get();
      const bool counts = count != nullptr && count->Claim();
      for (int64_t h = 0; h < p.q.shape[1]; ++h) ListHead(n, b, h, counts, &used);
      states += SplitRule(p, p.seqs[b]).states;
    }
  }
  int64_t longest = 1;
  for (const Entry& entry : items_) longest = std::max(longest, entry.level);
  for (Entry& entry : items_) entry.level = kLevels - entry.level * kLevels / longest;
  std::sort(items_.begin(), items_.end());
}

void AttendWork::ListHead(int32_t problem, int64_t b, int64_t h, bool counts_pairs,
                          int64_t* states) {
  const AttendProblem& p = args_.problems[problem];
  const AttendSeq& seq = p.seqs[b];
  const Pattern* pattern = seq.Of(h);
  const SplitRule rule(p, seq);
  const int64_t width = p.q.shape[3] + p.v.shape[3], Nq = p.q.shape[2];
  const int64_t slots = Slots(pattern, Nq), key_tiles = CeilDiv(KeySlots(pattern, seq.nk), kTile);
  const int64_t seeing = Slots(pattern, seq.nq);
  int64_t spare = rule.states / p.q.shape[1];  // what the head may use
  const Entry head = {.problem = problem,
                      .head = static_cast<int32_t>(b * p.q.shape[1] + h),
                      .counts_pairs = counts_pairs && (h == 0 || !seq.head_patterns.empty())};
  Entry open = head;  // tiles that are collected
  const auto close = [&] {
    Add(open);
    open = head;
  };
  for (int64_t first = 0; first < slots; first += kTile) {
    if (first % (16 * kTile) == 0 && CheckPoint()) return;
    const int64_t rows = std::min(kTile, slots - first);
    const int64_t visible =
        first < seeing ? CountVisible(pattern, &Pattern::by_query, first / kTile, key_tiles) : 0;
    const int64_t parts = CeilDiv(visible, rule.chunk);
    if (parts > 1 && parts <= spare) {
      close();
      spare -= parts;
      for (int64_t part = 0; part < parts; ++part) {
        Entry entry = head;
        entry.level = std::min(rule.chunk, visible - part * rule.chunk) * width;
        entry.first = first;
        entry.rows = rows;
        entry.split = static_cast<int32_t>(splits_.size());
        entry.part = static_cast<int32_t>(part);
        Add(entry);
      }
      splits_.push_back({*states, parts, parts});
      *states += parts;
      continue;
    }
    if (open.rows == 0) open.first = first;
    open.rows += rows;
    open.level += visible * width;
    if (open.rows >= tiles_ * kTile) close();
  }
  close();
  if (pattern != nullptr && !pattern->query_rows.empty()) ListUnplaced(*pattern, head, Nq);
}

// Rows that stand in no slot, which no other item writes.
void AttendWork::ListUnplaced(const Pattern& pattern, const Entry& head, int64_t Nq) {
  const std::vector<int32_t>& slots = pattern.query_rows;
  const auto placed = std::count_if(slots.begin(), slots.end(), [](int32_t r) { return r >= 0; });
  if (placed >= Nq) return;
  std::vector<bool> stands(static_cast<size_t>(Nq), false);
  for (int32_t row : slots) {
    if (row >= 0) stands[row] = true;
  }
  Entry entry = head;
  entry.is_placed = false;
  const auto place = [&] { return static_cast<int64_t>(unplaced_.size()); };
  entry.first = place();
  for (int32_t row = 0; row < Nq; ++row) {
    if (stands[row]) continue;
    unplaced_.push_back(row);
    if (place() - entry.first < kTile * tiles_) continue;
    entry.rows = place() - entry.first;
    Add(entry);
    entry.first = place();
  }
  entry.rows = place() - entry.first;
  Add(entry);
}

AttendItem AttendWork::Item(int64_t n) const {
  const Entry& entry = items_[n];
  AttendItem item = Whole(n);
  if (entry.split < 0) return item;
  const AttendProblem& p = args_.problems[entry.problem];
  item.count = SplitRule(p, p.seqs[entry.head / p.q.shape[1]]).chunk;
  item.skip = entry.part * item.count;
  item.terms.sink = -std::numeric_limits<float>::infinity();  // counted once, by the merged row
  return item;
}

AttendItem AttendWork::Whole(int64_t n) const {
  const Entry& entry = items_[n];
  const AttendProblem& p = args_.problems[entry.problem];
  const AttendTerms& t = p.terms;
  const int64_t H = p.q.shape[1], b = entry.head / H, h = entry.head % H;
  const int64_t kv = h / (H / p.k.shape[1]);
  const AttendSeq& seq = p.seqs[b];
  const Pattern* pattern = seq.Of(h);
  const auto rows = [&](const View& view, int64_t head) {
    return view.given() ? HeadRows::Of(view, b, head) : HeadRows();
  };
  const auto plane = [&](const View& view) {
    return view.given() ? HeadPlane::Of(view, b, h) : HeadPlane();
  };
  const auto scalar = [&](const View& view) -> const float* {
    return view.given() ? view.As<float>() + b * view.stride[0] + h * view.stride[1] : nullptr;
  };
  AttendItem item = {.D = p.q.shape[3],
                     .Dv = p.v.shape[3],
                     .q = HeadRows::Of(p.q, b, h),
                     .out = HeadRows::Of(p.out, b, h),
                     .lse = rows(p.lse, h),
                     .lse_low = rows(p.lse_low, h),
                     .k = HeadRows::Of(p.k, b, kv),
                     .v = HeadRows::Of(p.v, b, kv),
                     .k2 = rows(t.k2, kv),
                     .v2 = rows(t.v2, kv),
                     .k_rows = p.k.shape[2],
                     .first = entry.first,
                     .rows = entry.rows,
                     .queries = std::clamp<int64_t>(seq.nq - entry.first, 0, entry.rows),
                     .valid_rows = seq.nq,
                     .keys = KeySlots(pattern, seq.nk),
                     .pattern = pattern,
                     .tile = entry.first / kTile,
                     .has_terms = HasTerms(args_, p, pattern)};
  if (pattern != nullptr && !pattern->key_rows.empty()) item.key_rows = pattern->key_rows.data();
  if (entry.counts_pairs) {
    item.computed_pairs = seq.pair_count.get();
    item.heads_alike = seq.head_patterns.empty() ? H : 1;
  }
  if (!entry.is_placed) {
    item.query_rows = unplaced_.data() + entry.first;
    item.queries = 0;
  } else if (pattern != nullptr && !pattern->query_rows.empty()) {
    item.query_rows = pattern->query_rows.data() + entry.first;
    item.queries = entry.rows;
  }
  item.query_scale = static_cast<float>(args_.params.scale);
  item.terms = {.params = args_.params,
                .bias = plane(t.bias),
                .table = plane(t.table),
                .q_rel = rows(t.q_rel, h),
                .r = rows(t.r, h),
                .distances = t.r.given() ? t.r.shape[2] : 0,
                .row_weight = rows(t.row_weight, h),
                .slope = scalar(t.alibi_slopes),
                .offset = seq.offset};
  if (t.sinks.given()) item.terms.sink = *scalar(t.sinks);
  return item;
}

}  // namespace attnd
