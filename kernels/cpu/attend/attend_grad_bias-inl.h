// The gradient of a bias that repeats along dimensions: dS, summed over what it repeats. S and dP
// once more (2 of the 5 products), so that every element has one owner and nothing quadratic is
// kept.
#if defined(ATTND_CPU_ATTEND_GRAD_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_BIAS_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_BIAS_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_BIAS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_pair-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class ShareOfBias {
 public:
  ShareOfBias(const BiasShare& share, const GradScratch& scratch)
      : task_(*share.task),
        s_(share),
        out_(task_.problem->dterms.bias),
        m_(scratch),
        sums_queries_(out_.shape[2] == 1),
        sums_keys_(out_.shape[3] == 1) {
    keys_.m = scratch.keys[0];
  }

  void Run() { task_.gathers ? RunGathered() : RunInOrder(); }

 private:
  // Calls visit(pair, queries, keys) for every visible pair of tiles in column `tile` of all planes
  // that ours stands for, query tiles in [q_begin, q_end).
  template <class Visit>
  void EachPair(int64_t tile, int64_t q_begin, int64_t q_end, const Visit& visit);
  void RunInOrder();
  void RunGathered();
  void Store(int64_t first_query, int64_t first_key);
  char* At(int64_t i, int64_t j) const {
    return out_.As<char>() + SizeOf(out_.dtype) * (s_.b * out_.stride[0] + s_.h * out_.stride[1] +
                                                   (sums_queries_ ? 0 : i) * out_.stride[2] +
                                                   (sums_keys_ ? 0 : j) * out_.stride[3]);
  }

  const GradTask& task_;
  const BiasShare& s_;
  const View& out_;
  const GradScratch& m_;
  const bool sums_queries_, sums_keys_;
  GradKeys keys_;
  GradQueries queries_;
};

template <class Visit>
inline void ShareOfBias::EachPair(int64_t tile, int64_t q_begin, int64_t q_end,
                                  const Visit& visit) {
  const int64_t b_end = out_.shape[0] == 1 ? task_.B : s_.b + 1;
  const int64_t h_end = out_.shape[1] == 1 ? task_.H : s_.h + 1;
  for (int64_t b = s_.b; b < b_end; ++b) {
    PairOfTiles pair(task_, b, m_);
    pair.terms().StopBeforeCap();
    for (int64_t h = s_.h; h < h_end; ++h) {
      const Pattern* pattern = task_.Seq(b).Of(h);
      pair.LoadKeys(h / task_.group, pattern, tile, &keys_);
      if (keys_.slots.count == 0) continue;
      pair.LoadKeyBias(pattern, tile, &keys_);
      VisibleTiles visible(pattern, &Pattern::by_key, tile, {.begin = q_begin, .end = q_end});
      for (; !visible.done(); visible.Next()) {
        if (CheckPoint()) return;
        pair.LoadQueries(h, pattern, visible.index(), &queries_);
        if (queries_.slots.count == 0) continue;
        pair.Weigh(&queries_, &keys_, visible.tile());
        visit(pair);
      }
    }
  }
}

inline void ShareOfBias::RunInOrder() {
  const DF d;
  const auto add = [&](const PairOfTiles&) HWY_ATTR {
    for (int64_t i = 0; i < queries_.slots.count; ++i) {
      float* to = m_.dbias.Row(sums_queries_ ? 0 : i);
      const float* from = m_.dscores.Row(i);
      if (sums_keys_) {
        for (int64_t x = 0; x < keys_.slots.count; ++x) to[0] += from[x];
        continue;
      }
      // Vectors may end in columns beyond the keys, which are not stored.
      for (int64_t x = 0; x < keys_.slots.count; x += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, to + x), hn::LoadU(d, from + x)), d, to + x);
      }
    }
  };
  for (int64_t q = s_.q_begin; q < s_.q_end; q = sums_queries_ ? s_.q_end : q + 1) {
    const int64_t q_end = sums_queries_ ? s_.q_end : q + 1;
    if (sums_keys_) Zero(m_.dbias, kTile);
    for (int64_t k = s_.k_begin; k < s_.k_end; ++k) {
      if (!sums_keys_) Zero(m_.dbias, kTile);
      EachPair(k, q, q_end, add);
      if (!sums_keys_) Store(q * kTile, k * kTile);
    }
    if (sums_keys_) Store(q * kTile, 0);
  }
}

inline void ShareOfBias::Store(int64_t first_query, int64_t first_key) {
  const int64_t rows = sums_queries_ ? 1 : std::min(kTile, task_.Nq - first_query);
  const int64_t columns = sums_keys_ ? 1 : std::min(kTile, task_.Nk - first_key);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t x = 0; x < columns; x += out_.stride[3] == 1 ? columns : 1) {
      Narrow(out_.dtype, m_.dbias.Row(i) + x, out_.stride[3] == 1 ? columns : 1,
             At(first_query + i, first_key + x));
    }
  }
}

// A whole plane, since gathered rows may lie anywhere in it. REQUIRES: float32.
inline void ShareOfBias::RunGathered() {
  const int64_t rows = out_.shape[2], columns = out_.shape[3];
  for (int64_t i = 0; i < rows; ++i) {
    if (CheckPoint()) return;
    for (int64_t j = 0; j < columns; ++j) std::memset(At(i, j), 0, sizeof(float));
  }
  int64_t k_tiles = 0, q_tiles = 0;
  const AttendGradProblem& grad = *task_.problem;
  for (const AttendSeq& seq : grad.forward.seqs) {
    for (int64_t h = 0; h < task_.H; ++h) {
      const Pattern* p = seq.Of(h);
      const bool keys = p != nullptr && !p->key_rows.empty();
      const bool queries = p != nullptr && !p->query_rows.empty();
      k_tiles = std::max(k_tiles, CeilDiv(keys ? p->key_rows.size() : task_.Nk, kTile));
      q_tiles = std::max(q_tiles, CeilDiv(queries ? p->query_rows.size() : task_.Nq, kTile));
    }
  }
  const auto add = [&](const PairOfTiles& pair) {
    for (int64_t i = 0; i < queries_.slots.count; ++i) {
      for (uint64_t rest = pair.seen()[i]; rest != 0; rest &= rest - 1) {
        const int64_t x = std::countr_zero(rest);
        if (x >= keys_.slots.count) break;
        if (keys_.slots.rows[x] >= task_.Nk) continue;
        char* to = At(queries_.slots.rows[i], keys_.slots.rows[x]);
        *reinterpret_cast<float*>(to) += m_.dscores.Row(i)[x];
      }
    }
  };
  for (int64_t k = 0; k < k_tiles; ++k) EachPair(k, 0, q_tiles, add);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
