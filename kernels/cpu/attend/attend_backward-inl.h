// The gradients of one share of the keys of a kv head.
#if defined(ATTND_CPU_ATTEND_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_BACKWARD_INL_H_
#undef ATTND_CPU_ATTEND_BACKWARD_INL_H_
#else
#define ATTND_CPU_ATTEND_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "hwy/highway.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/attend/attend_grad_distances-inl.h"
#include "kernels/cpu/attend/attend_grad_pair-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Some key tiles stay in cache as K, K^T, V^T, dK and dV while the query tiles that see any of them
// come by. For every pair: dV += P^T dO, dK += dT^T Q, dQ += dT K, where P and dT are read by
// column, which the micro-kernel does at no cost. The gradient of a bias of its own for every pair
// is dT, and is stored on the way.
class ShareOfKeys {
 public:
  ShareOfKeys(const AttendShare& share, const GradScratch& scratch);
  void Run();

 private:
  using Tiles = absl::InlinedVector<int64_t, kMaxKeyBlock>;

  // Partial sums of one query head.
  struct HeadSums {
    PartialRows dq, slopes, table, q_rel, r;
  };

  HeadSums SumsOf(int64_t h) const;
  PartialRows SumsOfKeys(GradSum::Kind kind) const {
    if (task_.stores_keys[s_.b]) return {};
    return task_.Of(kind, s_.b, s_.kv_head, s_.share);
  }
  void SumSinks(int64_t h);
  void RunBlock(const Tiles& tiles, int64_t h_begin, int64_t h_end);
  void RunHead(const Tiles& tiles, int64_t h);
  void AddRows(const TileSlots& slots, const Packed& rows, const PartialRows& sums);
  // A visible pair of tiles, of its queries the first one or not; `follows`: see GradRelative.
  struct Pair {
    VisibleTile tile;
    bool first, follows;
  };
  void AddPair(GradQueries* queries, GradKeys* keys, const Pair& pair, const HeadSums& sums);
  void Multiply(const GradQueries& queries, const GradKeys& keys, bool first);
  void MultiplySeen(const GradQueries& queries, const GradKeys& keys, bool first);
  void StoreKeys(const GradKeys& keys, int64_t tile);
  void StoreKey(const GradKeys& keys, int64_t i, int64_t row);
  void ClearMissingKeys();
  void StoreBias(int64_t h, int64_t q_tile, int64_t k_tile, int64_t queries, int64_t keys);
  void ClearBias(int64_t h, int64_t begin, int64_t end, int64_t k_tile);

  const GradTask& task_;
  const AttendShare& s_;
  const AttendSeq& seq_;
  const GradScratch& m_;
  const bool wants_dq_;
  const PartialRows dk_, dv_;  // where keys are added up
  PairOfTiles pair_;
  GradKeys keys_[kMaxKeyBlock];
};

inline ShareOfKeys::ShareOfKeys(const AttendShare& share, const GradScratch& scratch)
    : task_(*share.task),
      s_(share),
      seq_(task_.Seq(share.b)),
      m_(scratch),
      wants_dq_(task_.sums[GradSum::kDq].rows > 0),
      dk_(SumsOfKeys(GradSum::kDk)),
      dv_(SumsOfKeys(GradSum::kDv)),
      pair_(task_, share.b, scratch) {
  for (int64_t i = 0; i < task_.key_block; ++i) keys_[i].m = scratch.keys[i];
}

inline ShareOfKeys::HeadSums ShareOfKeys::SumsOf(int64_t h) const {
  const auto of = [&](GradSum::Kind kind) { return task_.Of(kind, s_.b, h, s_.share); };
  return {of(GradSum::kDq), of(GradSum::kSlopes), of(GradSum::kTable), of(GradSum::kQRel),
          of(GradSum::kR)};
}

inline void ShareOfKeys::Run() {
  const int64_t h_begin = s_.kv_head * task_.group, h_end = h_begin + task_.group;
  dk_.Clear();
  dv_.Clear();
  for (int64_t h = h_begin; h < h_end; ++h) {
    const HeadSums sums = SumsOf(h);
    for (const PartialRows* rows : {&sums.dq, &sums.slopes, &sums.table, &sums.q_rel, &sums.r}) {
      rows->Clear();
    }
    SumSinks(h);
  }
  ClearMissingKeys();
  // Heads that gather keys in different orders need packed keys each; others share them.
  const bool is_apart = task_.gathers && !seq_.head_patterns.empty();
  const int64_t together = is_apart ? 1 : task_.group;
  for (int64_t h = h_begin; h < h_end; h += together) {
    const Pattern* pattern = seq_.Of(h);
    const bool gathers = pattern != nullptr && !pattern->key_rows.empty();
    const int64_t slots = gathers ? static_cast<int64_t>(pattern->key_rows.size()) : task_.Nk;
    const KeyShares shares = task_.Shares(CeilDiv(slots, kTile));
    Tiles tiles;
    for (int64_t tile = 0; tile < shares.tiles; ++tile) {
      if (shares.ShareOf(tile) != s_.share) continue;
      if (CheckPoint()) return;
      tiles.push_back(tile);
      if (static_cast<int64_t>(tiles.size()) < task_.key_block) continue;
      RunBlock(tiles, h, h + together);
      tiles.clear();
    }
    if (!tiles.empty()) RunBlock(tiles, h, h + together);
  }
}

// A sink is a key of value 0: it has the weight exp(sink - lse), and dP = 0.
inline void ShareOfKeys::SumSinks(int64_t h) {
  const PartialRows sums = task_.Of(GradSum::kSinks, s_.b, h, s_.share);
  sums.Clear();
  if (!sums.wanted() || s_.share != 0) return;
  const AttendGradProblem& grad = *task_.problem;
  const AttendProblem& p = grad.forward;
  const float sink = HeadRows::Of(p.terms.sinks, s_.b, h).Scalar(0);
  const HeadRows lse = HeadRows::Of(p.lse, s_.b, h), dlse = HeadRows::Of(grad.dlse, s_.b, h);
  const HeadRows lse_low = HeadRows::Of(p.lse_low, s_.b, h);
  const HeadRows out = HeadRows::Of(p.out, s_.b, h), dout = HeadRows::Of(grad.dout, s_.b, h);
  double sum = 0;
  for (int64_t i = 0; i < seq_.nq; ++i) {
    if (i % kTile == 0 && CheckPoint()) return;
    const float log_sum = lse.Scalar(i);
    if (log_sum == -std::numeric_limits<float>::infinity()) continue;
    double shift = dlse.data == nullptr ? 0.0 : -static_cast<double>(dlse.Scalar(i));
    if (pair_.has_dout()) {
      PackRow(dout, i, 1.0f, m_.dout, 0);
      shift += Dot(out, i, m_.dout.Row(0), task_.Dv, m_.space.data);
    }
    sum -= WeightOf(sink, log_sum, lse_low.data == nullptr ? 0 : lse_low.Scalar(i)) * shift;
  }
  *sums.Open(0) = static_cast<float>(sum);
}

inline void ShareOfKeys::RunBlock(const Tiles& tiles, int64_t h_begin, int64_t h_end) {
  for (size_t i = 0; i < tiles.size(); ++i) {
    pair_.LoadKeys(s_.kv_head, seq_.Of(h_begin), tiles[i], &keys_[i]);
    Zero(keys_[i].m.dk, kTile);
    Zero(keys_[i].m.dv, kTile);
  }
  for (int64_t h = h_begin; h < h_end; ++h) RunHead(tiles, h);
  for (size_t i = 0; i < tiles.size(); ++i) {
    // Rows that lie far apart fault in pages, which the system clears: a tile may take ten
    // milliseconds.
    if (CheckPoint()) return;
    StoreKeys(keys_[i], tiles[i]);
  }
}

inline void ShareOfKeys::RunHead(const Tiles& tiles, int64_t h) {
  const Pattern* pattern = seq_.Of(h);
  const bool gathers = pattern != nullptr && !pattern->query_rows.empty();
  const int64_t slots = gathers ? static_cast<int64_t>(pattern->query_rows.size()) : seq_.nq;
  absl::InlinedVector<VisibleTiles, kMaxKeyBlock> visible;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int64_t q_tiles = keys_[i].slots.count == 0 ? 0 : CeilDiv(slots, kTile);
    pair_.LoadKeyBias(pattern, tiles[i], &keys_[i]);
    visible.emplace_back(pattern, &Pattern::by_key, tiles[i], TileChoice{.end = q_tiles});
  }
  const HeadSums sums = SumsOf(h);
  GradQueries queries;
  int64_t stored[kMaxKeyBlock] = {};  // rows of dbias, of every key tile
  for (;;) {
    int64_t tile = VisibleTile::kNone;
    for (const VisibleTiles& v : visible) tile = std::min(tile, v.index());
    if (CheckPoint()) return;
    if (tile == VisibleTile::kNone) break;
    pair_.LoadQueries(h, pattern, tile, &queries);
    pair_.relative().Start(queries);
    bool first = true;
    for (size_t i = 0; i < tiles.size(); ++i) {
      if (visible[i].index() != tile) continue;
      const bool follows = i + 1 < tiles.size() && visible[i + 1].index() == tile &&
                           GradRelative::Follows(queries, keys_[i], keys_[i + 1]);
      AddPair(&queries, &keys_[i], {visible[i].tile(), first, follows}, sums);
      if (task_.stores_bias) {
        ClearBias(h, stored[i], tile * kTile, tiles[i]);
        StoreBias(h, tile, tiles[i], queries.slots.count, keys_[i].slots.count);
        stored[i] = std::min((tile + 1) * kTile, task_.Nq);
      }
      visible[i].Next();
      first = false;
    }
    if (wants_dq_) AddRows(queries.slots, m_.dq, sums.dq);
    if (sums.q_rel.wanted()) AddRows(queries.slots, m_.dq_rel, sums.q_rel);
  }
  for (size_t i = 0; task_.stores_bias && i < tiles.size(); ++i) {
    ClearBias(h, stored[i], task_.Nq, tiles[i]);
  }
}

inline void ShareOfKeys::AddPair(GradQueries* queries, GradKeys* keys, const Pair& pair,
                                 const HeadSums& sums) {
  if (pair_.Weigh(queries, keys, pair.tile, pair.follows)) {
    MultiplySeen(*queries, *keys, pair.first);
  } else {
    Multiply(*queries, *keys, pair.first);
  }
  if (pair_.relative().given()) {
    pair_.relative().AddGradients(*queries, *keys, pair_.seen(), sums.q_rel.wanted(), sums.r);
  }
  if (!pair_.terms().given()) return;
  if (sums.slopes.wanted()) {
    // In double: float32 in two parts.
    float* sum = sums.slopes.Open(0);
    const double total = double{sum[0]} + double{sum[1]} - pair_.terms().distance_sum();
    sum[0] = static_cast<float>(total);
    sum[1] = static_cast<float>(total - double{sum[0]});
  }
  pair_.terms().AddTable(*queries, *keys, pair.tile.terms, pair_.seen(), sums.table);
}

inline void ShareOfKeys::Multiply(const GradQueries& queries, const GradKeys& keys, bool first) {
  const int64_t rows = queries.slots.count, count = keys.slots.count;
  const GradScratch::Keys& k = keys.m;
  const auto add_to_keys = [&](const Packed& left, const Packed& right,
                               const Packed& sum) HWY_ATTR {
    pair_.seen_by_keys().ForEach(count, [&](SlotRange own, SlotRange seen) HWY_ATTR {
      if (seen.size() == 0) return;
      Gemm<Start::kAdd>(own.size(), Vectors(sum), seen.size(),
                        ByColumn(From(left, seen.begin, own.begin)),
                        AsRows(From(right, seen.begin, 0)), Mutable(From(sum, own.begin, 0)));
    });
  };
  if (task_.wants_dv && pair_.has_dout()) add_to_keys(m_.weights, m_.dout, k.dv);
  if (task_.wants_dk) add_to_keys(m_.dscores, m_.q, k.dk);
  if (!wants_dq_) return;
  pair_.seen_by_queries().ForEach(rows, [&](SlotRange own, SlotRange seen) HWY_ATTR {
    const Broadcast dscores = ByRow(From(m_.dscores, own.begin, seen.begin));
    const Rows of_keys = AsRows(From(k.k, seen.begin, 0));
    const MutableRows dq = Mutable(From(m_.dq, own.begin, 0));
    if (first) {
      Gemm<Start::kZero>(own.size(), Vectors(m_.dq), seen.size(), dscores, of_keys, dq);
    } else {
      Gemm<Start::kAdd>(own.size(), Vectors(m_.dq), seen.size(), dscores, of_keys, dq);
    }
  });
}

// The same pair by pair, of visible pairs only.
inline void ShareOfKeys::MultiplySeen(const GradQueries& queries, const GradKeys& keys,
                                      bool first) {
  const auto add = [](float weight, const float* from, int64_t n, float* to) {
    for (int64_t j = 0; j < n; ++j) to[j] += weight * from[j];
  };
  if (first) Zero(m_.dq, queries.slots.count);
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    for (uint64_t rest = pair_.seen()[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      if (x >= keys.slots.count) break;
      const float dscore = m_.dscores.Row(i)[x];
      if (task_.wants_dv && pair_.has_dout()) {
        add(m_.weights.Row(i)[x], m_.dout.Row(i), task_.Dv, keys.m.dv.Row(x));
      }
      if (task_.wants_dk) add(dscore, m_.q.Row(i), task_.D, keys.m.dk.Row(x));
      if (wants_dq_) add(dscore, keys.m.k.Row(x), task_.D, m_.dq.Row(i));
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
