// The backward over listed pairs: row terms, and the gradients of rows of either side.
#if defined(ATTND_CPU_ATTEND_LIST_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_LIST_GRAD_INL_H_
#undef ATTND_CPU_ATTEND_LIST_GRAD_INL_H_
#else
#define ATTND_CPU_ATTEND_LIST_GRAD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_list-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline float DotOf(const float* a, const float* b, int64_t width) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int64_t x = 0; x < width; x += kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + x), hn::LoadU(d, b + x), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Row terms of queries [first, first + rows), and their share of dsink: a sink is a key of value 0.
void ListTermsOfRows(const ListGradHead& grad, int64_t first, int64_t rows, float* scratch,
                     ListHeadSums* sums) {
  const ListHead& head = grad.head;
  float *out = scratch, *dout = scratch + ListStride(head.Dv);
  std::fill_n(scratch, 2 * ListStride(head.Dv), 0.0f);
  for (int64_t i = first; i < first + rows; ++i) {
    const float lse = head.lse.Scalar(i);
    grad.rows.lse[i] = std::numeric_limits<float>::infinity();
    grad.rows.lse_low[i] = grad.rows.shift[i] = 0;
    if (i >= head.nq || lse == -std::numeric_limits<float>::infinity()) continue;
    grad.rows.lse[i] = lse;
    if (head.lse_low.data != nullptr) grad.rows.lse_low[i] = head.lse_low.Scalar(i);
    float shift = 0;
    if (head.dout.data != nullptr) {
      Widen(head.out.dtype, head.out.Row(i), head.Dv, out);
      Widen(head.dout.dtype, head.dout.Row(i), head.Dv, dout);
      shift = DotOf(out, dout, head.Dv);
    }
    if (head.dlse.data != nullptr) shift -= head.dlse.Scalar(i);
    grad.rows.shift[i] = shift;
    if (head.sink == -std::numeric_limits<float>::infinity()) continue;
    sums->sink -= WeightOf(head.sink, lse, grad.rows.lse_low[i]) * shift;
  }
}

// Rows of one side with the rows of the other side that they list: queries with keys, or keys with
// queries.
class ListedGrad {
 public:
  // `scratch`: ListGradFloats of them.
  ListedGrad(const ListGradHead& grad, bool by_query, float* scratch)
      : grad_(grad),
        head_(grad.head),
        by_query_(by_query),
        D_(ListStride(head_.D)),
        stride_(D_ + ListStride(head_.Dv)),
        scores_(head_),
        own_(scratch + kListChunk * stride_),
        others_(by_query ? head_.k : head_.q, head_.D, scratch),
        other_values_(by_query ? head_.v : head_.dout, head_.Dv, scratch + kListChunk * D_) {}

  // The gradients of `rows` rows, [row][D, then Dv], each padded.
  float* Grads(int64_t rows) const { return own_ + rows * stride_; }
  void Clear(int64_t rows) const { std::fill_n(Grads(rows), rows * stride_, 0.0f); }
  // Adds to the gradients of rows [first, first + rows): dq / scale, or dk / scale and dv; and to
  // `sums`, of queries.
  void AddRows(int64_t first, int64_t rows, ListHeadSums* sums);
  // Calls add(query, key, dS) for all pairs. REQUIRES: by_query.
  template <class Add>
  void EachScore(const Add& add);

 private:
  void LoadRow(int64_t own, float* row) const;
  bool Weigh(int64_t own, const int32_t* ids, int64_t n, const float* row);

  const ListGradHead& grad_;
  const ListHead& head_;
  const bool by_query_;
  const int64_t D_, stride_;
  const ListScores scores_;
  float* const own_;  // [row][D, then Dv]: q and dout, or k and v
  ListedRows others_, other_values_;
  // Of the pairs that were weighed last; scores: P.
  const float* const* rows_ = nullptr;
  const float* const* values_ = nullptr;
  PairChunk pairs_;
  float dscores_[PairChunk::kRoom], dts_[PairChunk::kRoom];  // dS, dT
};

inline void ListedGrad::LoadRow(int64_t own, float* row) const {
  const HeadRows& rows = by_query_ ? head_.q : head_.k;
  const HeadRows& values = by_query_ ? head_.dout : head_.v;
  Widen(rows.dtype, rows.Row(own), head_.D, row);
  if (head_.dout.data != nullptr) Widen(values.dtype, values.Row(own), head_.Dv, row + D_);
}

// False: no pair is visible.
inline bool ListedGrad::Weigh(int64_t own, const int32_t* ids, int64_t n, const float* row) {
  const DF d;
  if (by_query_ && grad_.rows.lse[own] == std::numeric_limits<float>::infinity()) return false;
  scores_.Take(by_query_, own, ids, n, &pairs_);
  if (pairs_.n == 0) return false;
  rows_ = others_.Load(pairs_.ids, pairs_.n);
  Dots(row, rows_, pairs_.n, head_.D, pairs_.scores);
  if (head_.dout.data != nullptr) {
    values_ = other_values_.Load(pairs_.ids, pairs_.n);
    Dots(row + D_, values_, pairs_.n, head_.Dv, dscores_);
  } else {
    std::fill_n(dscores_, PairChunk::kRoom, 0.0f);
  }
  scores_.Score(&pairs_);
  float lse[PairChunk::kRoom], low[PairChunk::kRoom], shift[PairChunk::kRoom];
  for (int64_t t = 0; t < pairs_.n; ++t) {
    const int64_t i = by_query_ ? own : pairs_.ids[t];
    lse[t] = grad_.rows.lse[i];
    low[t] = grad_.rows.lse_low[i];
    shift[t] = grad_.rows.shift[i];
  }
  for (int64_t t = 0; t < pairs_.n; t += kLanes) {
    const VF score = hn::LoadU(d, pairs_.scores + t);
    const VF exponent = hn::Sub(hn::Sub(score, hn::LoadU(d, lse + t)), hn::LoadU(d, low + t));
    const VF weight = ExpWeight(d, exponent);
    const VF dscore = hn::Mul(weight, hn::Sub(hn::LoadU(d, dscores_ + t), hn::LoadU(d, shift + t)));
    const VF dt = scores_.has_cap() ? hn::Mul(dscore, hn::LoadU(d, pairs_.keeps + t)) : dscore;
    hn::StoreU(weight, d, pairs_.scores + t);
    hn::StoreU(dscore, d, dscores_ + t);
    hn::StoreU(dt, d, dts_ + t);
  }
  return true;
}

inline void ListedGrad::AddRows(int64_t first, int64_t rows, ListHeadSums* sums) {
  std::fill_n(own_, rows * stride_, 0.0f);
  for (int64_t r = 0; r < rows; ++r) LoadRow(first + r, own_ + r * stride_);
  float* grads = Grads(rows);
  auto* next = reinterpret_cast<int64_t*>(grads + rows * stride_);
  const bool wants = (by_query_ ? grad_.dq : grad_.dk).data != nullptr;
  const bool wants_dv = !by_query_ && grad_.dv.data != nullptr && head_.dout.data != nullptr;
  const bool wants_slope = by_query_ && head_.slope != nullptr;
  const PairList& list = by_query_ ? head_.pattern->keys_of : head_.pattern->queries_of;
  const int64_t others = by_query_ ? head_.Nk : head_.Nq;
  const auto visit = [&](int64_t own, const int32_t* ids, int64_t n) HWY_ATTR {
    const int64_t at = (own - first) * stride_;
    if (!Weigh(own, ids, n, own_ + at)) return;
    if (wants) AddWeighted(dts_, rows_, pairs_.n, head_.D, grads + at);
    if (wants_dv) AddWeighted(pairs_.scores, values_, pairs_.n, head_.Dv, grads + at + D_);
    for (int64_t t = 0; wants_slope && t < pairs_.n; ++t) {
      sums->slope -= dscores_[t] * pairs_.distance[t];
    }
  };
  EachListed(list, first, rows, others, ListBlockRows(list, others, stride_), next, visit);
}

template <class Add>
inline void ListedGrad::EachScore(const Add& add) {
  const PairList& list = head_.pattern->keys_of;
  std::fill_n(own_, stride_, 0.0f);
  for (int64_t i = 0; i < head_.Nq; ++i) {
    if (CheckPoint()) return;
    LoadRow(i, own_);
    for (int64_t at = list.begin[i]; at < list.begin[i + 1]; at += kListChunk) {
      const int64_t n = std::min(kListChunk, list.begin[i + 1] - at);
      if (!Weigh(i, list.columns.data() + at, n, own_)) continue;
      for (int64_t t = 0; t < pairs_.n; ++t) add(i, pairs_.ids[t], dscores_[t]);
    }
  }
}

void ListGradQueries(const ListGradHead& grad, int64_t first, int64_t rows, float* scratch,
                     ListHeadSums* sums) {
  ListedGrad listed(grad, /*by_query=*/true, scratch);
  const ListHead& head = grad.head;
  listed.Clear(rows);
  listed.AddRows(first, rows, sums);
  const float* row = listed.Grads(rows);
  for (int64_t i = first; grad.dq.data != nullptr && i < first + rows; ++i) {
    Narrow(grad.dq.dtype, row, head.D, grad.dq.Row(i), static_cast<float>(head.params.scale));
    row += ListStride(head.D) + ListStride(head.Dv);
  }
}

// The sum over the query heads that share a kv head.
void ListGradKeys(std::span<const ListGradHead> group, int64_t first, int64_t rows,
                  float* scratch) {
  const ListHead& head = group[0].head;
  const HeadRows &dk = group[0].dk, &dv = group[0].dv;
  const int64_t D = ListStride(head.D);
  ListedGrad(group[0], /*by_query=*/false, scratch).Clear(rows);
  for (const ListGradHead& grad : group) {
    ListedGrad(grad, /*by_query=*/false, scratch).AddRows(first, rows, nullptr);
  }
  const float* row = ListedGrad(group[0], /*by_query=*/false, scratch).Grads(rows);
  for (int64_t j = first; j < first + rows; ++j, row += D + ListStride(head.Dv)) {
    if (dk.data != nullptr) {
      Narrow(dk.dtype, row, head.D, dk.Row(j), static_cast<float>(head.params.scale));
    }
    if (dv.data != nullptr) Narrow(dv.dtype, row + D, head.Dv, dv.Row(j));
  }
}

// Adds dS of a head to its plane of dbias, float32; strides of what repeats are 0.
void ListGradBias(const ListGradHead& grad, const HeadRows& plane, int64_t column, float* scratch) {
  ListedGrad(grad, /*by_query=*/true, scratch).EachScore([&](int64_t i, int64_t j, float dscore) {
    *reinterpret_cast<float*>(plane.Row(i) + j * column) += dscore;
  });
}

ListGradKernels KernelsOfListGrad() {
  return {ListTermsOfRows, ListGradQueries, ListGradKeys, ListGradBias};
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
